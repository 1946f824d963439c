import numpy as np
import pytest

from helpers.scenes import scene
from probmcl.data.duplicates.hashing import small_gray
from probmcl.data.duplicates.registration import TILE
from probmcl.data.duplicates.screening import MAX_PAIRS, screen


@pytest.mark.parametrize("flip", [False, True])
def test_a_cropped_copy_is_among_the_few_that_go_on(flip: bool) -> None:
    images = [scene(seed) for seed in range(40)]
    images += [image.crop((7, 4, 154, 113)).resize((99, 80)) for image in images[:5]]
    tiles = np.stack([small_gray(image, TILE) for image in images]).astype(np.uint8)
    if flip:
        tiles[40:] = tiles[40:, :, ::-1]
    ones, others = np.triu_indices(len(tiles), 1)
    keep = screen(tiles, ones, others, np.full(len(ones), flip))
    kept = set(zip(ones[keep].tolist(), others[keep].tolist(), strict=True))
    assert {(row, 40 + row) for row in range(5)} <= kept
    assert len(kept) <= 2 * MAX_PAIRS * len(tiles)
    assert len(kept) < len(ones) / 2


def test_an_image_with_few_pairs_keeps_them_all() -> None:
    tiles = np.stack([small_gray(scene(seed), TILE) for seed in range(6)]).astype(np.uint8)
    ones, others = np.triu_indices(6, 1)
    assert screen(tiles, ones, others, np.zeros(len(ones), dtype=bool)).all()
