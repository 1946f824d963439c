"""Layouts that annotation tools export."""

import json

from layouts.layout import LABELS, NAMES, TEST, TRAIN_VAL, Layout, expected

NUMBERS = {"train": TRAIN_VAL, "val": TEST}


def voc_xml(number: int) -> str:
    """Return the boxes of an image as LabelImg and the PASCAL VOC devkit write them; the first label has two boxes."""
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>12</ymax></bndbox>"
    labels = LABELS[number]
    boxes = "".join(f"  <object><name>{name}</name>\n    {box}</object>\n" for name in (*labels, labels[0]))
    size = "<size><width>16</width><height>16</height><depth>3</depth></size>"
    return f"<annotation>\n  <filename>{number}.jpg</filename>\n{boxes}  {size}\n</annotation>\n"


def yolo_text(number: int) -> str:
    """Return the boxes of an image, one per line: the number of the class, center and size."""
    return "".join(f"{NAMES.index(name)} 0.5 0.5 0.25 0.5\n" for name in LABELS[number])


def coco_json() -> str:
    """Return one file with the boxes of all images; images without boxes have no label."""
    parts = {
        "images": [{"id": n, "file_name": f"{n}.jpg"} for n in LABELS],
        "annotations": [
            {"id": 10 * n + k, "image_id": n, "category_id": 1 + NAMES.index(name), "bbox": [1, 2, 8, 9]}
            for n in LABELS
            for k, name in enumerate(boxed(n))
        ],
        "categories": [{"id": k, "name": name} for k, name in enumerate(NAMES, 1)],
    }
    lists = (f'"{key}": [\n' + ",\n".join(map(json.dumps, entries)) + "]" for key, entries in parts.items())
    return "{" + ",\n".join(lists) + "}\n"


def boxed(number: int) -> tuple[str, ...]:
    return () if number % 8 == 0 else LABELS[number]


def label_studio(numbers: range) -> str:
    """Return an export in which the images after `numbers` have not been annotated."""
    tasks = []
    for n in LABELS:
        task = {"id": n, "data": {"image": f"/data/upload/3/{n * 7919:08x}-{n}.jpg"}}
        choices = {"type": "choices", "from_name": "tags", "to_name": "image", "value": {"choices": LABELS[n]}}
        annotations = f'{{"id": {n}, "result": [\n  {json.dumps(choices)}]}}' if n in numbers else ""
        tasks.append(f'{json.dumps(task)[:-1]},\n "annotations": [{annotations}]}}')
    return "[" + ",\n ".join(tasks) + "]\n"


TOOLS = [
    Layout(
        "voc-xml",
        "PASCAL VOC: `Annotations/*.xml` and `JPEGImages/`, without lists of the classes",
        {f"Annotations/{n}.xml": voc_xml(n) for n in LABELS},
        expected("JPEGImages/{}.jpg"),
    ),
    Layout(
        "voc-xml-one-folder",
        "LabelImg: one `.xml` file next to each image",
        {f"{n}.xml": voc_xml(n) for n in LABELS},
    ),
    Layout(
        "voc-lists",
        "PASCAL VOC with lists of the classes: `ImageSets/Main/beach_train.txt`",
        {
            f"ImageSets/Main/{name}_{split}.txt": "".join(
                f"{n:06} {1 if name in LABELS[n] else -1:2}\n" for n in numbers
            )
            for name in NAMES
            for split, numbers in NUMBERS.items()
        },
        expected("JPEGImages/{:06}.jpg"),
        split={f"JPEGImages/{n:06}.jpg": split for split, numbers in NUMBERS.items() for n in numbers},
    ),
    Layout(
        "yolo",
        "YOLO: `data.yaml`, `images/train/` and `labels/train/*.txt`",
        {
            "data.yaml": f"train: images/train\nval: images/val\nnames: [{', '.join(NAMES)}]\n",
            **{f"labels/{split}/{n}.txt": yolo_text(n) for split, numbers in NUMBERS.items() for n in numbers},
        },
        {
            path: labels
            for split, numbers in NUMBERS.items()
            for path, labels in expected(f"images/{split}/{{}}.jpg", numbers).items()
        },
        split={f"images/{split}/{n}.jpg": split for split, numbers in NUMBERS.items() for n in numbers},
    ),
    Layout(
        "coco",
        "COCO: one JSON file and `images/`",
        {"annotations.json": coco_json()},
        expected("images/{}.jpg", present=boxed),
    ),
    Layout(
        "label-studio",
        "Label Studio export; tasks without annotations are not used",
        {"project-3.json": label_studio(TRAIN_VAL)},
        expected(numbers=TRAIN_VAL),
        unlabeled=[f"{n}.jpg" for n in LABELS if n not in TRAIN_VAL],
    ),
]
