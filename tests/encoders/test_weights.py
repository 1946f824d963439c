import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor

from helpers.networks import images, ready, same
from probmcl.encoders import Encoder, weights
from probmcl.errors import WeightsError

import timm  # isort: skip

LITE0 = Path(__file__).parents[2] / "../shared/data/weights/tf_efficientnet_lite0_in1k.safetensors"
REVISION = "0123456789abcdef0123456789abcdef01234567"


def timms_weights(name: str, path: Path) -> dict[str, Tensor]:
    """Write a file as timm would, classifier included, and say what is in it."""
    torch.manual_seed(1)
    state: dict[str, Tensor] = timm.create_model(name).state_dict()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path)
    return state


def without(classifier: tuple[str, ...], state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.startswith(classifier)}


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
    for file in (tmp_path / "w.safetensors", str(tmp_path / "w.safetensors")):
        assert same(Encoder(name, weights=file).model, without(classifier, state))


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
        (401, "the hub does not provide the weights"),
        (403, "the hub does not provide the weights"),
        (404, "the hub does not provide the weights"),
        (429, "the hub cannot be reached"),  # or else half a minute of new tries
        (503, "the hub cannot be reached"),
    ],
)
def test_a_hub_that_refuses_is_a_clear_error_at_once(hub: type[Hub], status: int, complaint: str) -> None:
    hub.status = status
    with pytest.raises(WeightsError, match=f"(?s)^test_resnet: .*{complaint}.*; give a safetensors file"):
        Encoder("test_resnet", weights="pretrained")
    assert sum("model.safetensors" in line for line in hub.asked) <= 2, hub.asked  # no new tries


@pytest.mark.parametrize(("status", "expected"), [(200, True), (403, True), (404, True), (429, False), (500, False)])
def test_whoever_answers_can_be_reached(hub: type[Hub], status: int, expected: bool) -> None:
    hub.status = status
    assert weights.is_reachable(constants.ENDPOINT) is expected
    assert hub.asked == ["HEAD /"]


@pytest.mark.usefixtures("cache")
def test_a_hub_that_never_answers_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub_at(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(WeightsError, match=r"^test_resnet: .* the hub cannot be reached; give a safetensors file"):
            Encoder("test_resnet", weights="pretrained")


@pytest.mark.usefixtures("cache")
def test_a_name_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def hang(*_: object) -> None:
        over.wait()
        raise socket.gaierror("too late")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(weights, "HUB_TIMEOUT", 0.2)
    try:
        with pytest.raises(WeightsError, match="the hub cannot be reached"):
            Encoder("test_resnet", weights="pretrained")
    finally:
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
        assert not weights.is_reachable(address)
        thread.join()
    assert not weights.is_reachable(address)
    assert not weights.is_reachable("hub")


def test_weights_of_a_run_are_its_encoders(tmp_path: Path) -> None:
    source = Encoder("test_resnet", image_size=64)
    state = {f"encoder.{key}": value for key, value in source.state_dict().items()}
    save_file(state | {"linear.weight": torch.zeros(3, 96)}, tmp_path / "model.safetensors")
    loaded = Encoder("test_resnet", weights=tmp_path, image_size=64)
    assert all(torch.equal(value, source.state_dict()[key]) for key, value in loaded.state_dict().items())
