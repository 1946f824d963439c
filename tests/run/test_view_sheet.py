from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFont

from helpers.images import colored_records
from probmcl.augment import light, none
from probmcl.data.images import Preprocessing
from probmcl.data.labels import LabelStates, State
from probmcl.data.records import Records
from probmcl.run.image_batches import ImageBatchSource
from probmcl.run.view_sheet import GAP, GRAY, LINE, TILE, Layout, choose, colors, views_sheet, written

ODD = Preprocessing(TILE, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
FONT = ImageFont.load_default(15)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return colored_records(tmp_path)


def with_labels(records: Records, names: list[str], present: list[int], unknown: list[int]) -> Records:
    """The first image alone, with these labels."""
    labels = np.zeros((1, len(names)), dtype=np.float32)
    labels[0, present] = 1
    known = np.ones(labels.shape, dtype=bool)
    known[0, unknown] = False
    return Records.from_labels(names, records.paths[:1], records.split[:1], labels, known)


def caption(sheet: Image.Image, layout: Layout) -> np.ndarray:
    """The caption of the first image; 0 is ink."""
    left, top = layout.corner(0)
    return np.array(sheet.crop((left, top, left + layout.width, top + LINE)))


def caption_of(records: Records) -> np.ndarray:
    small = Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    sheet = views_sheet(ImageBatchSource(records, small, none(16)), n_images=1, n_views=2)
    return caption(sheet, Layout(TILE, 1, 2))


def test_the_plain_view_is_what_the_encoder_gets_pixel_by_pixel(records: Records) -> None:
    feed = ImageBatchSource(records, ODD, light(TILE), seed=3)
    sheet, layout = views_sheet(feed, n_images=5, n_views=2), Layout(TILE, 5, 2)
    given = {int(row): batch.views[0, i] for batch in feed.plain("train") for i, row in enumerate(batch.rows)}
    for number, row in enumerate(choose(records, 5, seed=3)):
        shown = np.array(sheet.crop(layout.box(number, 0)))
        back = (given[row].permute(1, 2, 0) * torch.tensor(ODD.std) + torch.tensor(ODD.mean)) * 255
        assert np.abs(shown - back.numpy()).max() < 0.01


def test_the_augmented_views_are_those_of_the_first_epoch_of_training(records: Records) -> None:
    feed = ImageBatchSource(records, ODD, light(TILE), seed=1)
    batch = next(iter(feed.training(n_views=2, batch_size=24, epochs=1)))
    trained = dict(zip(batch.rows.tolist(), batch.views.unbind(1), strict=True))
    sheet, layout = views_sheet(feed, n_images=2, n_views=2), Layout(TILE, 2, 2)
    for number, row in enumerate(choose(records, 2, seed=1)):
        for view in range(2):
            shown = np.array(sheet.crop(layout.box(number, view + 1)))
            assert np.array_equal(shown, colors(trained[row][view], ODD))


def test_colors_are_exactly_those_before_preprocessing() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    plain = replace(ODD, size=16)
    assert np.array_equal(colors(plain.tensor(Image.fromarray(pixels)), plain), pixels)


@pytest.mark.parametrize(("size", "tile"), [(16, 160), (48, 144), (100, 100), (160, 160), (300, 160)])
def test_small_views_are_enlarged_by_whole_numbers_and_large_ones_reduced(
    records: Records, size: int, tile: int
) -> None:
    plain = Preprocessing(size, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    sheet = views_sheet(ImageBatchSource(records, plain, none(size)), n_images=3, n_views=1)
    layout = Layout(tile, 3, 1)
    assert sheet.size == layout.size
    view = np.array(sheet.crop(layout.box(2, 1)))
    assert (view != 255).any(axis=2).all()  # it fills its place: no image here has a white pixel
    if tile > size:
        factor = tile // size
        assert np.array_equal(view, view[::factor, ::factor].repeat(factor, axis=0).repeat(factor, axis=1))


def test_the_parts_of_a_sheet_do_not_touch() -> None:
    layout = Layout(tile=30, n_images=5, n_views=3)
    page = np.zeros(layout.size[::-1], dtype=int)
    for image in range(5):
        left, top = layout.corner(image)
        page[top : top + LINE, left : left + layout.width] += 1
        for view in range(4):
            left, top, right, bottom = layout.box(image, view)
            assert (right - left, bottom - top) == (30, 30)
            page[top:bottom, left:right] += 1
    assert page.max() == 1
    assert page.sum() == 5 * (layout.width * LINE + 4 * 30 * 30)  # nothing fell off the page
    assert not page[:LINE].any()
    assert not page[:, -GAP:].any()


def test_images_are_of_train_differ_and_show_every_class(records: Records) -> None:
    labels = np.zeros((42, 20), dtype=np.float32)
    labels[np.arange(20), np.arange(20)] = 1  # each class in one image, the others have none
    names = [f"class {k}" for k in range(20)]
    sparse = Records.from_labels(names, records.paths, records.split, labels)
    chosen = choose(sparse, 16, seed=0)
    assert len(set(chosen)) == 16
    assert labels[chosen].sum() == 16
    more = choose(sparse, 24, seed=0)
    assert sorted(more) == list(range(24))
    assert choose(sparse, 100, seed=0) == more


def test_a_label_that_is_not_known_draws_no_image(records: Records) -> None:
    states = records.states.dense()
    absent, unknown = states.copy(), states.copy()
    absent[:, 0], unknown[:, 0] = State.ABSENT, State.UNKNOWN
    one, other = (replace(records, states=LabelStates.from_states(made)) for made in (absent, unknown))
    assert choose(one, 10, seed=0) == choose(other, 10, seed=0)
    assert choose(one, 10, seed=0) != choose(records, 10, seed=0)


def test_another_seed_shows_other_images_and_the_same_seed_the_same(records: Records) -> None:
    assert choose(records, 6, seed=0) == choose(records, 6, seed=0)
    assert choose(records, 6, seed=0) != choose(records, 6, seed=1)


def test_fewer_images_than_asked_for_are_enough(records: Records) -> None:
    one = with_labels(records, ["a"], [0], [])
    assert views_sheet(ImageBatchSource(one, ODD, none(TILE))).size == Layout(TILE, 1, 4).size


def test_no_image_to_train_on_gives_an_empty_sheet(records: Records) -> None:
    tested = records.take(records.rows("test"))
    sheet = views_sheet(ImageBatchSource(tested, ODD, none(TILE)))
    assert sheet.getextrema() == ((255, 255),) * 3


def test_present_labels_are_black_and_unknown_ones_gray(records: Records) -> None:
    names = ["cat", "dog", "owl"]
    black, gray = np.array([0, 0, 0]), np.array(GRAY)
    present, both = caption_of(with_labels(records, names, [0], [])), caption_of(with_labels(records, names, [0], [2]))
    unknown = caption_of(with_labels(records, names, [], [2]))
    assert (present == black).all(axis=2).any()
    assert not (present == gray).all(axis=2).any()
    assert (both == black).all(axis=2).any()
    assert (both == gray).all(axis=2).any()
    assert not (unknown == black).all(axis=2).any()  # "no labels", then the unknown one


def test_many_labels_stay_within_their_image(records: Records) -> None:
    names = [f"a fairly long name {k}" for k in range(60)]
    for present, unknown in (([*range(60)], []), ([], [*range(60)]), ([*range(30)], [*range(30, 60)])):
        labeled = with_labels(records, names, present, unknown)
        feed = ImageBatchSource(labeled, replace(ODD, size=16), none(16))
        sheet, layout = views_sheet(feed, n_images=1, n_views=1), Layout(TILE, 1, 1)
        right = layout.corner(0)[0] + layout.width
        ink = np.array(sheet.convert("L"))[LINE : 2 * LINE] < 255
        assert ink[:, :right].any()
        assert not ink[:, right:].any()


def test_a_name_keeps_to_the_characters_that_the_font_has() -> None:
    assert written("dining table", 0, FONT) == "dining table"
    assert written("Äpfel", 3, FONT) == "Apfel"
    assert written("собака", 12, FONT) == "class 12"
    assert written("猫 cat", 4, FONT) == "class 4"
    assert written("x" * 100, 0, FONT) == "x" * 39 + "…"
