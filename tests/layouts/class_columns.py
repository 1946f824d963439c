"""Layouts with one column per class."""

from layouts.layout import LABELS, NAMES, Layout, columns, expected, table

HEADER = "file,beach,boat,sunset"


def marked(yes: str, no: str) -> str:
    """Return a table with two values in the class columns."""
    return table(HEADER, lambda n, labels: f"{n}.jpg,{columns(labels, yes, no)}")


def undecided(number: int) -> tuple[str, ...]:
    """Return the classes, at most one per image, that are not known."""
    return tuple(name for k, name in enumerate(NAMES) if number % 5 == k + 2)


def with_undecided(mark: str) -> str:
    """Return a table of 1 and 0, with another mark in the cells that are not known."""
    return table(
        HEADER,
        lambda n, labels: (
            f"{n}.jpg," + ",".join(mark if name in undecided(n) else str(int(name in labels)) for name in NAMES)
        ),
    )


def first_only(number: int) -> tuple[str, ...]:
    """Return a list that differs from the class columns in every fifth image."""
    return LABELS[number][:1] if number % 5 == 1 else LABELS[number]


KNOWN = expected(present=lambda n: set(LABELS[n]) - set(undecided(n)), unknown=undecided)
ONLY_POSITIVES = expected(unknown=lambda n: set(NAMES) - set(LABELS[n]))

CLASS_COLUMNS = [
    Layout("columns-0-1", "one column per class with 0 and 1", {"labels.csv": marked("1", "0")}),
    Layout("columns-true-false", "… with true and false", {"labels.csv": marked("True", "False")}),
    Layout("columns-yes-no", "… with yes and no", {"labels.csv": marked("yes", "no")}),
    Layout("columns-floats", "… with 1.0 and 0.0", {"labels.csv": marked("1.0", "0.0")}),
    Layout("columns-x", "… with x; a blank means absent", {"labels.csv": marked("x", "")}),
    Layout("columns-unknown", "… with 1 and 0; a blank means unknown", {"labels.csv": with_undecided("")}, KNOWN),
    Layout("columns-minus-one", "… with 1 and 0; -1 means unknown", {"labels.csv": with_undecided("-1")}, KNOWN),
    Layout(
        "columns-1-blank",
        "… with 1 only; a blank may mean absent or unknown",
        {"labels.csv": marked("1", "")},
        readings={"--blank negative": expected(), "--blank unknown": ONLY_POSITIVES},
    ),
    Layout(
        "columns-1-minus-one",
        "… with 1 and -1; -1 may mean absent or unknown",
        {"labels.csv": marked("1", "-1")},
        readings={"--minus-one negative": expected(), "--minus-one unknown": ONLY_POSITIVES},
    ),
    Layout(
        "columns-others",
        "… among other columns, which are ignored",
        {
            "labels.csv": table(
                "file,camera,year,beach,boat,sunset",
                lambda n, labels: (
                    f"{n}.jpg,{('Leica', 'Canon', 'Nikon')[n % 3]},{1990 + n % 9},{columns(labels, '1', '0')}"
                ),
            )
        },
    ),
    Layout(
        "columns-and-list",
        "… next to a list with the same labels",
        {
            "labels.csv": table(
                "file,labels,beach,boat,sunset",
                lambda n, labels: f"{n}.jpg,{' '.join(labels)},{columns(labels, '1', '0')}",
            )
        },
    ),
    Layout(
        "columns-or-list",
        "… next to a list with other labels in some rows",
        {
            "labels.csv": table(
                "file,labels,beach,boat,sunset",
                lambda n, labels: f"{n}.jpg,{' '.join(first_only(n))},{columns(labels, '1', '0')}",
            )
        },
        readings={"--labels-column labels": expected(present=first_only), "--ignore labels": expected()},
    ),
]
