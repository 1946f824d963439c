"""Stage 2, image -> V views: how one image becomes several that still carry its labels.

An augmentation takes an RGB image of any size and returns one of size x size (`none` leaves that to preprocessing). It
draws only from torch's global CPU generator, so that `draw` makes a view a function of its four numbers alone.

`paper` follows the published code of ASL and KMCL, which ProbMCL builds on, and the `randaugment` package that both
call ("the package" below); a comment says where it was silent or where we differ.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from probmcl.data.images import squashed
from probmcl.runtime.torchvision_compat import transforms

Augmentation: TypeAlias = Callable[[Image.Image], Image.Image]
RGB: TypeAlias = tuple[int, int, int]

GRAY: RGB = (128, 128, 128)  # what a moved image leaves open
CUTOUT_GRAY: RGB = (125, 122, 113)  # the package's choice, about the mean color of CIFAR-10
MAGNITUDES = 10  # levels of a range; level 0 changes nothing and is never drawn
LUMA_CHROMA = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))  # RGB -> YIQ


def draw(
    augmentation: Augmentation, image: Image.Image, *, seed: int, epoch: int, index: int, view: int
) -> Image.Image:
    """Make view number `view` of image number `index` in an epoch, the same wherever and whenever it is made.

    The four numbers are hashed into the state of torch's generator for the length of the call. Workers, their
    number and the order of the images therefore change nothing, and the caller's generator stays where it was.

    >>> image = Image.new("RGB", (8, 4), "navy")
    >>> first, again, other = (draw(paper(4), image, seed=0, epoch=0, index=7, view=v).tobytes() for v in (0, 0, 1))
    >>> first == again, first == other
    (True, False)
    """
    if image.mode != "RGB":
        raise ValueError(f"image {index} has mode {image.mode!r}, not 'RGB'; convert it with image.convert('RGB')")
    if min(seed, epoch, index, view) < 0:
        raise ValueError(f"{seed=}, {epoch=}, {index=}, {view=}: give none of them below 0")
    # One word: torch's CPU generator uses the lowest 32 bits of a seed and no more.
    state = np.random.SeedSequence(seed, spawn_key=(epoch, index, view)).generate_state(1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(state[0]))  # torch.manual_seed would also reseed the accelerators
        return augmentation(image)


def none(size: int) -> Augmentation:
    """The image as it is: preprocessing squashes it to the plain view that validation and prediction see too.

    >>> none(4)(Image.new("RGB", (8, 2))).size
    (8, 2)
    """
    identity: Augmentation = transforms.Identity()
    return identity


def light(
    size: int,
    *,
    scale: tuple[float, float] = (0.5, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    brightness: float = 0.3,
    contrast: float = 0.3,
    saturation: float = 0.3,
    hue: float = 0.05,
) -> Augmentation:
    """A view that keeps most labels: at least half of the image, perhaps mirrored, in slightly other colors.

    `scale` is the share of the area to crop and `ratio` the crop's width over height; the rest as in `color_jitter`.
    Where no such crop fits, as in a panorama beyond 8:3, torchvision takes the middle, which is less than half.

    >>> light(4, flip=0.0)(Image.new("RGB", (9, 5))).size
    (4, 4)
    """
    # The crop comes first: colors then change on size x size pixels and not on the whole photograph.
    crop = partial(random_crop, size=size, scale=scale, ratio=ratio)
    jitter = partial(color_jitter, brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
    return _compose(crop, transforms.RandomHorizontalFlip(flip), jitter)


def _compose(*steps: Augmentation) -> Augmentation:
    composed: Augmentation = transforms.Compose(steps)
    return composed


def paper(size: int) -> Augmentation:
    """The view that ASL, KMCL and ProbMCL train on: squash, half-size cutout, two operations of fifteen; no flip.

    Reference: ProbMCL, section 3.1 ("RandAugment"), as published with ASL and KMCL.

    >>> paper(4)(Image.new("RGB", (9, 5))).size
    (4, 4)
    """
    return _compose(partial(squash, size=size), half_cutout, two_operations)


AUGMENTATIONS: Mapping[str, Callable[[int], Augmentation]] = MappingProxyType(
    {"light": light, "paper": paper, "none": none}
)


def squash(image: Image.Image, size: int) -> Image.Image:
    """Resize to size x size, whatever the aspect ratio.

    >>> squash(Image.new("RGB", (300, 2)), 5).size
    (5, 5)
    """
    return image.resize((size, size), Image.Resampling.BILINEAR)


def random_crop(
    image: Image.Image, *, size: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Image.Image:
    """Draw a crop as torchvision's `RandomResizedCrop` does, and resize it to size x size in half its time.

    >>> random_crop(Image.new("RGB", (9, 5)), size=4, scale=(0.5, 1.0), ratio=(1.0, 1.0)).size
    (4, 4)
    """
    top, left, height, width = transforms.RandomResizedCrop.get_params(image, list(scale), list(ratio))
    crop = image.crop((left, top, left + width, top + height))
    return Image.fromarray(squashed(crop, size).permute(1, 2, 0).numpy())


def color_jitter(
    image: Image.Image, *, brightness: float, contrast: float, saturation: float, hue: float
) -> Image.Image:
    """Draw how colors change, and change them in one pass.

    The first three factors are uniform in [1 - x, 1 + x] (never below 0), the hue moves by up to ± `hue` turns.

    >>> image = Image.new("RGB", (1, 1), "teal")
    >>> color_jitter(image, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0).getpixel((0, 0))
    (0, 128, 128)
    """
    factors = [_uniform(max(0.0, 1 - spread), 1 + spread) for spread in (brightness, contrast, saturation)]
    return change_colors(image, factors[0], factors[1], factors[2], _uniform(-hue, hue))


def change_colors(
    image: Image.Image, brightness: float, contrast: float, saturation: float, turn: float
) -> Image.Image:
    """Scale brightness, contrast and saturation, and turn the hue by `turn` of the circle.

    x -> b (c A x + (1 - c) m), where A keeps the luma of a color, scales its two chroma axes (YIQ) by the
    saturation and rotates them, and m is the image's mean luma. Before rounding and clipping the four changes commute,
    so one matrix does them all, in any order. One after the other, and through HSV, they take seven times as long.

    >>> change_colors(Image.new("RGB", (1, 1), (100, 50, 30)), 2.0, 1.0, 1.0, 0.0).getpixel((0, 0))
    (200, 100, 60)
    """
    to_yiq = np.array(LUMA_CHROMA)
    across, along = saturation * math.cos(math.tau * turn), saturation * math.sin(math.tau * turn)
    chroma = np.array([[1, 0, 0], [0, across, along], [0, -along, across]])  # red turns to yellow, as in HSV
    linear = brightness * contrast * np.linalg.inv(to_yiq) @ chroma @ to_yiq
    mean = np.array(image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0)))
    offset = brightness * (1 - contrast) * float(to_yiq[0] @ mean)
    return image.convert("RGB", tuple(np.column_stack([linear, [offset] * 3]).flatten().tolist()))


def cutout(image: Image.Image, width: int, height: int, color: RGB) -> Image.Image:
    """Cover a width x height rectangle; its center is uniform over the pixels, and what lies outside is cut off.

    >>> cutout(Image.new("RGB", (1, 1)), 3, 3, (1, 2, 3)).getpixel((0, 0))
    (1, 2, 3)
    """
    left, top = _integer(image.width) - width // 2, _integer(image.height) - height // 2
    covered = image.copy()
    covered.paste(color, (max(left, 0), max(top, 0), min(left + width, image.width), min(top + height, image.height)))
    return covered


def half_cutout(image: Image.Image) -> Image.Image:
    """Cover a rectangle of half the height and half the width in one random color.

    A small object can vanish although its label stays: the price of the paper's setting.

    >>> half_cutout(Image.new("RGB", (6, 4))).size
    (6, 4)
    """
    color = (_integer(256), _integer(256), _integer(256))
    return cutout(image, (image.width + 1) // 2, (image.height + 1) // 2, color)


@dataclass(frozen=True)
class Operation:
    """One operation of the list: what it does to an image, and its level at magnitude 0 and at magnitude 9.

    >>> OPERATIONS["Rotate"].level(9)
    30.0
    """

    apply: Callable[[Image.Image, float], Image.Image]
    levels: tuple[float, float] = (0.0, 0.0)
    either_sign: bool = False  # the level's sign is drawn, half and half

    def level(self, magnitude: int) -> float:
        """Entry number `magnitude` of ten that are evenly spaced over the range."""
        first, last = self.levels
        return first + (last - first) * magnitude / (MAGNITUDES - 1)

    def __call__(self, image: Image.Image, magnitude: int) -> Image.Image:
        """Apply it at a magnitude, to a random side where it has two."""
        sign = -1 if self.either_sign and _integer(2) else 1
        return self.apply(image, sign * self.level(magnitude))


def _shear(image: Image.Image, x: float, y: float) -> Image.Image:
    # About the upper left corner and bicubic, as in the package.
    rows = (1, x, 0, y, 1, 0)
    return image.transform(image.size, Image.Transform.AFFINE, rows, Image.Resampling.BICUBIC, fillcolor=GRAY)


def _translate(image: Image.Image, x: float, y: float) -> Image.Image:
    rows = (1, 0, x * image.width, 0, 1, y * image.height)
    return image.transform(image.size, Image.Transform.AFFINE, rows, fillcolor=GRAY)


def _enhanced(enhancer: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return Operation(lambda image, x: enhancer(image).enhance(1 + x), (0.0, 0.9), either_sign=True)


# The fifteen operations with their ranges, in the package's order. Where a level has a sign it is drawn, except for
# Rotate, which turns one way only (anticlockwise), as in the package.
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "Invert": Operation(lambda image, _: ImageOps.invert(image)),
        # The package's square is one pixel smaller where the number is odd.
        "Cutout": Operation(lambda image, side: cutout(image, round(side), round(side), CUTOUT_GRAY), (0.0, 20.0)),
        "Sharpness": _enhanced(ImageEnhance.Sharpness),
        "AutoContrast": Operation(lambda image, _: ImageOps.autocontrast(image)),
        "Posterize": Operation(lambda image, bits: ImageOps.posterize(image, round(bits)), (8.0, 4.0)),
        "ShearX": Operation(lambda image, x: _shear(image, x, 0.0), (0.0, 0.3), either_sign=True),
        "TranslateX": Operation(lambda image, x: _translate(image, x, 0.0), (0.0, 150 / 331), either_sign=True),
        "TranslateY": Operation(lambda image, y: _translate(image, 0.0, y), (0.0, 150 / 331), either_sign=True),
        "ShearY": Operation(lambda image, y: _shear(image, 0.0, y), (0.0, 0.3), either_sign=True),
        "Rotate": Operation(lambda image, degrees: image.rotate(degrees, fillcolor=GRAY), (0.0, 30.0)),
        "Equalize": Operation(lambda image, _: ImageOps.equalize(image)),
        "Contrast": _enhanced(ImageEnhance.Contrast),
        "Color": _enhanced(ImageEnhance.Color),
        "Solarize": Operation(lambda image, bound: ImageOps.solarize(image, math.ceil(bound)), (256.0, 0.0)),
        "Brightness": _enhanced(ImageEnhance.Brightness),
    }
)


def two_operations(image: Image.Image) -> Image.Image:
    """Draw an ordered pair of operations with their magnitudes, and apply each with probability one half.

    A pair is one of (15 · 9)², so an operation may come twice; a quarter of the images stay as they are.

    >>> two_operations(Image.new("RGB", (6, 4))).size
    (6, 4)
    """
    operations = list(OPERATIONS.values())
    for _ in range(2):
        operation, magnitude = operations[_integer(len(operations))], 1 + _integer(MAGNITUDES - 1)
        if _integer(2):
            image = operation(image, magnitude)
    return image


def _integer(bound: int) -> int:
    return int(torch.randint(bound, ()))


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))
