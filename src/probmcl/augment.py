"""Stage 2, image -> V views: augmentations that produce several views of an image with the same labels.

An augmentation takes an RGB image of any size and returns one of size x size (except `none`, which leaves resizing to
preprocessing). It uses only torch's global CPU generator, so `draw` can make every view reproducible.

`paper` follows the published code of ASL and KMCL, on which ProbMCL builds, and the `randaugment` package that both
use ("the package" below). Comments mark the differences.
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

from probmcl.data.images import resize_bilinear
from probmcl.runtime.torchvision_compat import transforms

Augmentation: TypeAlias = Callable[[Image.Image], Image.Image]
RGB: TypeAlias = tuple[int, int, int]

GRAY: RGB = (128, 128, 128)  # fills the area that a shifted or rotated image leaves empty
CUTOUT_GRAY: RGB = (125, 122, 113)  # as in the package; about the mean color of CIFAR-10
MAGNITUDES = 10  # magnitudes 0 to 9; 0 changes nothing and is never drawn
LUMA_CHROMA = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))  # RGB -> YIQ


def draw(
    augmentation: Augmentation, image: Image.Image, *, seed: int, epoch: int, index: int, view: int
) -> Image.Image:
    """Return view number `view` of image number `index` in an epoch; the result depends only on the arguments.

    During the call, torch's CPU generator is seeded with a hash of the four numbers. The view therefore does not depend
    on the number of workers or the order of the images, and the generator's state is restored afterwards.

    >>> image = Image.new("RGB", (8, 4), "navy")
    >>> first, again, other = (draw(paper(4), image, seed=0, epoch=0, index=7, view=v).tobytes() for v in (0, 0, 1))
    >>> first == again, first == other
    (True, False)
    """
    if image.mode != "RGB":
        raise ValueError(f"image {index}: expected mode 'RGB', got {image.mode!r}; call image.convert('RGB')")
    if min(seed, epoch, index, view) < 0:
        raise ValueError(f"{seed=}, {epoch=}, {index=} and {view=} must be at least 0")
    # One 32-bit word is enough: torch's CPU generator uses only the lowest 32 bits of a seed.
    (seed_of_view,) = np.random.SeedSequence(seed, spawn_key=(epoch, index, view)).generate_state(1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed_of_view))  # torch.manual_seed would also reseed the accelerators
        return augmentation(image)


def none(size: int) -> Augmentation:
    """Return the identity. Preprocessing then produces the same plain view as in validation and prediction.

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
    """Return a light augmentation, which preserves most labels: random crop, horizontal flip and color jitter.

    `scale` is the range of the crop's share of the area, `ratio` is the range of its width / height, and `flip` is a
    probability. For the other arguments, see `color_jitter`. If no such crop fits (as in panoramas wider than 8:3),
    torchvision takes a center crop.

    >>> light(4, flip=0.0)(Image.new("RGB", (9, 5))).size
    (4, 4)
    """
    crop = partial(random_crop, size=size, scale=scale, ratio=ratio)
    random_flip = transforms.RandomHorizontalFlip(flip)
    jitter = partial(color_jitter, brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
    # The crop comes first, so colors are changed on size x size pixels instead of the full image.
    return _compose(crop, random_flip, jitter)


def _compose(*steps: Augmentation) -> Augmentation:
    """Return an augmentation that applies the steps in this order."""
    composed: Augmentation = transforms.Compose(steps)
    return composed


def paper(size: int) -> Augmentation:
    """Return the augmentation used by ASL, KMCL and ProbMCL: resize, half-size cutout and two of fifteen operations.

    There is no flip. Reference: ProbMCL, section 3.1 ("RandAugment"), as in the code of ASL and KMCL.

    >>> paper(4)(Image.new("RGB", (9, 5))).size
    (4, 4)
    """
    resize = partial(squash, size=size)
    return _compose(resize, half_cutout, two_operations)


AUGMENTATIONS: Mapping[str, Callable[[int], Augmentation]] = MappingProxyType(
    {"light": light, "paper": paper, "none": none}
)


def squash(image: Image.Image, size: int) -> Image.Image:
    """Resize to size x size without keeping the aspect ratio.

    >>> squash(Image.new("RGB", (300, 2)), 5).size
    (5, 5)
    """
    return image.resize((size, size), Image.Resampling.BILINEAR)


def random_crop(
    image: Image.Image, *, size: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Image.Image:
    """Return a random crop resized to size x size, like torchvision's `RandomResizedCrop` but in half the time.

    >>> random_crop(Image.new("RGB", (9, 5)), size=4, scale=(0.5, 1.0), ratio=(1.0, 1.0)).size
    (4, 4)
    """
    top, left, height, width = transforms.RandomResizedCrop.get_params(image, list(scale), list(ratio))
    crop = image.crop((left, top, left + width, top + height))
    pixels = resize_bilinear(crop, size)  # (3, size, size)
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def color_jitter(
    image: Image.Image, *, brightness: float, contrast: float, saturation: float, hue: float
) -> Image.Image:
    """Randomly change brightness, contrast, saturation and hue in one pass.

    The first three factors are uniform in [max(0, 1 - x), 1 + x]; the hue shift is uniform within ± `hue` turns.

    >>> image = Image.new("RGB", (1, 1), "teal")
    >>> color_jitter(image, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0).getpixel((0, 0))
    (0, 128, 128)
    """
    # The order of the draws determines the colors for a given seed.
    brightness_factor = _draw_factor(brightness)
    contrast_factor = _draw_factor(contrast)
    saturation_factor = _draw_factor(saturation)
    turn = _draw_uniform(-hue, hue)
    return change_colors(image, brightness_factor, contrast_factor, saturation_factor, turn)


def _draw_factor(spread: float) -> float:
    """Draw a factor around 1, which is never negative."""
    return _draw_uniform(max(0.0, 1 - spread), 1 + spread)


def change_colors(
    image: Image.Image, brightness: float, contrast: float, saturation: float, turn: float
) -> Image.Image:
    """Scale brightness, contrast and saturation, and rotate the hue by `turn` turns.

    x -> b (c A x + (1 - c) m), where A keeps the luma of a color and scales and rotates its chroma (YIQ), and m is the
    mean luma of the image. Apart from rounding and clipping, the four changes commute, so one matrix can apply all of
    them. Applying them one by one, with the hue in HSV, takes seven times as long.

    >>> change_colors(Image.new("RGB", (1, 1), (100, 50, 30)), 2.0, 1.0, 1.0, 0.0).getpixel((0, 0))
    (200, 100, 60)
    """
    to_yiq = np.array(LUMA_CHROMA)
    cosine = saturation * math.cos(math.tau * turn)
    sine = saturation * math.sin(math.tau * turn)
    change_chroma = np.array([[1, 0, 0], [0, cosine, sine], [0, -sine, cosine]])  # red turns to yellow, as in HSV
    linear = brightness * contrast * np.linalg.inv(to_yiq) @ change_chroma @ to_yiq  # b c A

    mean_color = np.array(image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0)))
    mean_luma = float(to_yiq[0] @ mean_color)
    offset = brightness * (1 - contrast) * mean_luma  # the same for red, green and blue
    matrix = np.column_stack([linear, [offset] * 3])  # (3, 4), as Pillow expects it
    return image.convert("RGB", tuple(matrix.flatten().tolist()))


def cutout(image: Image.Image, width: int, height: int, color: RGB) -> Image.Image:
    """Cover a width x height rectangle centered on a uniformly drawn pixel; the rectangle may extend beyond the image.

    >>> cutout(Image.new("RGB", (1, 1)), 3, 3, (1, 2, 3)).getpixel((0, 0))
    (1, 2, 3)
    """
    left = _draw_integer(image.width) - width // 2
    top = _draw_integer(image.height) - height // 2
    right = min(left + width, image.width)
    bottom = min(top + height, image.height)
    covered = image.copy()
    covered.paste(color, (max(left, 0), max(top, 0), right, bottom))
    return covered


def half_cutout(image: Image.Image) -> Image.Image:
    """Cover a rectangle of half the image's width and height with a random color.

    This may hide a small object completely while its label remains.

    >>> half_cutout(Image.new("RGB", (6, 4))).size
    (6, 4)
    """
    color = (_draw_integer(256), _draw_integer(256), _draw_integer(256))
    half_width, half_height = (image.width + 1) // 2, (image.height + 1) // 2
    return cutout(image, half_width, half_height, color)


@dataclass(frozen=True)
class Operation:
    """An operation on images, with its levels at magnitude 0 and magnitude 9.

    >>> OPERATIONS["Rotate"].level(9)
    30.0
    """

    apply: Callable[[Image.Image, float], Image.Image]
    levels: tuple[float, float] = (0.0, 0.0)
    either_sign: bool = False  # the level is negated with probability 1/2

    def level(self, magnitude: int) -> float:
        """Return the level for a magnitude, using linear interpolation."""
        weakest, strongest = self.levels
        return weakest + (strongest - weakest) * magnitude / (MAGNITUDES - 1)

    def __call__(self, image: Image.Image, magnitude: int) -> Image.Image:
        """Apply the operation, with a random sign if `either_sign` is set."""
        level = self.level(magnitude)
        if self.either_sign and _draw_integer(2):
            level = -level
        return self.apply(image, level)


def _shear(image: Image.Image, x: float, y: float) -> Image.Image:
    """Shear by x pixels per row and y pixels per column, with bicubic interpolation.

    The upper left corner stays fixed, as in the package.
    """
    matrix = (1, x, 0, y, 1, 0)  # two rows: the position in `image` of a pixel of the result
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC, fillcolor=GRAY)


def _translate(image: Image.Image, x: float, y: float) -> Image.Image:
    """Shift to the left by the share x of the width, and up by the share y of the height."""
    matrix = (1, 0, x * image.width, 0, 1, y * image.height)  # two rows, as in `_shear`
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=GRAY)


def _enhanced(enhancer: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    """Return an operation that applies one of Pillow's enhancers with a factor from 0.1 to 1.9; 1 changes nothing."""
    return Operation(lambda image, x: enhancer(image).enhance(1 + x), (0.0, 0.9), either_sign=True)


# The fifteen operations, with the ranges and order of the package, where Rotate is always counterclockwise.
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "Invert": Operation(lambda image, _: ImageOps.invert(image)),
        # The package's square is one pixel smaller if the side is odd.
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
    """Draw two operations and their magnitudes, and apply each with probability 1/2.

    They are drawn independently, so they may be the same. A quarter of the images remain unchanged.

    >>> two_operations(Image.new("RGB", (6, 4))).size
    (6, 4)
    """
    operations = list(OPERATIONS.values())
    for _ in range(2):
        operation = operations[_draw_integer(len(operations))]
        magnitude = 1 + _draw_integer(MAGNITUDES - 1)
        if _draw_integer(2):
            image = operation(image, magnitude)
    return image


def _draw_integer(bound: int) -> int:
    """Draw an integer from 0 to `bound` − 1."""
    return int(torch.randint(bound, ()))


def _draw_uniform(low: float, high: float) -> float:
    """Draw a number from the uniform distribution between two bounds."""
    return low + (high - low) * float(torch.rand(()))
