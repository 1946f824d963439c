"""Layouts with a list of labels per image."""

from layouts.layout import LABELS, NAMES, Expected, Layout, expected, table

MEDICAL = {"beach": "Cardiomegaly", "boat": "Edema", "sunset": "Mass"}
TWO_WORDS = {"beach": "sandy beach", "boat": "rowing boat", "sunset": "red sunset"}
DIAGNOSES = ("Pleural effusion", "Pleural thickening", "Lung mass", "Lung nodule")
WORDS = tuple(dict.fromkeys(word for name in DIAGNOSES for word in name.split()))
PARENTS = {"beach": "water", "boat": "water", "sunset": "sky"}
COMBINATIONS = tuple(dict.fromkeys("/".join(labels) for labels in LABELS.values()))


def renamed(names: dict[str, str]) -> Expected:
    """Return the expected labels under other names."""
    return expected(present=lambda number: [names[name] for name in LABELS[number]], names=names.values())


def listed(separator: str, *, header: str = "file,labels", cell: str = "{}", quote: str = "") -> str:
    """Return a table with one list per image; `cell` surrounds the list and `quote` every label."""
    return table(
        header, lambda n, labels: f"{n}.jpg,{cell.format(separator.join(f'{quote}{name}{quote}' for name in labels))}"
    )


def finding(number: int) -> tuple[str, ...]:
    """Return the labels of a table in which every sixth image has none."""
    return () if number % 6 == 2 else LABELS[number]


def diagnosis(number: int) -> str:
    return DIAGNOSES[(number - 1) % len(DIAGNOSES)]


LISTS = [
    Layout("list-pipe", "labels separated by `\\|`", {"labels.csv": listed("|")}),
    Layout("list-semicolon", "labels separated by `;`", {"labels.csv": listed(";")}),
    Layout(
        "list-comma",
        "labels separated by commas, in quotes",
        {"labels.csv": listed(", ", cell='"{}"')},
    ),
    Layout("list-space", "labels separated by spaces", {"labels.csv": listed(" ", header="image_name,tags")}),
    Layout("list-tab", "labels separated by tabs (`→`)", {"labels.csv": listed("\t")}),
    Layout(
        "list-python",
        "lists as Python writes them",
        {"labels.csv": listed(", ", cell='"[{}]"', quote="'")},
    ),
    Layout("list-json", "lists as JSON", {"labels.csv": listed(", ", cell='"[{}]"', quote='""')}),
    Layout("list-braces", "lists in braces, as databases write them", {"labels.csv": listed(", ", cell='"{{{}}}"')}),
    Layout(
        "list-names-with-spaces",
        "names that contain spaces",
        {
            "labels.csv": table(
                "file,labels", lambda n, labels: f"{n}.jpg,{'|'.join(TWO_WORDS[name] for name in labels)}"
            )
        },
        renamed(TWO_WORDS),
    ),
    Layout(
        "list-blank",
        "cells that are blank or `N/A`: no label",
        {
            "labels.csv": table(
                "file,labels",
                lambda n, labels: f"{n}.jpg,{'N/A' if n % 6 == 2 else '' if n % 6 == 3 else '|'.join(labels)}",
            )
        },
        expected(present=lambda n: () if n % 6 in (2, 3) else LABELS[n]),
    ),
    Layout(
        "list-no-finding",
        'a label that means "no label", such as `No Finding` or `none`',
        {
            "labels.csv": table(
                "Image Index,Finding Labels",
                lambda n, labels: f"{n}.jpg,{'|'.join(MEDICAL[name] for name in finding(n)) or 'No Finding'}",
            )
        },
        expected(present=lambda n: [MEDICAL[name] for name in finding(n)], names=MEDICAL.values()),
    ),
    Layout(
        "list-none-label",
        "the same, under a name of your own",
        {"labels.csv": table("file,labels", lambda n, labels: f"{n}.jpg,{'|'.join(finding(n)) or 'clear view'}")},
        expected(present=finding),
        "probmcl train photos/ --none-label 'clear view'",
    ),
    Layout(
        "list-unknown-label",
        'a label that means "not known"',
        {"labels.csv": table("file,labels", lambda n, labels: f"{n}.jpg,{'|'.join(finding(n)) or 'todo'}")},
        expected(present=finding, unknown=lambda n: () if finding(n) else NAMES),
        "probmcl train photos/ --unknown-label todo",
    ),
    Layout(
        "list-indices",
        "numbers of classes, counted from 0, with the names in `classes.txt`",
        {
            "labels.csv": table(
                "file,labels", lambda n, labels: f"{n}.jpg,{' '.join(str(NAMES.index(x)) for x in labels)}"
            ),
            "classes.txt": "\n".join(NAMES) + "\n",
        },
    ),
    Layout(
        "list-hierarchy",
        "names with their parents, separated by `/`: `water/boat` is also `water`",
        {
            "labels.csv": table(
                "file,labels", lambda n, labels: f"{n}.jpg,{'|'.join(f'{PARENTS[name]}/{name}' for name in labels)}"
            )
        },
        expected(
            present=lambda n: {*LABELS[n], *(PARENTS[name] for name in LABELS[n])}, names=(*NAMES, "water", "sky")
        ),
    ),
    Layout(
        "list-slash",
        "names separated by `/` that are not parents",
        {"labels.csv": listed("/")},
        readings={
            "--separator /": expected(),
            "--separator ''": expected(present=lambda n: ["/".join(LABELS[n])], names=COMBINATIONS),
        },
    ),
    Layout(
        "list-words",
        "words that may be one name or several",
        {"labels.csv": table("file,label", lambda n, labels: f"{n}.jpg,{diagnosis(n)}")},
        readings={
            "--separator ''": expected(present=lambda n: [diagnosis(n)], names=DIAGNOSES),
            "--separator ' '": expected(present=lambda n: diagnosis(n).split(), names=WORDS),
        },
    ),
]
