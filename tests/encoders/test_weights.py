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


def write_timm_weights(name: str, path: Path) -> dict[str, Tensor]:
    """Write a weights file as timm does, including the classifier, and return its contents."""
    torch.manual_seed(1)
    state: dict[str, Tensor] = timm.create_model(name).state_dict()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path)
    return state


def remove_classifier(classifier: tuple[str, ...], state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.startswith(classifier)}


def test_random_initialization_depends_on_the_seed() -> None:
    first, again = ready("test_resnet"), ready("test_resnet")
    other = Encoder("test_resnet")  # not seeded again
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
def test_file_is_loaded_without_its_classifier(tmp_path: Path, name: str, classifier: tuple[str, ...]) -> None:
    state = write_timm_weights(name, tmp_path / "w.safetensors")
    assert any(key.startswith(classifier) for key in state)
    for file in (tmp_path / "w.safetensors", str(tmp_path / "w.safetensors")):
        assert same(Encoder(name, weights=file).model, remove_classifier(classifier, state))


def test_file_without_classifier_is_loaded(tmp_path: Path) -> None:
    state = ready("test_resnet").model.state_dict()
    save_file(state, tmp_path / "w.safetensors")
    assert same(Encoder("test_resnet", weights=tmp_path / "w.safetensors").model, state)


@pytest.mark.parametrize("problem", ["missing", "folder", "empty", "text", "truncated", "pickle"])
def test_unreadable_file_is_an_error(tmp_path: Path, problem: str) -> None:
    path = tmp_path / "w.safetensors"
    state = write_timm_weights("test_resnet", path)
    content = path.read_bytes()
    path.unlink()
    if problem == "folder":
        path.mkdir()
    elif problem == "pickle":
        torch.save(state, path)
    elif problem != "missing":
        path.write_bytes({"empty": b"", "text": b"no weights here", "truncated": content[: len(content) // 2]}[problem])
    with pytest.raises(WeightsError, match="cannot be read") as caught:
        Encoder("test_resnet", weights=path)
    expected_path = path / "model.safetensors" if problem == "folder" else path  # a folder is read as a run folder
    assert str(caught.value).startswith(f"{expected_path}: ")


def test_file_of_another_model_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    write_timm_weights("test_byobnet", path)
    with pytest.raises(WeightsError, match="do not fit test_resnet") as caught:
        Encoder("test_resnet", weights=path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("problem", ["missing", "unexpected", "shape"])
def test_single_wrong_tensor_is_an_error(tmp_path: Path, problem: str) -> None:
    path = tmp_path / "w.safetensors"
    state = write_timm_weights("test_resnet", path)
    if problem == "missing":
        del state["conv1.0.weight"]
    else:
        state["conv1.0.weight" if problem == "shape" else "conv9.weight"] = torch.zeros(7)
    save_file(state, path)
    tensor = "conv9.weight" if problem == "unexpected" else "conv1.0.weight"
    with pytest.raises(WeightsError, match=rf": 1 of \d+ tensors .*\({tensor} …\)"):
        Encoder("test_resnet", weights=path)


def test_file_for_another_image_size_is_an_error(tmp_path: Path) -> None:
    write_timm_weights("test_vit", tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"\(pos_embed …\).*image size"):
        Encoder("test_vit", weights=tmp_path / "w.safetensors", image_size=64)


@pytest.mark.skipif(not LITE0.exists(), reason="the shared weights of tf_efficientnet_lite0 do not exist")
def test_published_weights_are_loaded_exactly() -> None:
    encoder = Encoder("tf_efficientnet_lite0", weights=LITE0, image_size=64).eval()
    assert same(encoder.model, remove_classifier(("classifier.",), load_file(LITE0)))
    with torch.no_grad():
        pooled = encoder(images(64))
    assert pooled.shape == (2, 1280)
    assert pooled.isfinite().all()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty hub cache and allow network access."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        pytest.fail("the network was accessed")

    monkeypatch.setattr(socket.socket, "connect", fail)
    monkeypatch.setattr(socket, "getaddrinfo", fail)


def create_cache_entry(cache: Path, name: str, tag: str) -> Path:
    """Create the cache entry of a model and return the path of its weights."""
    folder = cache / f"models--timm--{name}.{tag}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION, encoding="utf-8")
    return folder / "snapshots" / REVISION / "model.safetensors"


def set_hub_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


class Hub(http.server.BaseHTTPRequestHandler):
    """Hub that serves one file, or the same status code for every request."""

    status = 200
    content = b""
    requests: list[str]

    def do_HEAD(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        self.send_response(self.status)
        self.send_header("ETag", '"abc"')
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    class TestHub(Hub):
        requests: list[str] = []  # noqa: RUF012 - a new class for each test

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), TestHub) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        set_hub_address(monkeypatch, f"http://127.0.0.1:{server.server_port}")
        yield TestHub
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", ["test_resnet", "test_resnet.r160_in1k"])
def test_cached_weights_need_no_network(cache: Path, name: str) -> None:
    state = write_timm_weights("test_resnet", create_cache_entry(cache, "test_resnet", "r160_in1k"))
    assert same(Encoder(name, weights="pretrained").model, remove_classifier(("fc.",), state))


@pytest.mark.usefixtures("no_network")
def test_cached_weights_of_models_with_custom_load(cache: Path) -> None:
    # `custom_load` refers to the original file, not to the file on the hub.
    assert vars(timm.get_pretrained_cfg("vit_tiny_patch16_224"))["custom_load"]
    path = create_cache_entry(cache, "vit_tiny_patch16_224", "augreg_in21k_ft_in1k")
    state = write_timm_weights("vit_tiny_patch16_224", path)
    assert same(Encoder("vit_tiny_patch16_224", weights="pretrained").model, remove_classifier(("head.",), state))


@pytest.mark.usefixtures("no_network")
def test_cached_weights_are_resized_to_the_image_size(cache: Path) -> None:
    state = write_timm_weights("test_vit", create_cache_entry(cache, "test_vit", "r160_in1k"))
    model = Encoder("test_vit", weights="pretrained", image_size=64).model
    assert model.pos_embed.shape == (1, 1 + 4 * 4, 64)
    state["pos_embed"] = model.pos_embed.detach()
    assert same(model, remove_classifier(("head.",), state))


@pytest.mark.usefixtures("no_network")
def test_broken_file_in_the_cache_is_an_error(cache: Path) -> None:
    path = create_cache_entry(cache, "test_resnet", "r160_in1k")
    write_timm_weights("test_resnet", path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(WeightsError, match=r"cannot be read .*; delete") as caught:
        Encoder("test_resnet", weights="pretrained")
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.usefixtures("cache", "no_network")
def test_missing_weights_offline_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError, match=r"^test_resnet: .* HF_HUB_OFFLINE"):
        Encoder("test_resnet", weights="pretrained")


@pytest.mark.usefixtures("cache", "no_network")
def test_model_without_published_weights_is_an_error() -> None:
    with pytest.raises(WeightsError, match="no downloadable weights for convnext_atto_rms"):
        Encoder("convnext_atto_rms", weights="pretrained")


def test_weights_are_downloaded_once(cache: Path, tmp_path: Path, hub: type[Hub]) -> None:
    state = write_timm_weights("test_resnet", tmp_path / "w.safetensors")
    hub.content = (tmp_path / "w.safetensors").read_bytes()
    assert same(Encoder("test_resnet", weights="pretrained").model, remove_classifier(("fc.",), state))
    file = "/timm/test_resnet.r160_in1k/resolve/main/model.safetensors"
    assert hub.requests[0] == f"HEAD {file}"
    assert sum(line.startswith("GET /timm/") for line in hub.requests) == 1
    requests = list(hub.requests)
    assert same(Encoder("test_resnet", weights="pretrained").model, remove_classifier(("fc.",), state))
    assert hub.requests == requests
    assert list(cache.rglob("model.safetensors"))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "does not provide"),
        (403, "does not provide"),
        (404, "does not provide"),
        (429, "cannot be reached"),  # the download would retry for half a minute
        (503, "cannot be reached"),
    ],
)
def test_http_error_is_reported_without_retries(hub: type[Hub], status: int, message: str) -> None:
    hub.status = status
    with pytest.raises(WeightsError, match=f"(?s)^test_resnet: .*{message}.*`weights=FILE`"):
        Encoder("test_resnet", weights="pretrained")
    assert sum("model.safetensors" in line for line in hub.requests) <= 2, hub.requests  # no retries


@pytest.mark.parametrize(("status", "expected"), [(200, True), (403, True), (404, True), (429, False), (500, False)])
def test_is_reachable_by_status_code(hub: type[Hub], status: int, expected: bool) -> None:
    hub.status = status
    assert weights.is_reachable(constants.ENDPOINT) is expected
    assert hub.requests == ["HEAD /"]


@pytest.mark.usefixtures("cache")
def test_hub_that_does_not_respond_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "HUB_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        set_hub_address(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(WeightsError, match=r"^test_resnet: .* cannot be reached"):
            Encoder("test_resnet", weights="pretrained")


@pytest.mark.usefixtures("cache")
def test_dns_lookup_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = threading.Event()

    def hang(*_: object) -> None:
        finished.wait()
        raise socket.gaierror("too late")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(weights, "HUB_TIMEOUT", 0.2)
    try:
        with pytest.raises(WeightsError, match="cannot be reached"):
            Encoder("test_resnet", weights="pretrained")
    finally:
        finished.set()


def test_invalid_responses_and_addresses_are_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"

        def send_invalid_response() -> None:
            client, _ = server.accept()
            with client:
                client.recv(4096)
                client.sendall(b"nonsense\r\n\r\n")

        thread = threading.Thread(target=send_invalid_response)
        thread.start()
        assert not weights.is_reachable(address)
        thread.join()
    assert not weights.is_reachable(address)
    assert not weights.is_reachable("hub")


def test_weights_of_a_run_folder(tmp_path: Path) -> None:
    source = Encoder("test_resnet", image_size=64)
    state = {f"encoder.{key}": value for key, value in source.state_dict().items()}
    save_file(state | {"linear.weight": torch.zeros(3, 96)}, tmp_path / "model.safetensors")
    loaded = Encoder("test_resnet", weights=tmp_path, image_size=64)
    assert all(torch.equal(value, source.state_dict()[key]) for key, value in loaded.state_dict().items())
