from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.images import colored_records
from probmcl.augment import light, none
from probmcl.data.images import Preprocessing
from probmcl.data.labels import LabelStates, State
from probmcl.data.records import Records
from probmcl.run.activation_cache import ImageBatchSource
from probmcl.run.run_files import GAP, LINE, TILE, choose, drawable, pixels, views_sheet

PREPROCESSING = Preprocessing(TILE, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return colored_records(tmp_path)


def with_labels(records: Records, names: list[str], present: list[int], unknown: list[int]) -> Records:
    """Return records of the first image only, with the given labels."""
    labels = np.zeros((1, len(names)), dtype=np.float32)
    labels[0, present] = 1
    known = np.ones(labels.shape, dtype=bool)
    known[0, unknown] = False
    return Records.from_labels(names, records.paths[:1], records.split[:1], labels, known)


def corner(image: int, tile: int, n_views: int) -> tuple[int, int]:
    """Return the top left corner of the caption of an image."""
    width, height = (1 + n_views) * (tile + GAP) + 2 * GAP, LINE + tile + 2 * GAP
    return image % 2 * width + GAP, LINE + image // 2 * height


def view_of(sheet: Image.Image, image: int, view: int, *, n_views: int, tile: int = TILE) -> np.ndarray:
    left, top = corner(image, tile, n_views)
    left, top = left + view * (tile + GAP), top + LINE
    return np.array(sheet.crop((left, top, left + tile, top + tile)))


def caption_of(records: Records) -> np.ndarray:
    """Return the pixels of the caption of the only image."""
    small = Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    sheet = views_sheet(ImageBatchSource(records, small, none(16)), n_images=1, n_views=2)
    return np.array(sheet.crop((0, LINE, sheet.width, 2 * LINE)))


def test_the_plain_view_has_the_pixels_of_the_encoder_input(records: Records) -> None:
    source = ImageBatchSource(records, PREPROCESSING, light(TILE), seed=3)
    sheet = views_sheet(source, n_images=5, n_views=2)
    views = {int(row): batch.views[0, i] for batch in source.plain("train") for i, row in enumerate(batch.rows)}
    for number, row in enumerate(choose(records, 5, seed=3)):
        shown = view_of(sheet, number, 0, n_views=2)
        expected = (
            views[row].permute(1, 2, 0) * torch.tensor(PREPROCESSING.std) + torch.tensor(PREPROCESSING.mean)
        ) * 255
        assert np.abs(shown - expected.numpy()).max() < 0.01


def test_the_augmented_views_are_those_of_the_first_epoch_of_training(records: Records) -> None:
    source = ImageBatchSource(records, PREPROCESSING, light(TILE), seed=1)
    batch = next(iter(source.training(n_views=2, batch_size=24, epochs=1)))
    trained = dict(zip(batch.rows.tolist(), batch.views.unbind(1), strict=True))
    sheet = views_sheet(source, n_images=2, n_views=2)
    for number, row in enumerate(choose(records, 2, seed=1)):
        for view in range(2):
            shown = view_of(sheet, number, view + 1, n_views=2)
            assert np.array_equal(shown, pixels(trained[row][view], PREPROCESSING))


def test_pixels_inverts_the_normalization() -> None:
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    plain = replace(PREPROCESSING, size=16)
    assert np.array_equal(pixels(plain.tensor(Image.fromarray(gray)), plain), gray)


@pytest.mark.parametrize(("size", "tile"), [(16, 160), (48, 144), (100, 100), (160, 160), (300, 160)])
def test_small_views_are_enlarged_by_an_integer_and_large_ones_reduced(records: Records, size: int, tile: int) -> None:
    plain = Preprocessing(size, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    sheet = views_sheet(ImageBatchSource(records, plain, none(size)), n_images=3, n_views=1)
    view = view_of(sheet, 2, 1, n_views=1, tile=tile)
    assert (view != 255).any(axis=2).all()  # it fills its tile: no image has a white pixel
    if tile > size:
        factor = tile // size
        assert np.array_equal(view, view[::factor, ::factor].repeat(factor, axis=0).repeat(factor, axis=1))


def test_views_are_separated_by_white_gaps(records: Records) -> None:
    source = ImageBatchSource(records, PREPROCESSING, none(TILE))
    page = (np.array(views_sheet(source, n_images=5, n_views=3)) != 255).any(axis=2)
    left, top = corner(4, TILE, 3)
    assert page.shape == (top + LINE + TILE + 2 * GAP, 2 * (corner(1, TILE, 3)[0] - left))
    for image in range(5):
        left, top = corner(image, TILE, 3)
        for view in range(4):
            x, y = left + view * (TILE + GAP), top + LINE
            assert page[y : y + TILE, x : x + TILE].all()
            assert not page[y : y + TILE, x + TILE : x + TILE + GAP].any()
            assert not page[y + TILE : y + TILE + GAP, x : x + TILE].any()


def test_chosen_images_are_distinct_training_images_of_all_classes(records: Records) -> None:
    labels = np.zeros((42, 20), dtype=np.float32)
    labels[np.arange(20), np.arange(20)] = 1  # one image per class, and images without labels
    names = [f"class {k}" for k in range(20)]
    sparse = Records.from_labels(names, records.paths, records.split, labels)
    chosen = choose(sparse, 16, seed=0)
    assert len(set(chosen)) == 16
    assert labels[chosen].sum() == 16
    more = choose(sparse, 24, seed=0)
    assert sorted(more) == list(range(24))
    assert choose(sparse, 100, seed=0) == more


def test_unknown_labels_do_not_change_the_choice(records: Records) -> None:
    states = records.states.dense()
    absent, unknown = states.copy(), states.copy()
    absent[:, 0], unknown[:, 0] = State.ABSENT, State.UNKNOWN
    one, other = (replace(records, states=LabelStates.from_states(changed)) for changed in (absent, unknown))
    assert choose(one, 10, seed=0) == choose(other, 10, seed=0)
    assert choose(one, 10, seed=0) != choose(records, 10, seed=0)


def test_the_seed_decides_the_images(records: Records) -> None:
    assert choose(records, 6, seed=0) == choose(records, 6, seed=0)
    assert choose(records, 6, seed=0) != choose(records, 6, seed=1)


def test_a_sheet_of_fewer_images_is_smaller(records: Records) -> None:
    one = with_labels(records, ["a"], [0], [])
    sheet = views_sheet(ImageBatchSource(one, PREPROCESSING, none(TILE)))
    assert sheet.size == (corner(1, TILE, 4)[0] - GAP, corner(2, TILE, 4)[1])


def test_without_training_images_the_sheet_is_empty(records: Records) -> None:
    tested = records.take(records.rows("test"))
    sheet = views_sheet(ImageBatchSource(tested, PREPROCESSING, none(TILE)))
    assert sheet.getextrema() == ((255, 255),) * 3


def test_present_labels_are_black_and_unknown_ones_gray(records: Records) -> None:
    names = ["cat", "dog", "owl"]
    present, both = caption_of(with_labels(records, names, [0], [])), caption_of(with_labels(records, names, [0], [2]))
    unknown = caption_of(with_labels(records, names, [], [2]))  # "no labels" and "owl?"
    first, rest = both[:, :40], both[:, 40:]  # "cat" and "owl?"
    assert np.array_equal(first, present[:, :40])
    assert first.min() < 20
    assert present[:, 40:].min() == 255
    assert 105 <= rest.min() < 180
    assert 105 <= unknown.min() < 180


def test_many_labels_stay_within_the_width_of_their_image(records: Records) -> None:
    names = [f"a fairly long name {k}" for k in range(60)]
    for present, unknown in (([*range(60)], []), ([], [*range(60)]), ([*range(30)], [*range(30, 60)])):
        labeled = with_labels(records, names, present, unknown)
        source = ImageBatchSource(labeled, replace(PREPROCESSING, size=16), none(16))
        sheet = views_sheet(source, n_images=1, n_views=1)
        right = corner(0, TILE, 1)[0] + 2 * TILE + GAP
        ink = np.array(sheet.convert("L"))[LINE : 2 * LINE] < 255
        assert ink[:, :right].any()
        assert not ink[:, right:].any()


def test_names_use_characters_of_the_font() -> None:
    assert drawable("dining table", 0) == "dining table"
    assert drawable("A\u0308pfel", 3) == "Äpfel"
    assert drawable("собака", 12) == "собака"
    assert drawable("猫 cat", 4) == "class 4"
    assert drawable("x\u0301", 5) == "x"
    assert drawable("x" * 100, 0) == "x" * 39 + "…"
