"""Layouts with several label columns, or with several rows per image."""

from collections.abc import Collection

from layouts.layout import LABELS, NAMES, Expected, Layout, expected, table


def verified(number: int) -> list[str]:
    """Return the labels that have a row: those that are present, and half of the others."""
    return [name for k, name in enumerate(NAMES) if name in LABELS[number] or (number + k) % 2]


def opinions(number: int) -> dict[str, tuple[str, ...]]:
    """Return the labels of an image by annotator: Ben misses some, and Carla saw only every second image."""
    labels = LABELS[number]
    opinions = {"anna": labels, "ben": labels[:-1] if number % 3 == 1 and len(labels) > 1 else labels}
    return opinions if number % 2 else {**opinions, "carla": labels}


def merged(present: Collection[str], unknown: Collection[str]) -> Expected:
    """Return the expected labels by the outcome of the vote: all, most, half or few of the annotators gave a label."""
    votes = {number: {name: vote(number, name) for name in NAMES} for number in LABELS}
    return expected(
        present=lambda n: [name for name in NAMES if votes[n][name] in present],
        unknown=lambda n: [name for name in NAMES if votes[n][name] in unknown],
    )


def vote(number: int, name: str) -> str:
    given = [name in labels for labels in opinions(number).values()]
    if all(given) or not any(given):
        return "all" if all(given) else "none"
    return "half" if 2 * sum(given) == len(given) else "most" if 2 * sum(given) > len(given) else "few"


ROWS = [
    Layout(
        "several-columns",
        "two label columns",
        {"labels.csv": table("file,Type 1,Type 2", lambda n, labels: f"{n}.jpg,{','.join([*labels, ''][:2])}")},
        expected(present=lambda n: LABELS[n][:2]),
    ),
    Layout(
        "numbered-columns",
        "numbered label columns",
        {
            "labels.csv": table(
                "file,label_1,label_2,label_3,label_4,label_5",
                lambda n, labels: f"{n}.jpg,{','.join([*labels, '', '', '', ''][:5])}",
            )
        },
    ),
    Layout(
        "row-per-label",
        "one row per label",
        {"labels.csv": table("file,label", lambda n, labels: "\n".join(f"{n}.jpg,{name}" for name in labels))},
    ),
    Layout(
        "row-per-label-with-presence",
        "one row per label that was checked, present (1) or absent (0)",
        {
            "labels.csv": table(
                "ImageID,LabelName,Confidence",
                lambda n, labels: "\n".join(f"{n},{name},{int(name in labels)}" for name in verified(n)),
            )
        },
        expected(unknown=lambda n: set(NAMES) - set(verified(n))),
        "probmcl train photos/ --blank unknown",
    ),
    Layout(
        "row-per-box",
        "one row per box; the boxes are ignored",
        {
            "boxes.csv": table(
                "filename,class,xmin,ymin,xmax,ymax",
                lambda n, labels: "\n".join(
                    f"{n}.jpg,{name},{k},{n % 4},{k + 8},{n % 4 + 7}" for k, name in enumerate([*labels, labels[0]])
                ),
            )
        },
    ),
    Layout(
        "repeated-rows",
        "rows that are repeated",
        {
            "labels.csv": table(
                "file,labels", lambda n, labels: "\n".join([f"{n}.jpg,{'|'.join(labels)}"] * (1 + (n % 4 == 1)))
            )
        },
    ),
    Layout(
        "annotators",
        "one row per annotator, and they disagree",
        {
            "labels.csv": table(
                "file,annotator,labels",
                lambda n, labels: "\n".join(f"{n}.jpg,{who},{'|'.join(given)}" for who, given in opinions(n).items()),
            )
        },
        readings={
            "--annotators majority": merged({"all", "most"}, {"half"}),
            "--annotators any": merged({"all", "most", "half", "few"}, ()),
            "--annotators unknown": merged({"all"}, {"most", "half", "few"}),
        },
    ),
]
