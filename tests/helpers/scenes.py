"""Random pictures that differ as much as photographs, for tests that search for copies."""

import numpy as np
from PIL import Image, ImageDraw


def scene(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """Draw random boxes and discs on a colored background; every seed gives a different picture."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(rng.integers(60, 200, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for number in range(40):
        x, y = rng.uniform(0, size[0]), rng.uniform(0, size[1])
        width, height = rng.uniform(4, 40, 2)
        box = (x - width, y - height, x + width, y + height)
        color = tuple(rng.integers(0, 256, 3).tolist())
        (draw.rectangle if number % 2 else draw.ellipse)(box, fill=color)
    return image
