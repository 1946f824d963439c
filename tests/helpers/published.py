"""Data sets in the form in which their authors published them, with generated images.

Folders, file names, headers and cell formats follow the public documentation that each function cites. The functions
do not use the package, so that they do not depend on how it reads data.
"""

import csv
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.random import Generator
from PIL import Image

Labels = dict[str, set[str]]


@dataclass(frozen=True)
class Release:
    """A published data set and the labels in it, by image path relative to `folder`.

    `labels` are the present ones. Labels in `uncertain` are marked as uncertain, and those in `blank` have a blank cell
    or no row; all others are absent. `split` is empty if the release does not divide the labeled images. `predict` is
    the folder with images for which no labels were published. `names` maps the label ids of the tables to class names.
    """

    folder: Path
    labels: Labels = field(default_factory=dict)
    uncertain: Labels = field(default_factory=dict)
    blank: Labels = field(default_factory=dict)
    split: dict[str, str] = field(default_factory=dict)
    predict: str | None = None
    names: dict[str, str] = field(default_factory=dict)


def draw_all(release: Release, classes: Sequence[str], rng: Generator, *, gray: bool = False) -> None:
    """Draw the labeled images of a release."""
    for path, present in release.labels.items():
        draw(release.folder / path, rng, [classes.index(name) for name in present], gray=gray)


def draw(path: Path, rng: Generator, present: Collection[int] = (), *, gray: bool = False) -> None:
    """Write an image of 8 × 8 dark cells with random colors; the cell of each present class is bright."""
    cells = rng.integers(0, 170, (8, 8, 3), dtype=np.uint8)
    for k in present:
        cells[k // 8, k % 8] = 255
    image = Image.fromarray(cells).resize((32, 32), Image.Resampling.NEAREST)
    if gray:
        image = image.convert("L")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def draw_unlabeled(folder: Path, names: Iterable[str], rng: Generator) -> None:
    """Draw images for which no labels were published."""
    for name in names:
        draw(folder / name, rng)


def write_table(
    path: Path, header: Sequence[str] | None, rows: Iterable[Sequence[object]], encoding: str = "utf-8"
) -> None:
    """Write a CSV file, with a header unless it is None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=encoding) as file:
        table = csv.writer(file, lineterminator="\n")
        if header:
            table.writerow(header)
        table.writerows(rows)


def ones_and_zeros(present: Collection[str], classes: Sequence[str]) -> list[int]:
    """Return a 1 for each class that is present and a 0 for each other class."""
    return [int(name in present) for name in classes]


def hex_id(rng: Generator, size: int) -> str:
    """Return a random id with two hexadecimal digits per byte."""
    return rng.bytes(size).hex()


PLANET_WEATHER = ("clear", "partly_cloudy", "haze", "cloudy")
PLANET_LAND = ("primary", "water", "habitation", "agriculture", "road", "cultivation", "bare_ground")
PLANET_RARE = ("slash_burn", "selective_logging", "blooming", "conventional_mine", "artisinal_mine", "blow_down")


def write_planet(folder: Path) -> Release:
    """Write Planet: Understanding the Amazon from Space, with the JPEG images.

    Tags are separated by spaces, and image names have no suffix. The sample submission gives every test image the same
    tags. The mapping is about the names of TIFF images, which are not part of this download.

    https://www.kaggle.com/c/planet-understanding-the-amazon-from-space/data
    """
    rng = np.random.default_rng(1)
    release = Release(folder, predict="test-jpg-v2")
    for i in range(90):
        release.labels[f"train-jpg/train_{i}.jpg"] = _planet_tags(rng, i)
    draw_all(release, (*PLANET_WEATHER, *PLANET_LAND, *PLANET_RARE), rng)
    rows = [(Path(path).stem, " ".join(sorted(tags))) for path, tags in release.labels.items()]
    write_table(folder / "train_v2.csv", ["image_name", "tags"], rows)
    test = [f"test_{i}" for i in range(9)] + [f"file_{i}" for i in range(5)]
    draw_unlabeled(folder / "test-jpg-v2", [f"{name}.jpg" for name in test], rng)
    submission = [(name, "primary clear agriculture road water") for name in test]
    write_table(folder / "sample_submission_v2.csv", ["image_name", "tags"], submission)
    mapping = [(f"file_{(i + 2) % 5}.tif", f"file_{i}.tif") for i in range(5)]
    write_table(folder / "test_v2_file_mapping.csv", ["old", "new"], mapping)
    return release


def _planet_tags(rng: Generator, number: int) -> set[str]:
    """Draw the tags of a tile: the weather, primary forest with other land, and in every other tile something rare."""
    weather = PLANET_WEATHER[number % 4]
    if weather == "cloudy":  # a tile that is fully covered has no other tag
        return {weather}
    tags = {weather, "primary"}
    for name in PLANET_LAND[1:]:
        if rng.random() < 0.3:
            tags.add(name)
    if number % 2:
        tags.add(PLANET_RARE[number // 4 % 6])
    return tags


IMET_ATTRIBUTES = {
    "0": "country::afghanistan",
    "20": "country::egypt",
    "147": "culture::american",
    "159": "culture::american or british",
    "340": "culture::french",
    "427": "culture::italian",
    "508": "culture::japan",
    "784": "dimension::small",
    "1143": "medium::bronze",
    "1660": "medium::gelatin silver print",
    "2281": "medium::silk",
    "2706": "tags::abstraction",
    "2902": "tags::flowers",
    "3024": "tags::inscriptions",
    "3193": "tags::men",
    "3451": "tags::women",
    "3473": "tags::zodiac",  # in no image
}


def write_imet(folder: Path) -> Release:
    """Write iMet Collection 2020, with 17 of its 3,474 attributes.

    Attributes are numbers separated by spaces, and their names are in labels.csv. The sample submission gives every
    test image the first three attributes.

    https://www.kaggle.com/c/imet-2020-fgvc7/data
    """
    rng = np.random.default_rng(2)
    release = Release(folder, predict="test", names=IMET_ATTRIBUTES)
    used = list(IMET_ATTRIBUTES)[:-1]
    for i in range(80):
        others = rng.choice(used, rng.integers(0, 5), replace=False).tolist()
        release.labels[f"train/{hex_id(rng, 16)}.png"] = {used[i % len(used)], *others}
    draw_all(release, used, rng)
    rows = [(Path(path).stem, " ".join(sorted(ids, key=int))) for path, ids in release.labels.items()]
    write_table(folder / "train.csv", ["id", "attribute_ids"], sorted(rows))
    write_table(folder / "labels.csv", ["attribute_id", "attribute_name"], IMET_ATTRIBUTES.items())
    test = sorted(hex_id(rng, 16) for _ in range(12))
    draw_unlabeled(folder / "test", [f"{name}.png" for name in test], rng)
    write_table(folder / "sample_submission.csv", ["id", "attribute_ids"], [(name, "0 1 2") for name in test])
    return release


LEAF_CLASSES_2020 = ("healthy", "multiple_diseases", "rust", "scab")


def write_plant_pathology_2020(folder: Path) -> Release:
    """Write Plant Pathology 2020: one folder with the training and test images, and one column per class.

    https://www.kaggle.com/c/plant-pathology-2020-fgvc7/data
    """
    rng = np.random.default_rng(3)
    release = Release(folder, predict="images")
    for i in range(80):
        k = int(rng.choice(4, p=(0.3, 0.1, 0.3, 0.3)))
        release.labels[f"images/Train_{i}.jpg"] = {LEAF_CLASSES_2020[k]}
    draw_all(release, LEAF_CLASSES_2020, rng)
    header = ["image_id", *LEAF_CLASSES_2020]
    rows = [[Path(path).stem, *ones_and_zeros(present, LEAF_CLASSES_2020)] for path, present in release.labels.items()]
    write_table(folder / "train.csv", header, rows)
    test = [f"Test_{i}" for i in range(20)]
    draw_unlabeled(folder / "images", [f"{name}.jpg" for name in test], rng)
    write_table(folder / "test.csv", ["image_id"], [(name,) for name in test])
    write_table(folder / "sample_submission.csv", header, [(name, 0.25, 0.25, 0.25, 0.25) for name in test])
    return release


LEAF_CLASSES_2021 = ("complex", "frog_eye_leaf_spot", "healthy", "powdery_mildew", "rust", "scab")
LEAF_LISTS_2021 = (
    *LEAF_CLASSES_2021,
    *("scab frog_eye_leaf_spot", "scab frog_eye_leaf_spot complex", "frog_eye_leaf_spot complex"),
    *("rust frog_eye_leaf_spot", "rust complex", "powdery_mildew complex"),
)


def write_plant_pathology_2021(folder: Path) -> Release:
    """Write Plant Pathology 2021: label lists separated by spaces, and three test images that serve as an example.

    https://www.kaggle.com/c/plant-pathology-2021-fgvc8/data
    """
    rng = np.random.default_rng(4)
    release = Release(folder, predict="test_images")
    lists = {f"{hex_id(rng, 8)}.jpg": LEAF_LISTS_2021[i % 12] for i in range(84)}
    for name, labels in lists.items():
        release.labels[f"train_images/{name}"] = set(labels.split())
    draw_all(release, LEAF_CLASSES_2021, rng)
    write_table(folder / "train.csv", ["image", "labels"], sorted(lists.items()))
    test = ["85f8cb619c66b863.jpg", "ad8770db05586b59.jpg", "c7b03e718489f3ca.jpg"]
    draw_unlabeled(folder / "test_images", test, rng)
    write_table(folder / "sample_submission.csv", ["image", "labels"], [(name, "healthy") for name in test])
    return release


OPEN_IMAGES_CLASSES = {
    "/m/011k07": "Tortoise",
    "/m/012074": "Magpie",
    "/m/01c648": "Laptop",
    "/m/01g317": "Person",
    "/m/024g6": "Cocktail",
    "/m/0271t": "Drink",
    "/m/02wbm": "Food",
    "/m/03bt1vf": "Woman",
    "/m/050k8": "Mobile phone",
    "/m/05s2s": "Plant",
    "/m/09tvcd": "Wine glass",
    "/m/0k4j": "Car",
}


def write_open_images(folder: Path, version: int = 6) -> Release:
    """Write the human-verified image labels of Open Images V6 or V4, with 12 of its classes.

    A row is a label of an image: Confidence is 1 if it is present and 0 if an annotator rejected it. Most pairs of an
    image and a class have no row. Classes are Freebase ids, whose names are in a second table. Images are named by
    their id. In V6, the training table and the class names have a prefix, and the table of names has a header.

    https://storage.googleapis.com/openimages/web/download_v6.html
    https://github.com/cvdfoundation/open-images-dataset
    """
    rng = np.random.default_rng(7)
    release = Release(folder, names=OPEN_IMAGES_CLASSES)
    prefix = "oidv6-" if version == 6 else ""
    tables = {
        "train": f"{prefix}train-annotations-human-imagelabels.csv",
        "validation": "validation-annotations-human-imagelabels.csv",
        "test": "test-annotations-human-imagelabels.csv",
    }
    for split, count in (("train", 60), ("validation", 15), ("test", 15)):
        rows: list[tuple[str, str, str, int]] = []
        for image in sorted(hex_id(rng, 8) for _ in range(count)):
            path = f"{split}/{image}.jpg"
            verified = rng.choice(list(OPEN_IMAGES_CLASSES), 5, replace=False).tolist()
            present = set(verified[: rng.integers(4)])
            release.labels[path] = present
            release.blank[path] = set(OPEN_IMAGES_CLASSES) - set(verified)
            release.split[path] = "val" if split == "validation" else split
            for label in sorted(verified):
                source = ("verification", "crowdsource-verification")[rng.integers(2)]
                rows.append((image, source, label, int(label in present)))
        write_table(folder / tables[split], ["ImageID", "Source", "LabelName", "Confidence"], rows)
    draw_all(release, list(OPEN_IMAGES_CLASSES), rng)
    header = ["LabelName", "DisplayName"] if version == 6 else None
    write_table(folder / f"{prefix}class-descriptions.csv", header, OPEN_IMAGES_CLASSES.items())
    return release


AMAZON = "https://images-na.ssl-images-amazon.com/images/M"
GENRES = ("Action", "Adventure", "Animation", "Comedy", "Crime", "Drama", "Family", "Horror", "Sci-Fi")
TITLES = ("Toy Story (1995)", "Jumanji (1995)", "Les Misérables (1995)", "Señorita, La (1996)", "Amélie: L'été (2001)")


def write_movie_posters(folder: Path) -> Release:
    """Write Movie Genre from its Poster, encoded as Latin-1; posters are named by the IMDb id.

    The last column is the address of the poster, whose file name is not the one on disk.

    https://www.kaggle.com/datasets/neha1703/movie-genre-from-its-poster
    """
    rng = np.random.default_rng(8)
    release = Release(folder)
    rows: list[list[object]] = []
    movies = rng.choice(np.arange(10040, 5_000_000), 80, replace=False).tolist()
    for i, movie in enumerate(movies):
        genres = [GENRES[i % 9]]
        for name in GENRES:
            if name != genres[0] and rng.random() < 0.2:
                genres.append(name)
        release.labels[f"SampleMoviePosters/{movie}.jpg"] = set(genres)
        link = f"http://www.imdb.com/title/tt{movie}"
        poster = f"{AMAZON}/MV5B{hex_id(rng, 9)}@._V1_UX182_CR0,0,182,268_AL_.jpg"
        score = round(rng.uniform(2, 9), 1)
        rows.append([movie, link, TITLES[i % 5], score, "|".join(genres), poster])
    draw_all(release, GENRES, rng)
    header = ["imdbId", "Imdb Link", "Title", "IMDB Score", "Genre", "Poster"]
    write_table(folder / "MovieGenre.csv", header, rows, encoding="latin-1")
    return release
