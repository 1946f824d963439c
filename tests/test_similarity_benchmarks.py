"""The benchmarks of the mixture similarity and of the training step."""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Protocol

import pytest
import torch

import plain_similarity
import similarity
import similarity_report
import step
from probmcl.methods import find_method
from similarity_report import Row

SIZES = ("--rows", "6", "--classes", "4", "--dims", "16")
"""Options of a fast measurement of the similarity."""

needs_meminfo = pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="this system does not tell free memory")


class Run(Protocol):
    """Runs the script of a module with options, and returns what it prints."""

    def __call__(self, script: ModuleType, *options: str) -> str: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(script: ModuleType, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["script", *options])
        script.main()
        return capsys.readouterr().out

    return run


def row(variant: str, classes: int = 80, *, seconds: tuple[float, ...] = (), **others: float) -> Row:
    """Make the measurements of a variant at 128 dimensions."""
    return Row(128, classes, variant, classes, error_rows=4, seconds=list(seconds), **others)  # type: ignore[arg-type]


class TestBaselines:
    @pytest.mark.parametrize("dim", [1, 16, 128])
    @pytest.mark.parametrize("variant", ["naive", "truth"])
    def test_baselines_match_the_package(self, variant: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plain_similarity, "TILE", 12)  # six rows: tiles of two components, and one of one component
        result = similarity.from_parameters(variant, 6, 5, dim, torch.float64)
        expected = similarity.from_parameters("tiled", 6, 5, dim, torch.float64)
        assert len(result) == 4
        for actual, reference in zip(result, expected, strict=True):
            torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-12)

    def test_tiles_cover_every_pair_of_components_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plain_similarity, "TILE", 12)
        counts = torch.zeros(5, 5)
        for a, b in plain_similarity.tiles(torch.zeros(6, 5)):
            counts[a, b] += 1
            if a != b:
                counts[b, a] += 1
        assert torch.equal(counts, torch.ones(5, 5))

    def test_every_row_has_a_positive(self) -> None:
        leaves, shared = similarity.random_parameters(4, 3)
        assert [x.shape for x in leaves] == [(4, 3)] * 3
        assert shared[0, 2] == shared[1, 3] == 1


class TestMemory:
    def test_peak_includes_freed_memory(self) -> None:
        if not similarity.reset_peak():
            pytest.skip("this system cannot reset the peak memory of a process")
        before = similarity.peak()
        bytearray(b"x") * 64_000_000
        assert 60e6 < similarity.peak() - before < 80e6

    @pytest.mark.parametrize(
        ("limit", "needed", "fits"),
        [
            pytest.param(1.0, 1e6, True, id="fits"),
            pytest.param(1.0, 2e9, False, id="more than the limit"),
            pytest.param(1e12, 1e18, False, id="more than free memory", marks=needs_meminfo),
        ],
    )
    def test_naive_respects_its_limit_and_free_memory(self, limit: float, needed: float, fits: bool) -> None:
        assert similarity.fits(argparse.Namespace(naive_memory=limit), needed) == fits


class TestReport:
    @pytest.mark.parametrize(
        ("measured", "note"),
        [
            (row("features", seconds=(1.0,)), ""),
            (row("tiled", predicted_seconds=7.0, seconds=(1.0,)), ""),
            (row("tiled", predicted_seconds=7.0), "extrapolated"),
            (row("naive", predicted_bytes=15.1e12), "not run (predicted 15,100 GB)"),
        ],
        ids=["measured", "predicted and measured", "predicted", "too large"],
    )
    def test_note_of_values_that_were_not_measured(self, measured: Row, note: str) -> None:
        assert measured.note == note

    def test_ratios_of_medians_and_best_times_have_notes(self) -> None:
        rows = [
            row("naive", predicted_bytes=1e12),
            row("tiled", predicted_seconds=60.0),
            row("features", seconds=(2.0, 3.0, 9.0)),
            row("features", 9605, seconds=(30.0, 40.0, 20.0)),
        ]
        assert similarity_report.ratios(rows) == [
            "n = 128: naive at C = 80 / features at C = 80: – (medians), – (best); naive not run (predicted 1,000 GB)",
            "n = 128: tiled at C = 80 / features at C = 80: 20 (medians), 30 (best); tiled extrapolated",
            "n = 128: features at C = 9,605 / features at C = 80: 10 (medians), 10 (best)",
        ]

    def test_tiled_is_extrapolated_quadratically_from_the_last_size(self) -> None:
        measured = [row("tiled", 20, seconds=(1.0,)), row("features", 40, seconds=(5.0,))]
        assert similarity.tiled_seconds(measured, rows=256, components=60) == 9.0

    def test_plot_is_a_png(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        rows = [row("features", 20, seconds=(1.0,), bytes=10), row("naive", predicted_bytes=1e9)]
        similarity_report.draw(rows, tmp_path / "plot.png")
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


class TestSimilarity:
    @pytest.mark.exhaustive
    def test_prints_a_table_and_ratios_and_writes_all_results(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
    ) -> None:
        """Memory is measured in one process per variant, which takes seconds to start, so only two variants run."""
        monkeypatch.setattr(similarity_report, "draw", lambda rows, file: file.touch())
        options = ("--rounds", "2", "--variants", "naive", "features", "--out", str(tmp_path / "new"))
        printed = run(similarity, *SIZES, *options)
        assert "round 2 of 2: features" in printed
        assert "naive at C = 4 / features at C = 4:" in printed
        report = json.loads((tmp_path / "new/similarity.json").read_text())
        assert report["rows"] == 6
        assert {"cores", "threads", "processor", "python", "torch"} == report["machine"].keys()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", report["date"])
        assert "commit" in report
        for result in report["results"]:
            assert f"| 16 | 4 | 4 | {result['variant']} | {statistics.median(result['seconds']):.3g} |" in printed
            assert len(result["seconds"]) == 2
            assert result["bytes"] >= 0
            assert 0 <= result["similarity_error"] < 1e-5
            assert 0 <= result["gradient_error"] < 1e-4
            assert result["error_rows"] == 6

    def test_expensive_variants_are_predicted(self, run: Run) -> None:
        printed = run(similarity, *SIZES, "--variants", "naive", "tiled", "--naive-memory", "0", "--patience", "0")
        assert "| naive | – | – | – | – | – | 6 | not run (predicted 2.07e-05 GB) |" in printed
        assert "| extrapolated |" in printed

    def test_missing_matplotlib_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        printed = run(similarity, *SIZES, "--variants", "naive", "--naive-memory", "0", "--out", str(tmp_path))
        assert "pip install matplotlib" in printed
        assert [path.name for path in tmp_path.iterdir()] == ["similarity.json"]


class TestStep:
    ARGUMENTS = argparse.Namespace(
        encoder="test_resnet", image_size=32, images=2, classes=3, device=torch.device("cpu")
    )

    def test_prints_the_parts_and_the_ratio_of_each_preset(self, run: Run) -> None:
        sizes = ("--encoder", "test_resnet", "--image-size", "32", "--images", "3", "--classes", "4")
        printed = run(step, *sizes, "--rounds", "2")
        assert "| ms | bare encoder | default | paper |" in printed
        milliseconds = {}
        for line in printed.splitlines():
            part, *cells = line.strip("| ").split(" | ")
            if part in step.PARTS:
                milliseconds[part] = [float(cell) for cell in cells]
        assert list(milliseconds) == list(step.PARTS)
        for _, *presets in milliseconds.values():
            assert min(presets) > 0
        assert milliseconds["similarity"][0] == 0
        assert milliseconds["mixture head"][0] == 0
        for preset in ("default", "paper"):
            assert re.search(rf"{preset} preset / bare encoder: \d+\.\d{{3}} \(median\)", printed)

    def test_parts_of_a_step_sum_to_the_whole(self) -> None:
        *parts, whole = step.PARTS
        for method in step.build_methods(self.ARGUMENTS).values():
            watch = step.attach_stopwatch(method, self.ARGUMENTS.device)
            before = [parameter.clone() for parameter in method.parameters()]
            train_one_step = step.stepper(method, watch, step.random_batch(self.ARGUMENTS))
            milliseconds = train_one_step()
            assert watch.spent[whole] == [milliseconds]
            assert sum(watch.spent[part][0] for part in parts) == pytest.approx(milliseconds)
            assert any(not torch.equal(old, new) for old, new in zip(before, method.parameters(), strict=True))

    def test_all_methods_start_from_the_same_weights(self) -> None:
        methods = step.build_methods(self.ARGUMENTS).values()
        first, *others = [method.encoder.state_dict() for method in methods]
        assert len(others) == len(find_method("probmcl").presets)
        for other in others:
            assert all(torch.equal(first[key], other[key]) for key in first)
