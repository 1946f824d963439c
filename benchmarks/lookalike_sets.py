"""Synthetic images that look similar without being copies: chest radiographs and tissue patches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

SIZE = 256
Plane = NDArray[np.float64]


def radiograph(seed: int) -> Image.Image:
    """Return a frontal chest radiograph whose lungs, ribs, spine and heart vary in position and size."""
    rng = np.random.default_rng(seed)
    down, along = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    along = along - rng.normal(0, 0.02)
    body = _body(rng, along, down)
    gray = 0.15 + 0.55 * body + _spine(rng, along, down) + _heart(rng, along, down)
    for side in (-1, 1):
        gray += _lung(rng, along, down, side)
    gray += 0.25 * body * _edge(down - 0.62 - rng.normal(0, 0.03) - 0.1 * np.abs(along), 18)  # the diaphragm
    gray = gray * (1 + rng.normal(0, 0.06)) + rng.normal(0, 0.02) + rng.normal(0, 0.015, gray.shape)
    return Image.fromarray((np.clip(gray, 0, 1) * 255).astype(np.uint8))


def tissue(seed: int) -> Image.Image:
    """Return a stained tissue section with dark nuclei on a pink background."""
    rng = np.random.default_rng(seed)
    stain = sum((_cloud(rng, points)[:, :, None] * np.array([5.0, 9.0, 6.0]) for points in (9, 40)), np.zeros(1))
    image = Image.fromarray(np.clip(np.array([225.0, 170.0, 200.0]) + stain, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(110, 160))):
        (x, y), (width, height) = rng.uniform(0, SIZE, 2), rng.uniform(3, 8, 2)
        color = np.clip(np.array([105, 70, 140]) + rng.normal(0, 12, 3), 0, 255).astype(int)
        draw.ellipse((x - width, y - height, x + width, y + height), fill=tuple(color.tolist()))
    pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(0.8))) + rng.normal(0, 4, (SIZE, SIZE, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _body(rng: np.random.Generator, along: Plane, down: Plane) -> Plane:
    width = 0.8 * (1 + rng.normal(0, 0.03)) * (0.55 + 0.45 * _edge(down + 0.72 + rng.normal(0, 0.03), 14))
    return _edge(width - np.abs(along), 25)


def _spine(rng: np.random.Generator, along: Plane, down: Plane) -> Plane:
    vertebrae = np.cos(2 * np.pi * down / (0.12 * (1 + rng.normal(0, 0.03))) + rng.normal(0, 0.4))
    return 0.2 * np.exp(-((along / 0.07) ** 2)) * (1 + 0.15 * vertebrae)


def _heart(rng: np.random.Generator, along: Plane, down: Plane) -> Plane:
    wide, high = 0.24 * (1 + rng.normal(0, 0.06)), 0.26 * (1 + rng.normal(0, 0.06))
    x, y = (along - 0.14 - rng.normal(0, 0.02)) / wide, (down - 0.22 - rng.normal(0, 0.03)) / high
    return 0.28 * np.exp(-((x**2 + y**2) ** 1.5))


def _lung(rng: np.random.Generator, along: Plane, down: Plane, side: int) -> Plane:
    """Return a dark lung with ribs and a collarbone."""
    wide, high, tilt = 0.27 * (1 + rng.normal(0, 0.04)), 0.52 * (1 + rng.normal(0, 0.04)), side * rng.normal(0.12, 0.03)
    x, y = along - side * 0.38 * (1 + rng.normal(0, 0.03)), down - rng.normal(0, 0.03)
    across, lengthwise = x * np.cos(tilt) - y * np.sin(tilt), x * np.sin(tilt) + y * np.cos(tilt)
    lung = _edge(1 - np.hypot(across / wide, lengthwise / high), 14)
    outward = np.abs(along)
    bend = down - 0.35 * (outward - 0.2) ** 2 + 0.12 * outward
    ribs = np.cos(2 * np.pi * bend / (0.155 * (1 + rng.normal(0, 0.03))) + rng.uniform(-0.8, 0.8))
    height = down + 0.62 + rng.normal(0, 0.015) + (0.09 + rng.normal(0, 0.015)) * outward
    bone = np.exp(-((height / 0.025) ** 2)) * (np.sign(along) == side) * (outward < 0.6)
    gray: Plane = lung * (0.05 * np.clip(ribs, -0.2, 1) - 0.38) + 0.1 * bone
    return gray


def _edge(inside: Plane, sharpness: float) -> Plane:
    """Return a smooth step: 0 outside, 1 inside."""
    return 1 / (1 + np.exp(-inside * sharpness))


def _cloud(rng: np.random.Generator, points: int) -> NDArray[np.float32]:
    coarse = Image.fromarray(rng.normal(0, 1, (points, points)).astype(np.float32))
    return np.asarray(coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC))
