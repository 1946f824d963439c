"""Medical data sets in the form in which their authors published them, with generated images."""

from pathlib import Path

import numpy as np
from numpy.random import Generator

from helpers.published import Release, draw_all, write_table

NIH_FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax"),
    *("Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia"),
)
NIH_HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)


def write_nih_chest_xray14(folder: Path) -> Release:
    """Write NIH ChestX-ray14: label lists with |, patients with several images, and twelve folders of images.

    Two names in the header contain commas, and lines end in a comma. "No Finding" means that none of the 14 findings
    is present. A second table has boxes for a few images, some with another spelling of the finding. Two lists without
    header divide the images by patient.

    https://nihcc.app.box.com/v/ChestXray-NIHCC (README_CHESTXRAY.pdf)
    https://www.kaggle.com/datasets/nih-chest-xrays/data
    """
    rng, release = np.random.default_rng(5), Release(folder)
    rows, boxes, lists = [NIH_HEADER], ["Image Index,Finding Label,Bbox [x,y,w,h],,,"], {"train": "", "test": ""}
    for patient in range(1, 46):
        sex, age = rng.choice(["M", "F"]), int(rng.integers(18, 90))
        for visit in range(1 + patient % 4):
            i, name = len(release.labels), f"{patient:08}_{visit:03}.png"
            path, split = f"images_{1 + i // 10:03}/images/{name}", "test" if patient % 5 == 0 else "train"
            findings = [label for label in NIH_FINDINGS if rng.random() < 0.1]
            findings = sorted({*findings, NIH_FINDINGS[i % 14]}) if i % 3 else []
            release.labels[path], release.split[path] = set(findings), split
            view, spacing = rng.choice(["PA", "AP"]), rng.choice(["0.143", "0.14300000000000002", "0.168"])
            listed = "|".join(findings) or "No Finding"
            rows.append(f"{name},{listed},{visit},{patient},{age},{sex},{view},2500,2048,{spacing},{spacing},")
            lists[split] += f"{name}\n"
            if split == "test" and findings:
                label = findings[0].replace("Infiltration", "Infiltrate")
                boxes.append(f"{name},{label},225.084745762712,547.019216763771,86.7796610169491,79.1864406779661,,,")
    draw_all(release, NIH_FINDINGS, rng, gray=True)
    (folder / "Data_Entry_2017.csv").write_text("\n".join(rows) + "\n")
    (folder / "BBox_List_2017.csv").write_text("\n".join(boxes) + "\n")
    (folder / "train_val_list.txt").write_text(lists["train"].strip())
    (folder / "test_list.txt").write_text(lists["test"].strip())
    (folder / "README_CHESTXRAY.pdf").write_bytes(b"%PDF-1.5\n")
    return release


CHEXPERT_OBSERVATIONS = (
    *("No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema"),
    *("Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture"),
    "Support Devices",
)


def write_chexpert(folder: Path) -> Release:
    """Write CheXpert-v1.0-small: one table for training and one for validation, without test images.

    Paths begin with the name of the folder that contains the tables. In the training table, cells are 1.0, 0.0, -1.0
    (uncertain) or blank (not mentioned); "No Finding" is never 0.0 or -1.0. The images of a study have the same labels.
    The validation table has only 1.0 and 0.0. Lateral views have no AP/PA.

    https://stanfordmlgroup.github.io/competitions/chexpert/
    https://www.kaggle.com/datasets/ashery/chexpert
    """
    rng, release = np.random.default_rng(6), Release(folder / "CheXpert-v1.0-small")
    tables: dict[str, list[list[object]]] = {"train": [], "valid": []}
    for patient in [*range(1, 36), *range(64541, 64553)]:
        split = "train" if patient < 64541 else "valid"
        sex, age = str(rng.choice(["Female", "Male"])), int(rng.integers(18, 91))
        for study in range(1, 2 + patient % 2):
            cells = _chexpert_cells(rng, split, len(release.labels))
            for view in ("view1_frontal", "view2_lateral")[: 1 + (patient + study) % 2]:
                path = f"{split}/patient{patient:05}/study{study}/{view}.jpg"
                release.split[path] = "train" if split == "train" else "val"
                for meaning, cell in ((release.labels, "1.0"), (release.uncertain, "-1.0"), (release.blank, "")):
                    meaning[path] = {name for name, value in cells.items() if value == cell}
                position = ["Frontal", str(rng.choice(["AP", "PA"]))] if "frontal" in view else ["Lateral", ""]
                tables[split].append([f"CheXpert-v1.0-small/{path}", sex, age, *position, *cells.values()])
    draw_all(release, CHEXPERT_OBSERVATIONS, rng, gray=True)
    for split, rows in tables.items():
        header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CHEXPERT_OBSERVATIONS]
        write_table(release.folder / f"{split}.csv", header, rows)
    return release


def _chexpert_cells(rng: Generator, split: str, number: int) -> dict[str, str]:
    """Return the cells of a study: 1.0, 0.0, -1.0 or blank for each observation."""
    if split == "valid":
        share = 0.0 if number % 4 == 0 else 0.3
        cells = {name: str(rng.choice(["1.0", "0.0"], p=(share, 1 - share))) for name in CHEXPERT_OBSERVATIONS[1:]}
        cells["Fracture"] = "0.0"  # in no validation image of the release
        return {"No Finding": "0.0" if "1.0" in cells.values() else "1.0", **cells}
    if number % 6 == 0:  # a report without findings mentions few observations
        cells = dict.fromkeys(CHEXPERT_OBSERVATIONS, "") | {"No Finding": "1.0", "Pneumothorax": "0.0"}
        return cells | {"Support Devices": str(rng.choice(["1.0", ""]))}
    values = rng.choice(["1.0", "0.0", "-1.0", ""], len(CHEXPERT_OBSERVATIONS), p=(0.25, 0.15, 0.15, 0.45))
    return {"No Finding": "", **dict(zip(CHEXPERT_OBSERVATIONS[1:], map(str, values[1:]), strict=True))}


RETINA_COLUMNS = (
    *("Disease_Risk", "DR", "ARMD", "MH", "DN", "MYA", "BRVO", "TSLN", "ERM", "LS", "MS", "CSR", "ODC"),
    *("CRVO", "TV", "AH", "ODP", "ODE", "ST", "AION", "PT", "RT", "RS", "CRS", "EDN", "RPEC", "MHL", "RP"),
    *("CWS", "CB", "ODPM", "PRH", "MNF", "HR", "CRAO", "TD", "CME", "PTCR", "CF", "VH", "MCA", "VS", "BRAO"),
    *("PLQ", "HPED", "CL"),
)


def write_rfmid(folder: Path) -> Release:
    """Write RFMiD: a folder for each split, with its table and its images, which are numbered from 1 in each.

    Some classes are in no validation or test image.

    https://www.kaggle.com/datasets/andrewmvd/retinal-disease-classification
    https://doi.org/10.3390/data6020014
    """
    rng, release = np.random.default_rng(9), Release(folder)
    sets = [
        ("Training", "Training", "train", 60),
        ("Evaluation", "Validation", "val", 20),
        ("Test", "Test", "test", 20),
    ]
    for outer, inner, split, count in sets:
        parent = f"{outer}_Set/{outer}_Set"
        rows = []
        for number in range(1, count + 1):
            diseases = {name for name in RETINA_COLUMNS[1:] if rng.random() < 0.05}
            diseases |= {RETINA_COLUMNS[number]} if split == "train" and number < len(RETINA_COLUMNS) else set()
            present = diseases | {"Disease_Risk"} if diseases else set()
            path = f"{parent}/{inner}/{number}.png"
            release.labels[path], release.split[path] = present, split
            rows.append([number, *(int(name in present) for name in RETINA_COLUMNS)])
        table = f"RFMiD_{'Testing' if split == 'test' else inner}_Labels.csv"
        write_table(folder / parent / table, ["ID", *RETINA_COLUMNS], rows)
    draw_all(release, RETINA_COLUMNS, rng)
    return release
