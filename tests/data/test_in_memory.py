import re
from io import BytesIO
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image

from probmcl.data.images import Preprocessing
from probmcl.data.loader import Decoded, Source, decode, find
from probmcl.data.pixels import IntensityRange
from probmcl.errors import DataError

PLAIN = Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bilinear")
NOISE = np.random.default_rng(0).integers(0, 256, (70, 90, 4), dtype=np.uint8)
MODES = ["1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "LA", "PA", "RGBX", "RGBa", "La", "I;16"]


def decoded(*images: Source, preprocessing: Preprocessing = PLAIN) -> Decoded:
    (batch,) = decode(list(images), preprocessing, batch_size=99, workers=0)
    return batch


def saved(path: Path) -> Path:
    """Save noise in a mode that the name starts with; JPEG and PNG files are also rotated by EXIF."""
    exif = Image.Exif()
    exif[0x0112] = 6
    mode = path.name.split("-")[0]
    pixels = NOISE.astype(np.uint16)[..., 0] * 257 if mode == "I;16" else NOISE
    image = Image.fromarray(pixels) if mode == "I;16" else Image.fromarray(pixels).convert(mode)
    image.save(path, exif=exif)
    return path


FILES = ["RGB-a.jpg", "L-a.jpg", "CMYK-a.jpg", "RGB-a.png", "RGBA-a.png", "P-a.png", "LA-a.png", "I;16-a.png"]
FILES += ["RGBA-a.webp", "RGB-a.tif", "F-a.tif"]


@pytest.mark.parametrize("name", FILES)
def test_opened_image_is_decoded_like_its_file(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / name)
    preprocessing = Preprocessing(16, PLAIN.mean, PLAIN.std, intensity=IntensityRange(20.0, 50_000.0))
    with Image.open(path) as opened, Image.open(BytesIO(path.read_bytes())) as from_memory:
        batch = decoded(path, opened, from_memory, opened, preprocessing=preprocessing)
        assert batch.rows == [0, 1, 2, 3]
        for image in batch.images[1:]:
            assert torch.equal(image, batch.images[0])
        with Image.open(path) as other:
            assert np.array_equal(np.asarray(opened), np.asarray(other))  # it can be used afterwards
        assert opened.size == other.size
        assert opened.info == other.info
        loaded = decoded(opened, preprocessing=preprocessing).images[0]
    if not name.endswith(".jpg"):  # which is decoded at a reduced size
        assert torch.equal(loaded, batch.images[0])


def test_opened_image_is_not_loaded(tmp_path: Path) -> None:
    with Image.open(saved(tmp_path / "RGB-a.jpg")) as image:
        tile, position = list(image.tile), image.fp.tell() if image.fp else None
        decoded(image)
        assert image.tile == tile
        assert image.fp is not None
        assert image.fp.tell() == position


def test_loaded_jpeg_is_close_to_its_file(tmp_path: Path) -> None:
    smooth = Image.fromarray(NOISE[:5, :6, :3]).resize((400, 300), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "a.jpg", quality=90)
    with Image.open(tmp_path / "a.jpg") as image:
        image.load()
        first, second = decoded(tmp_path / "a.jpg", image).images
    assert not torch.equal(first, second)
    assert (first - second).abs().mean() < 0.02


def test_changes_of_pixels_are_used(tmp_path: Path) -> None:
    with Image.open(saved(tmp_path / "RGB-a.png")) as image:
        image.paste((0, 0, 0), (0, 0, 90, 70))
        assert (decoded(image).images == -1).all()
        assert image.getexif()[0x0112] == 6


def test_selected_frame_is_used(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (20, 20), color) for color in ("white", "black")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / "a.gif") as image:
        image.seek(1)
        assert (decoded(image).images == -1).all()


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_accepted(mode: str) -> None:
    batch = decoded(Image.new(mode, (20, 20)))
    assert batch.rows == [0], batch.errors


def test_arrays_and_tensors_equal_the_file_of_their_pixels(tmp_path: Path) -> None:
    for channels, name in ((3, "rgb.png"), (4, "rgba.png"), (1, "gray.png")):
        Image.fromarray(NOISE[..., 0] if channels == 1 else NOISE[..., :channels]).save(tmp_path / name)
    rgb, gray = torch.from_numpy(NOISE[..., :3]).permute(2, 0, 1), torch.from_numpy(NOISE[..., 0])
    color: list[Source] = [tmp_path / "rgb.png", NOISE[..., :3], rgb, rgb / 255, (rgb / 255).double().requires_grad_()]
    grays: list[Source] = [tmp_path / "gray.png", NOISE[..., 0], NOISE[..., :1], gray, gray[None], gray / 255]
    for sources in (color, grays, [tmp_path / "rgba.png", NOISE]):
        batch = decoded(*sources)
        assert batch.rows == list(range(len(sources)))
        assert all(torch.equal(image, batch.images[0]) for image in batch.images)


def test_images_in_memory_are_named_by_position(tmp_path: Path) -> None:
    path = saved(tmp_path / "RGB-a.png")
    batch = decoded(NOISE, path, Image.new("L", (8, 8)))
    assert [str(name) for name in batch.paths] == ["image 0", str(path), "image 2"]
    assert [item.path for item in find(NOISE)] == [Path("image 0")]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((2, 8, 8, 3), np.uint8), "image 1: got an array of shape (2, 8, 8, 3) and dtype uint8; pass a batch"),
        (torch.zeros(2, 3, 8, 8), "image 1: got a tensor of shape (2, 3, 8, 8) and dtype float32; pass a batch"),
        (np.zeros((8, 8, 3)), "dtype float64; convert it to uint8"),
        (np.zeros((3, 8, 8), np.uint8), "array.transpose(1, 2, 0)"),
        (torch.zeros(8, 8, 3), "tensor.permute(2, 0, 1)"),
        (np.zeros((8, 8), np.uint16), "dtype uint16; expected a path"),
        (np.zeros((8, 8), bool), "dtype bool; expected a path"),
        (np.zeros((0, 8), np.uint8), "shape (0, 8) and dtype uint8; expected a path"),
        (np.zeros(8, np.uint8), "shape (8,) and dtype uint8; expected a path"),
        (np.array(["a.jpg"]), "array.tolist()"),
        (torch.zeros(8, 8, dtype=torch.int64), "dtype int64; expected a path"),
        (torch.zeros(5, 8, 8), "shape (5, 8, 8) and dtype float32; expected a path"),
        (torch.full((8, 8), 1.5), "range from 1.5 to 1.5; floats must be between 0 and 1"),
        (torch.full((8, 8), -0.1), "range from -0.1 to -0.1"),
        (torch.tensor([[0.5, float("nan")]]), "floats must be between 0 and 1"),
        (7, "image 1: got an object of type int; expected a path"),
        (None, "image 1: got None; expected a path"),
        (["a.jpg"], "lists cannot be nested"),
        (b"a.jpg", "type bytes"),
    ],
)
def test_other_objects_are_an_error_before_anything_is_decoded(
    monkeypatch: pytest.MonkeyPatch, image: object, message: str
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside the tests
    with pytest.raises(DataError, match=re.escape(message)):
        find(["a.jpg", image])  # type: ignore[list-item]


def test_iterator_of_images_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside the tests
    with pytest.raises(DataError, match=r"type generator; pass a list, such as list\(images\)"):
        find(path for path in ["a.jpg"])  # type: ignore[arg-type]


def test_damaged_image_is_unreadable(tmp_path: Path) -> None:
    path = saved(tmp_path / "RGB-a.jpg")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with Image.open(path) as image, Image.open(path) as closed:
        closed.close()
        batch = decoded(path, image, closed)
    assert batch.rows == []
    assert [str(error.path) for error in batch.errors] == [str(path), "image 1", "image 2"]
    assert batch.errors[0].reason == batch.errors[1].reason
