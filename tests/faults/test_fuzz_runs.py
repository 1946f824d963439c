"""Random damage to run folders: loading them gives a model or a clear error, never another exception."""

import contextlib
import json
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import probmcl
from probmcl.errors import ProbmclError
from probmcl.inference.evaluation import read_run_splits
from probmcl.store.run_folder import OWN, write_manifest

pytestmark = pytest.mark.fuzz

SECONDS = 120  # a case that takes longer hangs

FILES = ("config.json", "labels.json", "preprocessing.json", "run.json", "calibration.json", "manifest.json")
OTHERS = ("split.csv", "model.safetensors", "predictions/val.npz")

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
Damage = tuple[str, Any]
damages = st.one_of(
    st.tuples(st.just("cut"), st.floats(0, 1)),
    st.tuples(st.just("flip"), st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=4)),
    st.tuples(st.just("insert"), st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8))),
    st.tuples(st.just("delete"), st.none()),
    st.tuples(st.just("value"), st.tuples(st.floats(0, 1), values)),
)


def positions(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the position of every value in parsed JSON."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path, *(found for key, value in inner for found in positions(value, (*path, key)))]


def replaced(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    container: Any = dict(content) if isinstance(content, dict) else list(content)
    container[path[0]] = replaced(container[path[0]], path[1:], value)
    return container


def apply(path: Path, kind: str, detail: Any) -> None:
    """Damage a file."""
    content = path.read_bytes()
    if kind == "cut":
        path.write_bytes(content[: int(detail * len(content))])
    elif kind == "flip":
        changed = bytearray(content)
        for share, mask in detail if content else ():
            changed[min(int(share * len(changed)), len(changed) - 1)] ^= mask
        path.write_bytes(changed)
    elif kind == "insert":
        share, added = detail
        place = int(share * len(content))
        path.write_bytes(content[:place] + added + content[place:])
    elif kind == "delete":
        path.unlink()
    else:
        share, value = detail
        try:
            parsed = json.loads(content)
        except ValueError:  # not JSON, or damaged before
            return
        places = positions(parsed)
        text = json.dumps(replaced(parsed, places[min(int(share * len(places)), len(places) - 1)], value))
        path.write_text(text, encoding="utf-8", errors="surrogatepass")


@settings(max_examples=2000, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(st.lists(st.tuples(st.sampled_from(FILES + OTHERS), damages), min_size=1, max_size=2), st.booleans())
def test_damaged_run_gives_a_model_or_an_error(
    finished_run: Path, photos: Path, changes: list[tuple[str, Damage]], listed: bool
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(shutil.copytree(finished_run, Path(temporary) / "run"))
        for name, (kind, detail) in changes:
            if (run / name).exists():
                apply(run / name, kind, detail)
        if not listed:  # a stranger would write the manifest again
            write_manifest(run, OWN)
        signal.alarm(SECONDS)
        with contextlib.suppress(ProbmclError, OSError):
            model = probmcl.load(run, device="cpu")
            read_run_splits(run)
            with contextlib.suppress(ProbmclError):
                model.predict([photos / "0.jpg"], abstain=0.2, workers=0)
        signal.alarm(0)
