import pickle
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from probmcl import augment
from probmcl.augment import AUGMENTATIONS, OPERATIONS, Augmentation
from probmcl.runtime.torchvision_compat import transforms

Pixels = npt.NDArray[np.uint8]
magnitudes = range(1, 10)
RED = (200, 10, 10)


def pixels(image: Image.Image) -> Pixels:
    return np.asarray(image)


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return smooth colored noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def seeded(augmentation: Augmentation, image: Image.Image, seed: int = 0) -> Image.Image:
    return augment.draw(augmentation, image, seed=seed, epoch=0, index=0, view=0)


def at(name: str, magnitude: int, image: Image.Image, seed: int = 0) -> Image.Image:
    return seeded(lambda picture: OPERATIONS[name](picture, magnitude), image, seed)


def with_sign(name: str, sign: int, magnitude: int, image: Image.Image) -> Image.Image:
    operation = OPERATIONS[name]
    return operation.apply(image, sign * operation.level(magnitude))


# --- draw -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_view_depends_only_on_its_four_numbers(name: str) -> None:
    augmentation, image = AUGMENTATIONS[name](16), photograph(30, 20)
    keys = [(seed, epoch, index, view) for seed in (0, 1) for epoch in (0, 1) for index in (0, 1) for view in (0, 1)]

    def views(keys: list[tuple[int, int, int, int]]) -> dict[tuple[int, int, int, int], bytes]:
        drawn = {}
        for seed, epoch, index, view in keys:
            torch.rand(3)  # the state of the global generator must not matter
            drawn[seed, epoch, index, view] = augment.draw(
                augmentation, image, seed=seed, epoch=epoch, index=index, view=view
            ).tobytes()
        return drawn

    forwards = views(keys)
    assert views(keys[::-1]) == forwards
    assert len(set(forwards.values())) == (1 if name == "none" else len(keys))


def recorded_draws(keys: list[tuple[int, int, int, int]]) -> npt.NDArray[np.float64]:
    draws: list[float] = []

    def record(image: Image.Image) -> Image.Image:
        draws.append(float(torch.rand((), dtype=torch.float64)))
        return image

    image = Image.new("RGB", (1, 1))
    for seed, epoch, index, view in keys:
        augment.draw(record, image, seed=seed, epoch=epoch, index=index, view=view)
    return np.array(draws)


@pytest.mark.parametrize("position", range(4))
def test_neighboring_keys_give_independent_uniform_draws(position: int) -> None:
    others = (3, 1, 4, 1)
    draws = recorded_draws([(*others[:position], n, *others[position + 1 :]) for n in range(2000)])  # type: ignore[misc]
    assert len(set(draws)) == len(draws)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4 / np.sqrt(len(draws))
    distance = np.abs(np.sort(draws) - (np.arange(len(draws)) + 0.5) / len(draws)).max()
    assert distance < 1.95 / np.sqrt(len(draws))  # Kolmogorov-Smirnov test, p = 0.001


def test_the_four_numbers_are_not_interchangeable() -> None:
    draws = recorded_draws([(1, 2, 3, 4), (2, 1, 3, 4), (1, 3, 2, 4), (1, 2, 4, 3), (10, 2, 3, 4), (1, 23, 0, 4)])
    assert len(set(draws)) == len(draws)


def test_all_bits_of_a_large_seed_are_used() -> None:
    draws = recorded_draws([(0, 0, 0, 0), (2**32, 0, 0, 0), (2**64, 0, 0, 0), (0, 1, 0, 0)])
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_global_generator_is_unchanged(name: str) -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    seeded(AUGMENTATIONS[name](8), photograph(20, 20))
    assert torch.equal(torch.get_rng_state(), before)


def test_global_generator_is_unchanged_after_an_error() -> None:
    def fail(image: Image.Image) -> Image.Image:
        torch.rand(1)
        raise OSError("broken")

    before = torch.get_rng_state()
    with pytest.raises(OSError, match="broken"):
        seeded(fail, photograph(4, 4))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_no_other_generator_is_used(name: str) -> None:
    def outcome() -> bytes:
        return b"".join(seeded(AUGMENTATIONS[name](8), photograph(20, 20), seed).tobytes() for seed in range(20))

    first, state = outcome(), np.random.get_state()  # noqa: NPY002 - the global generator is tested
    np.random.seed(99)  # noqa: NPY002
    random.seed(99)
    assert outcome() == first
    np.random.set_state(state)  # noqa: NPY002


def test_draw_requires_rgb() -> None:
    with pytest.raises(ValueError, match=r"image 0: .*'L'.*convert\('RGB'\)"):
        seeded(augment.none(4), Image.new("L", (4, 4)))


def test_draw_rejects_negative_numbers() -> None:
    with pytest.raises(ValueError, match="seed=0, epoch=-1"):
        augment.draw(augment.none(4), Image.new("RGB", (4, 4)), seed=0, epoch=-1, index=0, view=0)


# --- every augmentation ---------------------------------------------------------------------------------------------


@given(
    name=st.sampled_from(sorted(AUGMENTATIONS)),
    width=st.integers(1, 50),
    height=st.integers(1, 50),
    size=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
def test_view_is_rgb_of_the_requested_size(name: str, width: int, height: int, size: int, seed: int) -> None:
    view = seeded(AUGMENTATIONS[name](size), photograph(width, height), seed)
    expected = (width, height) if name == "none" else (size, size)
    assert (view.mode, view.size) == ("RGB", expected)


@pytest.mark.parametrize("name", ["light", "paper"])
@pytest.mark.parametrize("shape", [(1, 1), (3000, 2), (2, 3000), (500, 375)])
def test_extreme_aspect_ratios(name: str, shape: tuple[int, int]) -> None:
    for seed in range(20):
        view = seeded(AUGMENTATIONS[name](32), photograph(*shape), seed)
        assert (view.mode, view.size) == ("RGB", (32, 32))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_input_image_is_not_modified(name: str) -> None:
    image = photograph(16, 16)
    before = image.tobytes()
    for seed in range(30):
        seeded(AUGMENTATIONS[name](16), image, seed)
    assert image.tobytes() == before


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation_can_be_pickled(name: str) -> None:
    augmentation, image = AUGMENTATIONS[name](8), photograph(20, 20)
    sent = pickle.loads(pickle.dumps(augmentation))
    assert seeded(sent, image).tobytes() == seeded(augmentation, image).tobytes()


def test_augmentations_are_read_only() -> None:
    assert list(AUGMENTATIONS) == ["light", "paper", "none"]
    with pytest.raises(TypeError):
        AUGMENTATIONS["light"] = augment.none  # type: ignore[index]


# --- none and light -------------------------------------------------------------------------------------------------


def test_squash_ignores_the_aspect_ratio_and_is_deterministic() -> None:
    left_right = Image.new("RGB", (40, 4), "white")
    left_right.paste((0, 0, 0), (0, 0, 20, 4))
    before = torch.get_rng_state()
    view = pixels(augment.squash(left_right, 8))
    assert torch.equal(torch.get_rng_state(), before)
    assert (view[:, :3] == 0).all()
    assert (view[:, 5:] == 255).all()


def only_crop(size: int, scale: tuple[float, float], flip: float = 0.0) -> Augmentation:
    """Return a `light` augmentation with square crops and without color jitter."""
    no_jitter = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
    return augment.light(size, scale=scale, ratio=(1.0, 1.0), flip=flip, **no_jitter)


def test_light_without_changes_is_the_plain_view() -> None:
    image = photograph(24, 24)
    assert seeded(only_crop(12, (1.0, 1.0)), image).tobytes() == augment.squash(image, 12).tobytes()


def test_light_flips_with_probability_one() -> None:
    image = photograph(24, 24)
    mirrored = seeded(only_crop(12, (1.0, 1.0), flip=1.0), image)
    assert np.array_equal(pixels(mirrored), pixels(augment.squash(image, 12))[:, ::-1])


def test_light_keeps_at_least_half_of_the_area() -> None:
    # On a ramp from 0 to 250, the range of values in the view is proportional to the width of the crop.
    ramp = np.broadcast_to(np.linspace(0, 250, 251, dtype=np.uint8)[None, :, None], (251, 251, 3))
    crop = only_crop(64, (0.5, 1.0))
    shares = [np.ptp(pixels(seeded(crop, Image.fromarray(ramp), seed))) / 250 for seed in range(200)]
    assert min(shares) > np.sqrt(0.5) - 0.03
    assert max(shares) <= 1
    assert min(shares) < 0.75
    assert max(shares) > 0.96


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("quantity", ["brightness", "contrast", "saturation"])
def test_each_factor_agrees_with_torchvision(quantity: str, sign: int) -> None:
    soft = Image.fromarray((pixels(photograph(40, 30)) // 3 + 80).astype(np.uint8))  # far from clipping
    factors = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0} | {quantity: 1 + 0.3 * sign}
    oracle = getattr(transforms.functional, f"adjust_{quantity}")(soft, factors[quantity])
    ours = augment.change_colors(soft, **factors, turn=0.0)
    assert np.abs(pixels(ours).astype(int) - pixels(oracle)).max() <= 1


@pytest.mark.parametrize("order", list(permutations(["brightness", "contrast", "saturation"])))
def test_combined_factors_equal_any_sequence_of_single_factors(order: tuple[str, ...]) -> None:
    soft = Image.fromarray((pixels(photograph(40, 30)) // 3 + 80).astype(np.uint8))
    factors, expected = {"brightness": 0.8, "contrast": 1.3, "saturation": 0.7}, pixels(soft).astype(float)
    for quantity in order:
        luma = (expected @ [0.299, 0.587, 0.114])[..., None]
        middle = {"brightness": 0.0, "contrast": luma.mean(), "saturation": luma}[quantity]
        expected = middle + factors[quantity] * (expected - middle)
    assert np.abs(pixels(augment.change_colors(soft, **factors, turn=0.0)) - expected).max() < 1


@pytest.mark.parametrize("color", [(180, 90, 90), (90, 180, 90), (90, 90, 180), (170, 170, 100)])
@pytest.mark.parametrize("turn", [-0.05, 0.05])
def test_hue_rotation_keeps_the_luma(color: tuple[int, int, int], turn: float) -> None:
    image = Image.new("RGB", (1, 1), color)
    turned = augment.change_colors(image, 1.0, 1.0, 1.0, turn)
    hue = pixels(turned.convert("HSV"))[0, 0, 0] / 256 - pixels(image.convert("HSV"))[0, 0, 0] / 256
    moved = (hue + 0.5) % 1 - 0.5
    assert 0.5 < moved / turn < 2  # hue angles in YIQ and HSV are not proportional
    assert abs(int(pixels(turned.convert("L"))[0, 0]) - int(pixels(image.convert("L"))[0, 0])) <= 1


@given(st.tuples(*[st.integers(0, 255)] * 3), st.integers(-3, 3))
def test_whole_turns_change_nothing(color: tuple[int, int, int], turns: int) -> None:
    image = Image.new("RGB", (2, 2), color)
    assert augment.change_colors(image, 1.0, 1.0, 1.0, float(turns)).tobytes() == image.tobytes()


def test_color_jitter_covers_the_range_of_each_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, ...]] = []

    def record(image: Image.Image, *factors: float) -> Image.Image:
        drawn.append(factors)
        return image

    monkeypatch.setattr(augment, "change_colors", record)
    torch.manual_seed(0)
    for _ in range(500):
        augment.color_jitter(photograph(2, 2), brightness=0.3, contrast=0.2, saturation=1.5, hue=0.05)
    low, high = np.min(drawn, axis=0), np.max(drawn, axis=0)
    assert np.allclose(low, [0.7, 0.8, 0.0, -0.05], atol=0.02)
    assert np.allclose(high, [1.3, 1.2, 2.5, 0.05], atol=0.02)
    assert (low >= [0.7, 0.8, 0.0, -0.05]).all()
    assert (high <= [1.3, 1.2, 2.5, 0.05]).all()
    assert np.abs(np.corrcoef(np.array(drawn).T) - np.eye(4)).max() < 0.2


# --- the fifteen operations -----------------------------------------------------------------------------------------


def test_operations_have_the_ranges_of_the_paper() -> None:
    assert {name: operation.levels for name, operation in OPERATIONS.items()} == {
        "Invert": (0, 0),
        "Cutout": (0, 20),
        "Sharpness": (0, 0.9),
        "AutoContrast": (0, 0),
        "Posterize": (8, 4),
        "ShearX": (0, 0.3),
        "TranslateX": (0, 150 / 331),
        "TranslateY": (0, 150 / 331),
        "ShearY": (0, 0.3),
        "Rotate": (0, 30),
        "Equalize": (0, 0),
        "Contrast": (0, 0.9),
        "Color": (0, 0.9),
        "Solarize": (256, 0),
        "Brightness": (0, 0.9),
    }


@pytest.mark.parametrize("name", OPERATIONS)
def test_levels_are_evenly_spaced(name: str) -> None:
    operation = OPERATIONS[name]
    assert np.allclose([operation.level(m) for m in range(10)], np.linspace(*operation.levels, 10))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (33, 20)])
def test_operations_keep_mode_and_size(name: str, shape: tuple[int, int]) -> None:
    image = photograph(*shape)
    before = image.tobytes()
    for magnitude in magnitudes:
        for seed in range(4):
            changed = at(name, magnitude, image, seed)
            assert (changed.mode, changed.size) == ("RGB", shape)
            assert changed is not image
    assert image.tobytes() == before


@pytest.mark.parametrize("name", ["Sharpness", "Contrast", "Color", "Brightness", "Posterize", "Solarize"])
@pytest.mark.parametrize("sign", [1, -1])
def test_color_change_grows_with_the_magnitude(name: str, sign: int) -> None:
    image = photograph(60, 40)
    if not OPERATIONS[name].either_sign:
        sign = 1
    changed = [pixels(with_sign(name, sign, m, image)).astype(int) for m in magnitudes]
    # Solarize hardly changes mid-gray, so the changed pixels are counted instead.
    moved = [(c != pixels(image)).mean() if name == "Solarize" else np.abs(c - pixels(image)).mean() for c in changed]
    assert (np.diff(moved) >= 0).all()
    assert moved[-1] > 2 * moved[2] > 0


@pytest.mark.parametrize("name", ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Cutout"])
def test_visible_area_shrinks_with_the_magnitude(name: str) -> None:
    image = Image.new("RGB", (60, 60), RED)
    for seed in range(4):
        visible = [(pixels(at(name, m, image, seed)) == RED).all(-1).mean() for m in magnitudes]
        assert (np.diff(visible) <= 0).all()
        assert visible[-1] < visible[0] < 1


@pytest.mark.parametrize("name", ["Invert", "AutoContrast", "Equalize"])
def test_operations_without_a_level_ignore_the_magnitude(name: str) -> None:
    image = photograph(20, 20)
    assert len({at(name, m, image).tobytes() for m in magnitudes}) == 1


@pytest.mark.parametrize("name", OPERATIONS)
def test_sign_is_random_except_for_rotate(name: str) -> None:
    levels: list[float] = []

    def record(image: Image.Image, level: float) -> Image.Image:
        levels.append(level)
        return image

    operation, image = replace(OPERATIONS[name], apply=record), photograph(2, 2)
    torch.manual_seed(0)
    for _ in range(300):
        operation(image, 9)
    positive = float(np.mean([level > 0 for level in levels]))
    signed = {"Sharpness", "Contrast", "Color", "Brightness", "ShearX", "ShearY", "TranslateX", "TranslateY"}
    assert abs(positive - 0.5) < 0.1 if name in signed else len(set(levels)) == 1


def test_invert_is_255_minus_the_pixel() -> None:
    image = photograph(20, 20)
    assert np.array_equal(pixels(at("Invert", 1, image)), 255 - pixels(image))


@pytest.mark.parametrize("magnitude", magnitudes)
def test_solarize_inverts_pixels_above_the_threshold(magnitude: int) -> None:
    image, threshold = photograph(60, 40), 256 - 256 * magnitude / 9
    before = pixels(image)
    expected = np.where(before < threshold, before, 255 - before)
    assert np.array_equal(pixels(at("Solarize", magnitude, image)), expected)


@pytest.mark.parametrize("magnitude", magnitudes)
def test_posterize_keeps_the_highest_bits(magnitude: int) -> None:
    image, bits = photograph(60, 40), [8, 8, 7, 7, 6, 6, 5, 5, 4, 4][magnitude]
    step = 2 ** (8 - bits)
    assert np.array_equal(pixels(at("Posterize", magnitude, image)), pixels(image) // step * step)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("magnitude", magnitudes)
def test_brightness_multiplies_every_pixel(magnitude: int, sign: int) -> None:
    image = photograph(60, 40)
    expected = np.clip(pixels(image) * (1 + sign * 0.1 * magnitude), 0, 255)
    assert np.abs(pixels(with_sign("Brightness", sign, magnitude, image)) - expected).max() <= 1


@pytest.mark.parametrize("sign", [1, -1])
def test_contrast_scales_around_the_mean_and_color_around_gray(sign: int) -> None:
    image, factor = photograph(60, 40), 1 + sign * 0.5
    before, luma = pixels(image).astype(float), pixels(image.convert("L")).astype(float)[..., None]
    for name, middle in (("Contrast", luma.mean()), ("Color", luma)):
        expected = np.clip(middle + factor * (before - middle), 0, 255)
        assert np.abs(pixels(with_sign(name, sign, 5, image)) - expected).max() <= 1.5


def test_sharpness_enhances_and_softens_edges() -> None:
    step = Image.new("RGB", (8, 8), (100, 100, 100))
    step.paste((150, 150, 150), (4, 0, 8, 8))
    sharp, soft = (pixels(with_sign("Sharpness", sign, 9, step))[4, :, 0].astype(int) for sign in (1, -1))
    assert sharp[3] < 100 < soft[3]
    assert soft[4] < 150 < sharp[4]


def test_autocontrast_and_equalize_use_the_full_range() -> None:
    dull = Image.fromarray((pixels(photograph(60, 40)) // 4 + 90).astype(np.uint8))
    equalized, before = pixels(at("Equalize", 1, dull)), pixels(dull).astype(float)
    share = np.mean(equalized[..., None] <= np.arange(0, 256, 16), axis=(0, 1))  # uniform distribution
    assert np.abs(share - np.arange(0, 256, 16) / 255).max() < 0.06
    low, high = before.min((0, 1)), before.max((0, 1))
    assert np.abs(pixels(at("AutoContrast", 1, dull)) - 255 * (before - low) / (high - low)).max() <= 1


@pytest.mark.parametrize("magnitude", magnitudes)
@pytest.mark.parametrize("sign", [1, -1])
def test_translate_shifts_by_a_share_of_the_side_and_fills_with_gray(magnitude: int, sign: int) -> None:
    image = photograph(331, 110)
    moved = pixels(with_sign("TranslateX", sign, magnitude, image))
    columns = round(150 * magnitude / 9)
    if sign < 0:
        moved, before = moved[:, ::-1], pixels(image)[:, ::-1]
    else:
        before = pixels(image)
    assert (moved[:, 331 - columns + 1 :] == 128).all()
    assert any(np.array_equal(moved[:, : 331 - c], before[:, c:]) for c in (columns - 1, columns, columns + 1))
    down = pixels(with_sign("TranslateY", 1, 9, image))
    assert (down[110 - 49 :] == 128).all()
    assert np.array_equal(down[: 110 - 50], pixels(image)[50:])


def test_shear_keeps_the_first_line_and_shifts_the_last() -> None:
    image = Image.new("RGB", (100, 100), RED)
    for name in ("ShearX", "ShearY"):
        line = pixels(with_sign(name, 1, 9, image))
        line = line if name == "ShearX" else line.transpose(1, 0, 2)
        filled = (line == 128).all(-1).sum(1)
        assert filled[0] <= 1
        assert abs(int(filled[99]) - 30) <= 2


def test_rotate_is_counterclockwise_up_to_30_degrees() -> None:
    image = Image.new("RGB", (101, 101))
    image.paste(RED, (88, 47, 95, 54))  # to the right of the center, at the same height
    rows, columns = np.nonzero(pixels(at("Rotate", 9, image))[..., 0] == RED[0])
    angle = np.degrees(np.arctan2(50 - rows.mean(), columns.mean() - 50))
    assert abs(angle - 30) < 1
    assert tuple(pixels(at("Rotate", 9, image))[0, 0]) == (128, 128, 128)


# --- cutout ---------------------------------------------------------------------------------------------------------


def covered_box(image: Image.Image, color: tuple[int, int, int]) -> tuple[int, int, int, int]:
    rows, columns = np.nonzero((pixels(image) == color).all(-1))
    left, top, right, bottom = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    assert len(rows) == (right - left) * (bottom - top)  # a rectangle without holes
    return int(left), int(top), int(right), int(bottom)


@given(
    width=st.integers(1, 30),
    height=st.integers(1, 30),
    box=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 10**6),
)
def test_cutout_covers_a_rectangle_around_its_center(width: int, height: int, box: tuple[int, int], seed: int) -> None:
    covered = seeded(lambda image: augment.cutout(image, *box, RED), Image.new("RGB", (width, height)), seed)
    left, top, right, bottom = covered_box(covered, RED)
    for low, high, side, length in ((left, right, box[0], width), (top, bottom, box[1], height)):
        # The extent must match some center in the image.
        starts = [center - side // 2 for center in range(length)]
        assert (low, high) in {(max(start, 0), min(start + side, length)) for start in starts}


def test_half_cutout_covers_a_quarter_and_is_clipped_at_the_border() -> None:
    image = Image.new("RGB", (40, 20))
    areas, lefts = [], []
    for seed in range(400):
        changed = seeded(augment.half_cutout, image, seed)
        left, top, right, bottom = covered_box(changed, color_of(changed))
        areas.append((right - left) * (bottom - top))
        lefts.append((left, right))
    assert max(areas) == 20 * 10
    assert min(areas) < 80  # a corner: a quarter of the rectangle is 50
    assert {right - left for left, right in lefts if left > 0 and right < 40} == {20}
    assert {left for left, _ in lefts} == set(range(30))  # centers 0..39 minus 10, clipped at 0
    # The mean length along a side is the mean of the clipped length over all centers; the sides are independent.
    means = [np.mean([min(c + s // 2, 2 * s) - max(c - s // 2, 0) for c in range(2 * s)]) for s in (20, 10)]
    assert abs(np.mean(areas) / (means[0] * means[1]) - 1) < 0.05


def color_of(image: Image.Image) -> tuple[int, int, int]:
    """Return the only color that is not black."""
    colors = np.unique(pixels(image).reshape(-1, 3), axis=0)
    red, green, blue = colors[colors.any(1)][0].tolist()
    return red, green, blue


def test_half_cutout_draws_any_color() -> None:
    colors = np.array([color_of(seeded(augment.half_cutout, Image.new("RGB", (8, 8)), s)) for s in range(400)])
    assert (colors.min(0) < 8).all()
    assert (colors.max(0) > 247).all()
    assert np.abs(np.corrcoef(colors.T) - np.eye(3)).max() < 0.2


@pytest.mark.parametrize("magnitude", magnitudes)
def test_cutout_operation_covers_up_to_20_pixels(magnitude: int) -> None:
    sides = set()
    for seed in range(60):
        left, top, right, bottom = covered_box(
            at("Cutout", magnitude, Image.new("RGB", (90, 90)), seed), (125, 122, 113)
        )
        sides |= {right - left, bottom - top}
    assert max(sides) == [0, 2, 4, 7, 9, 11, 13, 16, 18, 20][magnitude]


# --- paper ----------------------------------------------------------------------------------------------------------


def test_a_quarter_of_the_images_is_unchanged_by_two_operations() -> None:
    image = photograph(4, 4)
    torch.manual_seed(0)
    untouched = np.mean([augment.two_operations(image) is image for _ in range(4000)])
    assert abs(untouched - 0.25) < 0.025  # 3.6 standard deviations


def test_pairs_are_ordered_with_replacement_and_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    history: list[list[tuple[str, int]]] = []

    def recorder(name: str) -> Callable[[Image.Image, int], Image.Image]:
        def record(image: Image.Image, magnitude: int) -> Image.Image:
            history[-1].append((name, magnitude))
            return image

        return record

    monkeypatch.setattr(augment, "OPERATIONS", {name: recorder(name) for name in OPERATIONS})
    torch.manual_seed(0)
    image = photograph(2, 2)
    for _ in range(15_000):
        history.append([])
        augment.two_operations(image)
    lengths = Counter(map(len, history))
    assert np.allclose([lengths[n] / 15_000 for n in (0, 1, 2)], [0.25, 0.5, 0.25], atol=0.015)
    single = Counter(choice for applied in history for choice in applied)
    assert set(single) == {(name, magnitude) for name in OPERATIONS for magnitude in magnitudes}
    counts = np.array(list(single.values()))
    chi_squared = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert 134 - 4 * np.sqrt(2 * 134) < chi_squared < 134 + 4 * np.sqrt(2 * 134)  # 135 equally likely choices
    pairs = Counter((first[0], second[0]) for first, second in (h for h in history if len(h) == 2))
    assert len(pairs) == 15 * 15  # either order, and each with itself


def test_paper_is_squash_then_half_cutout_then_two_operations() -> None:
    image = photograph(50, 20)

    def by_hand(image: Image.Image) -> Image.Image:
        resized = image.resize((16, 16), Image.Resampling.BILINEAR)
        return augment.two_operations(augment.half_cutout(resized))

    for seed in range(10):
        assert seeded(augment.paper(16), image, seed).tobytes() == seeded(by_hand, image, seed).tobytes()


def test_paper_does_not_crop_wide_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "OPERATIONS", {"Nothing": augment.Operation(lambda image, _: image)})
    wide = Image.new("RGB", (400, 10), "black")
    wide.paste((0, 0, 255), (0, 0, 80, 10))
    wide.paste((0, 255, 0), (320, 0, 400, 10))
    ends = [pixels(seeded(augment.paper(20), wide, seed))[:, [0, 19]].reshape(-1, 3).tolist() for seed in range(20)]
    assert all(
        [0, 0, 255] in end and [0, 255, 0] in end for end in ends
    )  # a cutout of half the size never covers a full side


def test_paper_always_covers_a_part_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "OPERATIONS", {"Nothing": augment.Operation(lambda image, _: image)})
    image = photograph(16, 16)
    changed = [(pixels(seeded(augment.paper(16), image, seed)) != pixels(image)).any(-1).mean() for seed in range(100)]
    assert min(changed) >= 16 / 256 * 0.9
    assert max(changed) <= 0.25
