"""Medical data sets in the form in which their authors published them, with generated images."""

from pathlib import Path

import numpy as np
from numpy.random import Generator

from helpers.published import Release, draw_all, ones_and_zeros, write_table

NIH_FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax"),
    *("Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia"),
)
NIH_HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
NIH_BOX_HEADER = "Image Index,Finding Label,Bbox [x,y,w,h],,,"


def write_nih_chest_xray14(folder: Path) -> Release:
    """Write NIH ChestX-ray14: label lists with |, patients with several images, and twelve folders of images.

    Two names in the header contain commas, and lines end in a comma. "No Finding" means that none of the 14 findings
    is present. A second table has boxes for a few images, some with another spelling of the finding. Two lists without
    header divide the images by patient.

    https://nihcc.app.box.com/v/ChestXray-NIHCC (README_CHESTXRAY.pdf)
    https://www.kaggle.com/datasets/nih-chest-xrays/data
    """
    rng = np.random.default_rng(5)
    release = Release(folder)
    rows = [NIH_HEADER]
    boxes = [NIH_BOX_HEADER]
    names_by_split: dict[str, list[str]] = {"train": [], "test": []}
    for patient in range(1, 46):
        split = "test" if patient % 5 == 0 else "train"
        sex = rng.choice(["M", "F"])
        age = int(rng.integers(18, 90))
        for visit in range(1 + patient % 4):
            number = len(release.labels)
            name = f"{patient:08}_{visit:03}.png"
            path = f"images_{1 + number // 10:03}/images/{name}"
            findings = _nih_findings(rng, number)
            release.labels[path] = set(findings)
            release.split[path] = split
            names_by_split[split].append(name)
            view = rng.choice(["PA", "AP"])
            spacing = rng.choice(["0.143", "0.14300000000000002", "0.168"])
            listed = "|".join(findings) or "No Finding"
            rows.append(f"{name},{listed},{visit},{patient},{age},{sex},{view},2500,2048,{spacing},{spacing},")
            if split == "test" and findings:
                label = findings[0].replace("Infiltration", "Infiltrate")
                boxes.append(f"{name},{label},225.084745762712,547.019216763771,86.7796610169491,79.1864406779661,,,")
    draw_all(release, NIH_FINDINGS, rng, gray=True)
    (folder / "Data_Entry_2017.csv").write_text("\n".join(rows) + "\n")
    (folder / "BBox_List_2017.csv").write_text("\n".join(boxes) + "\n")
    (folder / "train_val_list.txt").write_text("\n".join(names_by_split["train"]))
    (folder / "test_list.txt").write_text("\n".join(names_by_split["test"]))
    (folder / "README_CHESTXRAY.pdf").write_bytes(b"%PDF-1.5\n")
    return release


def _nih_findings(rng: Generator, number: int) -> list[str]:
    """Draw the findings of an image: none in every third image, in the others at least one."""
    findings = {label for label in NIH_FINDINGS if rng.random() < 0.1}
    if number % 3 == 0:
        return []
    return sorted({*findings, NIH_FINDINGS[number % 14]})


CHEXPERT_OBSERVATIONS = (
    *("No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema"),
    *("Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture"),
    "Support Devices",
)
CHEXPERT_FIRST_VALID = 64541
"""Number of the first patient of the validation set."""


def write_chexpert(folder: Path) -> Release:
    """Write CheXpert-v1.0-small: one table for training and one for validation, without test images.

    Paths begin with the name of the folder that contains the tables. In the training table, cells are 1.0, 0.0, -1.0
    (uncertain) or blank (not mentioned); "No Finding" is never 0.0 or -1.0. The images of a study have the same labels.
    The validation table has only 1.0 and 0.0. Lateral views have no AP/PA.

    https://stanfordmlgroup.github.io/competitions/chexpert/
    https://www.kaggle.com/datasets/ashery/chexpert
    """
    rng = np.random.default_rng(6)
    release = Release(folder / "CheXpert-v1.0-small")
    tables: dict[str, list[list[object]]] = {"train": [], "valid": []}
    for patient in [*range(1, 36), *range(CHEXPERT_FIRST_VALID, 64553)]:
        split = "train" if patient < CHEXPERT_FIRST_VALID else "valid"
        sex = str(rng.choice(["Female", "Male"]))
        age = int(rng.integers(18, 91))
        for study in range(1, 2 + patient % 2):
            cells = _chexpert_cells(rng, split, len(release.labels))
            has_lateral_view = (patient + study) % 2 == 1
            views = ("view1_frontal", "view2_lateral") if has_lateral_view else ("view1_frontal",)
            for view in views:
                path = f"{split}/patient{patient:05}/study{study}/{view}.jpg"
                release.split[path] = "train" if split == "train" else "val"
                release.labels[path] = {name for name, cell in cells.items() if cell == "1.0"}
                release.uncertain[path] = {name for name, cell in cells.items() if cell == "-1.0"}
                release.blank[path] = {name for name, cell in cells.items() if cell == ""}
                position = ["Frontal", str(rng.choice(["AP", "PA"]))] if view == "view1_frontal" else ["Lateral", ""]
                tables[split].append([f"CheXpert-v1.0-small/{path}", sex, age, *position, *cells.values()])
    draw_all(release, CHEXPERT_OBSERVATIONS, rng, gray=True)
    for split, rows in tables.items():
        header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CHEXPERT_OBSERVATIONS]
        write_table(release.folder / f"{split}.csv", header, rows)
    return release


def _chexpert_cells(rng: Generator, split: str, number: int) -> dict[str, str]:
    """Return the cells of a study: 1.0, 0.0, -1.0 or blank for each observation."""
    if split == "valid":
        return _chexpert_validation_cells(rng, 0.0 if number % 4 == 0 else 0.3)
    cells = dict.fromkeys(CHEXPERT_OBSERVATIONS, "")
    if number % 6 == 0:  # a report without findings mentions few observations
        cells |= {"No Finding": "1.0", "Pneumothorax": "0.0", "Support Devices": str(rng.choice(["1.0", ""]))}
        return cells
    drawn = rng.choice(["1.0", "0.0", "-1.0", ""], len(CHEXPERT_OBSERVATIONS), p=(0.25, 0.15, 0.15, 0.45)).tolist()
    for name, cell in zip(CHEXPERT_OBSERVATIONS[1:], drawn[1:], strict=True):  # "No Finding" stays blank
        cells[name] = cell
    return cells


def _chexpert_validation_cells(rng: Generator, share: float) -> dict[str, str]:
    """Return the cells of a validation study, in which this share of the observations is present."""
    cells = {"No Finding": "1.0"}
    for name in CHEXPERT_OBSERVATIONS[1:]:
        cells[name] = str(rng.choice(["1.0", "0.0"], p=(share, 1 - share)))
    cells["Fracture"] = "0.0"  # in no validation image of the release
    if any(cells[name] == "1.0" for name in CHEXPERT_OBSERVATIONS[1:]):
        cells["No Finding"] = "0.0"
    return cells


RETINA_COLUMNS = (
    *("Disease_Risk", "DR", "ARMD", "MH", "DN", "MYA", "BRVO", "TSLN", "ERM", "LS", "MS", "CSR", "ODC"),
    *("CRVO", "TV", "AH", "ODP", "ODE", "ST", "AION", "PT", "RT", "RS", "CRS", "EDN", "RPEC", "MHL", "RP"),
    *("CWS", "CB", "ODPM", "PRH", "MNF", "HR", "CRAO", "TD", "CME", "PTCR", "CF", "VH", "MCA", "VS", "BRAO"),
    *("PLQ", "HPED", "CL"),
)
"""Any disease, and then each disease."""

# Outer and inner folder, table, split, and number of images.
RFMID_FOLDERS = (
    ("Training_Set", "Training", "RFMiD_Training_Labels.csv", "train", 60),
    ("Evaluation_Set", "Validation", "RFMiD_Validation_Labels.csv", "val", 20),
    ("Test_Set", "Test", "RFMiD_Testing_Labels.csv", "test", 20),
)


def write_rfmid(folder: Path) -> Release:
    """Write RFMiD: a folder for each split, with its table and its images, which are numbered from 1 in each.

    Some classes are in no validation or test image.

    https://www.kaggle.com/datasets/andrewmvd/retinal-disease-classification
    https://doi.org/10.3390/data6020014
    """
    rng = np.random.default_rng(9)
    release = Release(folder)
    for outer, inner, table, split, count in RFMID_FOLDERS:
        parent = f"{outer}/{outer}"
        rows = []
        for number in range(1, count + 1):
            present = {name for name in RETINA_COLUMNS[1:] if rng.random() < 0.05}
            if split == "train" and number < len(RETINA_COLUMNS):
                present.add(RETINA_COLUMNS[number])  # every disease has a training image
            if present:
                present.add("Disease_Risk")
            path = f"{parent}/{inner}/{number}.png"
            release.labels[path] = present
            release.split[path] = split
            rows.append([number, *ones_and_zeros(present, RETINA_COLUMNS)])
        write_table(folder / parent / table, ["ID", *RETINA_COLUMNS], rows)
    draw_all(release, RETINA_COLUMNS, rng)
    return release
