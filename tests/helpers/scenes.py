"""Pictures that differ from each other as photographs do, for tests that look for copies."""

import numpy as np
from PIL import Image, ImageDraw


def scene(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """Boxes and discs of all sizes on a colored background, like no other scene."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(rng.integers(60, 200, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for number in range(40):
        x, y = rng.uniform(0, size[0]), rng.uniform(0, size[1])
        width, height = rng.uniform(4, 40, 2)
        place = (x - width, y - height, x + width, y + height)
        color = tuple(rng.integers(0, 256, 3).tolist())
        (draw.rectangle if number % 2 else draw.ellipse)(place, fill=color)
    return image
