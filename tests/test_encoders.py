import http.server
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from probmcl import encoders
from probmcl.encoders import Encoder, Extracted, WeightsError, halves, millions, with_maps

import timm  # isort: skip

LITE0 = Path(__file__).parents[1] / "../shared/data/weights/tf_efficientnet_lite0_in1k.safetensors"
REVISION = "0123456789abcdef0123456789abcdef01234567"

SMALL = {  # one of each kind: side of the image, features
    "test_resnet": (64, 96),
    "resnet10t": (32, 512),
    "tf_efficientnet_lite0": (64, 1280),
    "mobilenetv3_small_050": (64, 1024),  # its head widens 288 pooled maps
    "efficientvit_b0": (64, 1280),  # 128
    "ghostnet_050": (64, 1280),  # 480
    "test_mambaout": (64, 256),  # 64
    "convnext_atto": (64, 320),
    "regnetx_002": (64, 368),
    "poolformer_s12": (32, 512),  # says nothing of its head
    "test_vit": (32, 64),
    "vit_tiny_patch16_224": (64, 192),
    "deit_tiny_distilled_patch16_224": (32, 192),
    "swin_tiny_patch4_window7_224": (64, 768),
    "mixer_s32_224": (64, 512),
    "cait_xxs24_224": (32, 192),
}


def images(side: int, number: int = 2) -> Tensor:
    return torch.rand(number, 3, side, side, generator=torch.Generator().manual_seed(0))


def ready(name: str, image_size: int | None = None) -> Encoder:
    torch.manual_seed(0)
    return Encoder(name, image_size=image_size).eval()


def timms_weights(name: str, path: Path) -> dict[str, Tensor]:
    """Write a file as timm would, classifier included, and say what is in it."""
    torch.manual_seed(1)
    state: dict[str, Tensor] = timm.create_model(name).state_dict()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path)
    return state


def without(classifier: tuple[str, ...], state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.startswith(classifier)}


def same(model: nn.Module, state: dict[str, Tensor]) -> bool:
    own = model.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[key], state[key]) for key in own)


# Models by name


@pytest.mark.parametrize(
    ("name", "features", "millions"),
    [("tresnet_m", 2048, 29.340), ("tresnet_l", 2432, 53.556), ("tresnet_v2_l", 2048, 44.126)],
)
def test_the_encoders_of_the_paper_have_the_published_sizes(name: str, features: int, millions: float) -> None:
    encoder = ready(name, image_size=64)
    assert encoder.features == features
    assert round(sum(parameter.numel() for parameter in encoder.parameters()) / 1e6, 3) == millions
    with torch.no_grad():
        pooled, maps = encoder(images(64)), encoder.maps(images(64))
    assert pooled.shape == (2, features)
    assert maps.shape == (2, features, 2, 2)
    torch.testing.assert_close(maps.mean((2, 3)), pooled)
    assert pooled.std(0).max() > 0  # the two images are told apart


@pytest.mark.parametrize("name", SMALL)
def test_features_is_the_size_of_what_comes_out(name: str) -> None:
    side, features = SMALL[name]
    encoder = ready(name, image_size=side)
    with torch.no_grad():
        pooled = encoder(images(side, 3))
    assert pooled.shape == (3, encoder.features) == (3, features)
    assert pooled.isfinite().all()


def test_the_classifier_is_gone_and_gradients_reach_the_first_layer() -> None:
    encoder = ready("test_resnet")
    with_classifier = sum(parameter.numel() for parameter in timm.create_model("test_resnet").parameters())
    assert with_classifier - sum(parameter.numel() for parameter in encoder.parameters()) == (96 + 1) * 1000
    encoder(images(64)).square().sum().backward()
    first = next(encoder.parameters())
    assert first.grad is not None
    assert first.grad.abs().min() > 0


@pytest.mark.parametrize(
    ("name", "mean", "std", "side", "interpolation"),
    [
        ("tresnet_m", 0.0, 1.0, 224, "bilinear"),
        ("tresnet_m.miil_in1k_448", 0.0, 1.0, 448, "bilinear"),
        ("test_resnet", 0.5, 0.5, 160, "bilinear"),
        ("vit_tiny_patch16_384", 0.5, 0.5, 384, "bicubic"),
    ],
)
def test_what_the_images_need_travels_with_the_model(
    name: str, mean: float, std: float, side: int, interpolation: str
) -> None:
    with torch.device("meta"):
        encoder = Encoder(name)
    assert (encoder.name, encoder.mean, encoder.std) == (name, (mean,) * 3, (std,) * 3)
    assert (encoder.image_size, encoder.interpolation) == (side, interpolation)


def test_channels_may_have_means_of_their_own() -> None:
    encoder = ready("resnet10t")
    assert encoder.mean == (0.485, 0.456, 0.406)
    assert encoder.std == (0.229, 0.224, 0.225)


@pytest.mark.parametrize(("name", "side"), [("test_vit", 32), ("test_vit", 192), ("test_resnet", 96)])
def test_another_image_size_than_the_models_own_works(name: str, side: int) -> None:
    encoder = ready(name, image_size=side)
    assert encoder.image_size == side
    assert encoder(images(side)).shape == (2, encoder.features)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("resnet5O", "resnet50"), ("tresnet-m", "tresnet_m"), ("tresnet_v2l.miil_in21k", "tresnet_v2_l")],
)
def test_an_unknown_model_names_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"no model '{wrong}'; did you mean .*\b{near}\b"):
        Encoder(wrong)


@pytest.mark.parametrize("name", ["", "!!!", "vit_tiny_patch16_224_in21k"])
def test_a_name_that_timm_does_not_have_or_has_given_up_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"timm has no model '{name}'"):
        Encoder(name)


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("tresnet_m.miil_in22k", "miil_in1k, miil_in1k_448, miil_in21k, miil_in21k_ft_in1k"),
        ("convnext_atto_rms.a1_in1k", "none"),
    ],
)
def test_an_unknown_tag_lists_those_there_are(name: str, tags: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: .*There are: {tags}$"):
        Encoder(name)


def test_a_model_that_does_not_pool_is_named() -> None:
    encoder = ready("test_resnet")
    encoder.model.reset_classifier(0, "")
    with pytest.raises(ValueError, match=r"test_resnet gives \(96, 2, 2\) instead of 96 pooled features; choose"):
        encoder(images(64))


# Maps


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("test_resnet", 64),
        ("test_resnet", 160),
        ("tf_efficientnet_lite0", 64),
        ("regnetx_002", 64),
        ("swin_tiny_patch4_window7_224", 64),
        ("mixer_s32_224", 96),
    ],
)
def test_the_mean_of_the_maps_is_the_feature_of_a_model_that_averages(name: str, side: int) -> None:
    encoder = ready(name, image_size=side)
    with torch.no_grad():
        maps, pooled = encoder.maps(images(side)), encoder(images(side))
    assert maps.shape[:2] == pooled.shape
    torch.testing.assert_close(maps.mean((2, 3)), pooled)


@pytest.mark.parametrize(
    ("name", "side", "before"),
    [
        ("test_vit", 48, 1),
        ("deit_tiny_distilled_patch16_224", 48, 2),
        ("cait_xxs24_224", 48, 1),  # does not say that it has a class token
        ("mixer_s32_224", 96, 0),  # does not say that it has none
    ],
)
def test_tokens_are_laid_out_row_by_row_without_those_before_them(name: str, side: int, before: int) -> None:
    encoder = ready(name, image_size=side)
    with torch.no_grad():
        maps, tokens = encoder.maps(images(side)), encoder.model.forward_features(images(side))
    assert maps.shape == (2, encoder.features, 3, 3)
    for row in range(3):
        for column in range(3):
            assert torch.equal(maps[:, :, row, column], tokens[:, before + 3 * row + column])


@pytest.mark.parametrize(("name", "channels"), [("swin_tiny_patch4_window7_224", 768), ("test_mambaout", 64)])
def test_a_model_with_channels_last_gives_maps_with_channels_first(name: str, channels: int) -> None:
    encoder = ready(name, image_size=96)
    with torch.no_grad():
        maps, places = encoder.maps(images(96)), encoder.model.forward_features(images(96))
    assert maps.shape == (2, channels, 3, 3)
    for row in range(3):
        for column in range(3):
            assert torch.equal(maps[:, :, row, column], places[:, row, column])


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_mambaout"])
def test_maps_lie_where_the_image_changed(name: str) -> None:
    encoder = ready(name, image_size=160)
    plain, marked = images(160, 1), images(160, 1)
    marked[:, :, :32, 128:] = 0  # the upper right corner
    with torch.no_grad():
        change = (encoder.maps(marked) - encoder.maps(plain)).abs().sum(1)[0]
    assert change[:, : change.shape[1] // 2].sum() < change[:, change.shape[1] // 2 :].sum()
    assert change[change.shape[0] // 2 :].sum() < change[: change.shape[0] // 2].sum()


def test_maps_follow_an_image_that_is_not_square() -> None:
    assert ready("test_resnet").maps(torch.rand(1, 3, 64, 96)).shape == (1, 96, 2, 3)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("pit_ti_224", r"its tokens \(1\) are no square map"), ("efficientvim_m1", "maps of several sizes")],
)
def test_a_model_without_a_map_says_so(name: str, complaint: str) -> None:
    encoder = ready(name)
    with pytest.raises(ValueError, match=f"{name}.*{complaint}; choose another model"):
        encoder.maps(images(encoder.image_size, 1))


# Weights from nowhere and from a file


def test_without_weights_the_seed_decides() -> None:
    first, again = ready("test_resnet"), ready("test_resnet")
    other = Encoder("test_resnet")  # continues the stream of random numbers
    assert same(first, again.state_dict())
    assert not same(first, other.state_dict())


@pytest.mark.parametrize(
    ("name", "classifier"),
    [
        ("test_resnet", ("fc.",)),
        ("test_convnext", ("head.fc.",)),
        ("mobilenetv3_small_050", ("classifier.",)),
        ("deit_tiny_distilled_patch16_224", ("head.", "head_dist.")),
    ],
)
def test_a_file_is_loaded_without_its_classifier(tmp_path: Path, name: str, classifier: tuple[str, ...]) -> None:
    state = timms_weights(name, tmp_path / "w.safetensors")
    assert any(key.startswith(classifier) for key in state)
    for weights in (tmp_path / "w.safetensors", str(tmp_path / "w.safetensors")):
        assert same(Encoder(name, weights=weights).model, without(classifier, state))


def test_a_file_that_has_no_classifier_is_loaded_too(tmp_path: Path) -> None:
    state = ready("test_resnet").model.state_dict()
    save_file(state, tmp_path / "w.safetensors")
    assert same(Encoder("test_resnet", weights=tmp_path / "w.safetensors").model, state)


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "text", "truncated", "pickle"])
def test_a_file_that_cannot_be_read_is_named_with_a_remedy(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "w.safetensors"
    state = timms_weights("test_resnet", path)
    whole = path.read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pickle":
        torch.save(state, path)
    elif kind != "missing":
        path.write_bytes({"empty": b"", "text": b"no weights here", "truncated": whole[: len(whole) // 2]}[kind])
    with pytest.raises(WeightsError, match=r"cannot be read .*; give a whole safetensors file") as caught:
        Encoder("test_resnet", weights=path)
    named = path / "model.safetensors" if kind == "folder" else path  # a folder is taken for a run
    assert str(caught.value).startswith(f"{named}: ")


def test_a_file_of_another_model_is_named_with_both(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    timms_weights("test_byobnet", path)
    with pytest.raises(WeightsError, match=r"do not fit test_resnet: .*; give a file made from this model") as caught:
        Encoder("test_resnet", weights=path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("kind", ["missing", "unexpected", "of another shape"])
def test_a_single_tensor_that_does_not_fit_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "w.safetensors"
    state = timms_weights("test_resnet", path)
    if kind == "missing":
        del state["conv1.0.weight"]
    else:
        state["conv1.0.weight" if kind == "of another shape" else "conv9.weight"] = torch.zeros(7)
    save_file(state, path)
    culprit = "conv9.weight" if kind == "unexpected" else "conv1.0.weight"
    with pytest.raises(WeightsError, match=rf": 1 of \d+ tensors .*\({culprit} …\)"):
        Encoder("test_resnet", weights=path)


def test_a_file_for_another_image_size_is_refused_with_the_reason(tmp_path: Path) -> None:
    timms_weights("test_vit", tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"\(pos_embed …\); give a file made from this model at this image size"):
        Encoder("test_vit", weights=tmp_path / "w.safetensors", image_size=64)


@pytest.mark.skipif(not LITE0.exists(), reason="the shared weights of tf_efficientnet_lite0 are not beside this folder")
def test_published_weights_are_loaded_to_the_last_number() -> None:
    encoder = Encoder("tf_efficientnet_lite0", weights=LITE0, image_size=64).eval()
    assert same(encoder.model, without(("classifier.",), load_file(LITE0)))
    with torch.no_grad():
        pooled = encoder(images(64))
    assert pooled.shape == (2, 1280)
    assert pooled.isfinite().all()


# timm's own weights


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and permission to go to the network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("somebody went to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def keep(cache: Path, name: str, tag: str) -> Path:
    """Where the hub's library looks for the weights of a model, with the note that makes it look there."""
    folder = cache / f"models--timm--{name}.{tag}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION, encoding="utf-8")
    return folder / "snapshots" / REVISION / "model.safetensors"


def hub_at(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub that has one file, or answers everything with one number."""

    status = 200
    content = b""
    asked: list[str]

    def do_HEAD(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        self.send_response(self.status)
        self.send_header("ETag", '"abc"')
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    class Answers(Hub):
        asked: list[str] = []  # noqa: RUF012 - a new class for each test

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        hub_at(monkeypatch, f"http://127.0.0.1:{server.server_port}")
        yield Answers
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", ["test_resnet", "test_resnet.r160_in1k"])
def test_cached_weights_are_taken_without_a_network(cache: Path, name: str) -> None:
    state = timms_weights("test_resnet", keep(cache, "test_resnet", "r160_in1k"))
    assert same(Encoder(name, weights="pretrained").model, without(("fc.",), state))


@pytest.mark.usefixtures("no_network")
def test_cached_weights_are_taken_where_the_original_had_another_format(cache: Path) -> None:
    # timm's note `custom_load` is about the authors' own file, not about the one on the hub.
    assert vars(timm.get_pretrained_cfg("vit_tiny_patch16_224"))["custom_load"]
    path = keep(cache, "vit_tiny_patch16_224", "augreg_in21k_ft_in1k")
    state = timms_weights("vit_tiny_patch16_224", path)
    assert same(Encoder("vit_tiny_patch16_224", weights="pretrained").model, without(("head.",), state))


@pytest.mark.usefixtures("no_network")
def test_cached_weights_are_fitted_to_another_image_size(cache: Path) -> None:
    state = timms_weights("test_vit", keep(cache, "test_vit", "r160_in1k"))
    model = Encoder("test_vit", weights="pretrained", image_size=64).model
    assert model.pos_embed.shape == (1, 1 + 4 * 4, 64)
    state["pos_embed"] = model.pos_embed.detach()
    assert same(model, without(("head.",), state))


@pytest.mark.usefixtures("no_network")
def test_a_broken_file_in_the_cache_is_named_with_a_remedy(cache: Path) -> None:
    path = keep(cache, "test_resnet", "r160_in1k")
    timms_weights("test_resnet", path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(WeightsError, match=r"cannot be read .*; delete it to have it downloaded again") as caught:
        Encoder("test_resnet", weights="pretrained")
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.usefixtures("cache", "no_network")
def test_offline_a_missing_weight_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        WeightsError, match=r"^test_resnet: .* not in the local cache and HF_HUB_OFFLINE is set; give a"
    ):
        Encoder("test_resnet", weights="pretrained")


@pytest.mark.usefixtures("cache", "no_network")
def test_a_model_without_published_weights_is_an_error() -> None:
    with pytest.raises(WeightsError, match="no downloadable weights for convnext_atto_rms; choose a tag, or give"):
        Encoder("convnext_atto_rms", weights="pretrained")


def test_weights_are_downloaded_once(cache: Path, tmp_path: Path, hub: type[Hub]) -> None:
    state = timms_weights("test_resnet", tmp_path / "w.safetensors")
    hub.content = (tmp_path / "w.safetensors").read_bytes()
    assert same(Encoder("test_resnet", weights="pretrained").model, without(("fc.",), state))
    file = "/timm/test_resnet.r160_in1k/resolve/main/model.safetensors"
    assert hub.asked[0] == f"HEAD {file}"
    assert sum(line.startswith("GET /timm/") for line in hub.asked) == 1
    asked = list(hub.asked)
    assert same(Encoder("test_resnet", weights="pretrained").model, without(("fc.",), state))
    assert hub.asked == asked
    assert list(cache.rglob("model.safetensors"))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        (401, "the hub does not give the weights"),
        (403, "the hub does not give the weights"),
        (404, "the hub does not give the weights"),
        (429, "the hub cannot be reached"),  # or else half a minute of new tries
        (503, "the hub cannot be reached"),
    ],
)
def test_a_hub_that_refuses_is_a_clear_error_within_five_seconds(hub: type[Hub], status: int, complaint: str) -> None:
    hub.status = status
    start = time.monotonic()
    with pytest.raises(WeightsError, match=f"(?s)^test_resnet: .*{complaint}.*; give a safetensors file"):
        Encoder("test_resnet", weights="pretrained")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(("status", "expected"), [(200, True), (403, True), (404, True), (429, False), (500, False)])
def test_whoever_answers_can_be_reached(hub: type[Hub], status: int, expected: bool) -> None:
    hub.status = status
    assert encoders._reachable(constants.ENDPOINT) is expected
    assert hub.asked == ["HEAD /"]


@pytest.mark.usefixtures("cache")
def test_a_hub_that_never_answers_is_a_clear_error_within_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub_at(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(WeightsError, match=r"^test_resnet: .* the hub cannot be reached; give a safetensors file"):
            Encoder("test_resnet", weights="pretrained")
        assert time.monotonic() - start < 5


@pytest.mark.usefixtures("cache")
def test_a_name_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def hang(*_: object) -> None:
        over.wait(60)
        raise socket.gaierror("too late")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(encoders, "PATIENCE", 0.2)
    start = time.monotonic()
    with pytest.raises(WeightsError, match="the hub cannot be reached"):
        Encoder("test_resnet", weights="pretrained")
    assert time.monotonic() - start < 5
    over.set()


def test_a_closed_door_nonsense_and_a_bad_address_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"

        def babble() -> None:
            caller, _ = server.accept()
            with caller:
                caller.recv(4096)
                caller.sendall(b"nonsense\r\n\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        assert not encoders._reachable(address)
        thread.join()
    assert not encoders._reachable(address)
    assert not encoders._reachable("hub")


# No encoder at all


def test_extracted_features_pass_through() -> None:
    features = torch.rand(3, 5)
    assert Extracted(5)(features) is features
    assert Extracted(5).features == 5
    assert not list(Extracted(5).parameters())


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext", "test_mambaout", "test_byobnet"])
def test_a_chain_of_stages_is_cut_before_the_last_and_its_halves_are_the_whole(name: str) -> None:
    encoder = Encoder(name, image_size=64).eval()
    cut = halves(encoder)
    assert cut is not None
    images = torch.randn(2, 3, 64, 64)
    activations = cut.trunk(images)
    assert torch.allclose(cut.tail(activations), encoder(images), rtol=1e-4, atol=1e-5)
    assert torch.allclose(cut.tail.maps(activations), encoder.maps(images), rtol=1e-4, atol=1e-5)
    assert not activations.requires_grad
    whole = encoder.state_dict()
    assert all(torch.equal(value, whole[key]) for key, value in cut.tail.state_dict().items())
    share = sum(p.numel() for p in cut.tail.parameters()) / sum(p.numel() for p in encoder.parameters())
    assert 0.05 <= share < 1


@pytest.mark.parametrize("name", ["test_vit", "test_vit2"])
def test_what_is_no_chain_is_not_cut(name: str) -> None:
    assert halves(Encoder(name, image_size=64)) is None


def test_cutting_leaves_the_encoder_as_it_was() -> None:
    encoder = Encoder("test_resnet", image_size=64).train()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    cut = halves(encoder)
    assert cut is not None
    with torch.no_grad():
        for parameter in cut.tail.parameters():
            parameter.zero_()
    assert encoder.training
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in encoder.modules())


def test_a_tail_keeps_its_statistics_in_training() -> None:
    cut = halves(Encoder("test_resnet", image_size=64))
    assert cut is not None
    tail = cut.tail.train()
    before = {key: value.clone() for key, value in tail.state_dict().items() if "running" in key}
    tail(torch.randn(4, 192, 4, 4))
    assert tail.training
    assert all(torch.equal(tail.state_dict()[key], value) for key, value in before.items())


def test_weights_of_a_run_are_its_encoders(tmp_path: Path) -> None:
    source = Encoder("test_resnet", image_size=64)
    state = {f"encoder.{key}": value for key, value in source.state_dict().items()}
    save_file(state | {"linear.weight": torch.zeros(3, 96)}, tmp_path / "model.safetensors")
    loaded = Encoder("test_resnet", weights=tmp_path, image_size=64)
    assert all(torch.equal(value, source.state_dict()[key]) for key, value in loaded.state_dict().items())


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "tf_efficientnet_lite0"])
def test_parameters_are_counted_as_in_a_built_encoder(name: str) -> None:
    assert millions(name) == sum(parameter.numel() for parameter in Encoder(name).parameters()) / 1e6


# For methods that need maps


def learns(encoder: Encoder) -> set[str]:
    return {key for key, parameter in encoder.model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name", SMALL)
def test_channels_is_the_number_of_maps(name: str) -> None:
    side = max(SMALL[name][0], 64)
    encoder = ready(name, image_size=side)
    with torch.no_grad():
        assert encoder.maps(images(side, 1)).shape[1] == encoder.channels


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "mobilenetv3_small_050", "test_mambaout"])
def test_with_maps_whatever_learns_has_a_gradient_and_the_rest_is_frozen(name: str) -> None:
    encoder = with_maps(ready(name, image_size=64), "csra")
    frozen = {key for key, _ in encoder.model.named_parameters()} - learns(encoder)
    encoder.maps(images(64)).square().sum().backward()  # type: ignore[no-untyped-call]
    assert all((p.grad is not None) == p.requires_grad for p in encoder.parameters())
    assert bool(frozen) == (name not in ("test_resnet", "test_vit"))
    assert all(key.startswith(("head.", "conv_head.")) for key in frozen)


def test_with_maps_an_encoder_is_neither_run_nor_changed_and_nothing_is_drawn() -> None:
    encoder = ready("test_resnet", image_size=96).train()  # a size of its own: nothing of it is remembered
    before, drawn = {key: value.clone() for key, value in encoder.state_dict().items()}, torch.get_rng_state()
    with torch.no_grad():  # gradients are followed all the same
        assert with_maps(encoder, "csra") is encoder
    assert torch.equal(torch.get_rng_state(), drawn)
    assert same(encoder, before)
    assert encoder.training
    assert len(learns(encoder)) == len(list(encoder.parameters()))


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_mambaout"])
@pytest.mark.parametrize("side", [64, 160])
def test_with_maps_the_tail_of_an_encoder_is_treated_as_the_whole(name: str, side: int) -> None:
    cut = halves(ready(name, image_size=side))
    assert cut is not None
    whole, tail = with_maps(ready(name, image_size=side), "csra"), with_maps(cut.tail, "csra")
    assert tail.channels == whole.channels
    assert learns(tail) == learns(whole) & set(dict(tail.model.named_parameters()))
    activations = cut.trunk(images(side))
    assert tail.maps(activations).shape[1] == tail.channels
    tail.maps(activations).square().sum().backward()  # type: ignore[no-untyped-call]
    assert all((p.grad is not None) == p.requires_grad for p in tail.parameters())


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("pit_ti_224", r"its tokens \(1\) are no square map"), ("efficientvim_m1", "maps of several sizes")],
)
def test_a_method_that_needs_maps_refuses_a_model_without(name: str, complaint: str) -> None:
    said = rf"^ml_gcn needs feature maps, and {name} has none at \d+ pixels: choose another encoder or --image-size "
    said += rf"\({name}.*{complaint}"
    with pytest.raises(ValueError, match=said):
        with_maps(ready(name), "ml_gcn")


def test_a_method_that_needs_maps_refuses_stored_features() -> None:
    with pytest.raises(ValueError, match="csra needs feature maps, and stored features have none: choose --tune last"):
        with_maps(Extracted(5), "csra")


@pytest.mark.parametrize(
    ("name", "size"), [("test_vit", 40), ("xcit_nano_12_p16_224", 40), ("maxvit_pico_rw_256", 100)]
)
def test_a_size_that_a_model_cannot_take_is_refused_by_name(name: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot take images of {size} pixels .*choose another --image-size"):
        Encoder(name, image_size=size)


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "vgg11"])
def test_the_last_stage_is_one_that_methods_on_maps_learn_too(name: str) -> None:
    cut = halves(Encoder(name, image_size=64))
    assert cut is not None
    whole, tail = (with_maps(e, "csra") for e in (Encoder(name, image_size=64), cut.tail))
    learning = [sum(p.numel() for p in e.parameters() if p.requires_grad) for e in (whole, tail)]
    assert learning[1] >= 0.05 * learning[0] > 0
