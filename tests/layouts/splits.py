"""Layouts with splits, and with images that have no labels."""

from collections.abc import Iterable

from layouts.layout import LABELS, NAMES, TEST, TRAIN, TRAIN_VAL, VAL, Layout, columns, expected, table

NUMBERS = {"train": TRAIN, "val": VAL, "test": TEST}


def in_splits(path: str) -> dict[str, str]:
    """Return the split of every image; `path` has placeholders for the split and the number."""
    return {path.format(split, number): split for split, numbers in NUMBERS.items() for number in numbers}


def listed(numbers: Iterable[int], *, folder: str = "", header: str = "file,labels") -> str:
    """Return a table of some images with lists of labels."""
    return table(header, lambda n, labels: f"{folder}{n}.jpg,{'|'.join(labels)}", numbers)


def marked(numbers: Iterable[int], header: str, delimiter: str = ",") -> str:
    """Return a table of some images with class columns."""
    return table(
        header,
        lambda n, labels: f"{n}.jpg{delimiter}{columns(labels, '1', '0', delimiter=delimiter)}",
        numbers,
    )


FOLDERS = {"train": "train", "val": "valid", "test": "test"}
IN_FOLDERS = {
    path: labels
    for split, folder in FOLDERS.items()
    for path, labels in expected(f"{folder}/{{}}.jpg", NUMBERS[split]).items()
}
SPLIT_FOLDERS = {f"{FOLDERS[split]}/{number}.jpg": split for split, numbers in NUMBERS.items() for number in numbers}

SPLITS = [
    Layout(
        "split-column",
        "a column with the splits",
        {
            "labels.csv": table(
                "file,labels,split",
                lambda n, labels: f"{n}.jpg,{'|'.join(labels)},{next(s for s in NUMBERS if n in NUMBERS[s])}",
            )
        },
        split=in_splits("{1}.jpg"),
    ),
    Layout(
        "split-tables",
        "`train.csv`, `val.csv` and `test.csv`, with all images in `images/`",
        {f"{split}.csv": listed(numbers) for split, numbers in NUMBERS.items()},
        expected("images/{}.jpg"),
        split=in_splits("images/{1}.jpg"),
    ),
    Layout(
        "split-folders",
        "`train/`, `valid/` and `test/`, each with its images and a `labels.csv`",
        {f"{folder}/labels.csv": listed(NUMBERS[split]) for split, folder in FOLDERS.items()},
        IN_FOLDERS,
        split=SPLIT_FOLDERS,
    ),
    Layout(
        "split-folders-classes",
        "the same with a `_classes.csv`, as Roboflow exports it",
        {
            f"{folder}/_classes.csv": marked(NUMBERS[split], "filename, beach, boat, sunset", ", ")
            for split, folder in FOLDERS.items()
        },
        IN_FOLDERS,
        split=SPLIT_FOLDERS,
    ),
    Layout(
        "test-without-column",
        "`train.csv`, and a `test.csv` without labels; images in `train/` and `test/`",
        {
            "train.csv": listed(TRAIN_VAL, header="image,labels"),
            "test.csv": table("image", lambda n, labels: f"{n}.jpg", TEST),
        },
        expected("train/{}.jpg", TRAIN_VAL),
        unlabeled=[f"test/{number}.jpg" for number in TEST],
    ),
    Layout(
        "test-blank",
        "`train.csv`, and a `test.csv` whose labels are blank",
        {"train.csv": listed(TRAIN_VAL), "test.csv": table("file,labels", lambda n, labels: f"{n}.jpg,", TEST)},
        expected("images/{}.jpg", TRAIN_VAL),
        unlabeled=[f"images/{number}.jpg" for number in TEST],
    ),
    Layout(
        "test-minus-one",
        "`train.csv`, and a `test.csv` with -1 in all class columns",
        {
            "train.csv": marked(TRAIN_VAL, "file,beach,boat,sunset"),
            "test.csv": table("file,beach,boat,sunset", lambda n, labels: f"{n}.jpg,{columns((), '1', '-1')}", TEST),
        },
        expected("images/{}.jpg", TRAIN_VAL),
        unlabeled=[f"images/{number}.jpg" for number in TEST],
    ),
    Layout(
        "sample-submission",
        "`train.csv` and a `sample_submission.csv` for the images in `test/`",
        {
            "train.csv": listed(TRAIN_VAL, header="image_name,tags"),
            "sample_submission.csv": table("image_name,tags", lambda n, labels: f"{n}.jpg,{'|'.join(NAMES)}", TEST),
        },
        expected("train/{}.jpg", TRAIN_VAL),
        unlabeled=[f"test/{number}.jpg" for number in TEST],
    ),
    Layout(
        "test-folder",
        "a table of the images in `train/`, and a `test/` without labels",
        {"labels.csv": listed(TRAIN_VAL, folder="train/")},
        expected("train/{}.jpg", TRAIN_VAL),
        unlabeled=[f"test/{number}.jpg" for number in TEST],
    ),
    Layout(
        "folders",
        "one folder per class",
        {},
        {
            f"{LABELS[n][0]}/{n}.jpg": labels
            for n in LABELS
            for labels in expected(present=lambda n: LABELS[n][:1], numbers=[n]).values()
        },
        shown="beach/1.jpg\nsunset/2.jpg\nboat/3.jpg",
    ),
    Layout(
        "folders-test",
        "one folder per class in `train/`, and a `test/` without labels",
        {},
        {
            f"train/{LABELS[n][0]}/{n}.jpg": labels
            for n in TRAIN_VAL
            for labels in expected(present=lambda n: LABELS[n][:1], numbers=[n]).values()
        },
        unlabeled=[f"test/{number}.jpg" for number in TEST],
        shown="train/beach/1.jpg\ntrain/sunset/2.jpg\ntest/33.jpg",
    ),
]
