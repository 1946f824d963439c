"""Random pictures that differ as much as photographs, for tests that search for copies."""

import numpy as np
from PIL import Image, ImageDraw


def scene(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """Draw random boxes and discs on a colored background; every seed gives a different picture."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(rng.integers(60, 200, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for number in range(40):
        x = rng.uniform(0, size[0])
        y = rng.uniform(0, size[1])
        half_width, half_height = rng.uniform(4, 40, 2)
        box = (x - half_width, y - half_height, x + half_width, y + half_height)
        color = tuple(rng.integers(0, 256, 3).tolist())
        if number % 2:
            draw.rectangle(box, fill=color)
        else:
            draw.ellipse(box, fill=color)
    return image
