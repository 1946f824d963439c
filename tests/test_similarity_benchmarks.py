"""The benchmarks of the mixture similarity and of the whole step: what they compare is right, and all of it comes."""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

import pytest
import torch

import plain_similarity
import similarity
import similarity_report
import step
from probmcl.methods import find_method
from similarity_report import Row


def run(script: object, monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.setattr(sys, "argv", ["script", *flags])
    script.main()  # type: ignore[attr-defined]


def row(variant: str, classes: int = 80, *, seconds: tuple[float, ...] = (), **others: float) -> Row:
    return Row(128, classes, variant, classes, error_rows=4, seconds=list(seconds), **others)  # type: ignore[arg-type]


class TestPlain:
    @pytest.mark.parametrize("dim", [1, 16, 128])
    @pytest.mark.parametrize("variant", ["naive", "truth"])
    def test_it_is_the_package_s_similarity(self, variant: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plain_similarity, "TILE", 12)  # of six rows: components in twos, and one alone
        measured = similarity.from_parameters(variant, 6, 5, dim, torch.float64)
        expected = similarity.from_parameters("tiled", 6, 5, dim, torch.float64)
        assert len(measured) == 4
        for found, right in zip(measured, expected, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-12)

    def test_tiles_hold_every_pair_of_components_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plain_similarity, "TILE", 12)
        seen = torch.zeros(5, 5)
        for a, b in plain_similarity.tiles(torch.zeros(6, 5)):
            seen[a, b] += 1
            if a != b:
                seen[b, a] += 1
        assert torch.equal(seen, torch.ones(5, 5))

    def test_every_row_has_a_positive(self) -> None:
        leaves, shared = similarity.drawn(4, 3)
        assert [x.shape for x in leaves] == [(4, 3)] * 3
        assert shared[0, 2] == shared[1, 3] == 1


class TestMemory:
    def test_the_peak_counts_what_was_given_back(self) -> None:
        if not similarity.forget_peak():
            pytest.skip("this system cannot forget the peak of a process")
        before = similarity.peak()
        bytearray(b"x") * 64_000_000
        assert 60e6 < similarity.peak() - before < 80e6

    def test_naive_takes_no_more_than_is_allowed_or_free(self) -> None:
        assert similarity.fits(argparse.Namespace(naive_memory=1.0), 1e6)
        assert not similarity.fits(argparse.Namespace(naive_memory=1.0), 2e9)
        if Path("/proc/meminfo").exists():
            assert not similarity.fits(argparse.Namespace(naive_memory=1e12), 1e18)


class TestReport:
    def test_what_was_not_measured_says_so(self) -> None:
        assert row("features", seconds=(1.0,)).note == ""
        assert row("tiled", predicted_seconds=7.0, seconds=(1.0,)).note == ""
        assert row("tiled", predicted_seconds=7.0).note == "extrapolated"
        assert row("naive", predicted_bytes=15.1e12).note == "not run (predicted 15,100 GB)"

    def test_ratios_are_of_medians_and_of_the_best_and_carry_the_notes(self) -> None:
        found = [
            row("naive", predicted_bytes=1e12),
            row("tiled", predicted_seconds=60.0),
            row("features", seconds=(2.0, 3.0, 9.0)),
            row("compiled", seconds=(1.0, 2.0, 3.0)),
            row("features", 9605, seconds=(30.0, 40.0, 20.0)),
        ]
        assert similarity_report.ratios(found) == [
            "n = 128: naive at C = 80 / features at C = 80: – (medians), – (best); naive not run (predicted 1,000 GB)",
            "n = 128: naive at C = 80 / compiled at C = 80: – (medians), – (best); naive not run (predicted 1,000 GB)",
            "n = 128: tiled at C = 80 / features at C = 80: 20 (medians), 30 (best); tiled extrapolated",
            "n = 128: tiled at C = 80 / compiled at C = 80: 30 (medians), 60 (best); tiled extrapolated",
            "n = 128: features at C = 9,605 / features at C = 80: 10 (medians), 10 (best)",
        ]

    def test_tiled_is_extrapolated_from_the_last_size_by_the_square_of_its_components(self) -> None:
        before = [row("tiled", 20, seconds=(1.0,)), row("features", 40, seconds=(5.0,))]
        assert similarity.tiled_seconds(before, rows=256, components=60) == 9.0

    def test_the_plot_is_an_image(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        found = [row("features", 20, seconds=(1.0,), bytes=10), row("naive", predicted_bytes=1e9)]
        similarity_report.draw(found, tmp_path / "plot.png")
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


class TestSimilarity:
    @pytest.mark.slow
    def test_it_prints_a_table_and_ratios_and_writes_every_number(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Each variant has a process of its own for its memory: seconds to start, hence two of them only."""
        monkeypatch.setattr(similarity_report, "draw", lambda rows, file: file.touch())
        sizes = ("--rows", "6", "--classes", "4", "--dims", "16", "--rounds", "2")
        run(similarity, monkeypatch, *sizes, "--variants", "naive", "features", "--out", str(tmp_path / "new"))
        printed = capsys.readouterr().out
        assert "round 2 of 2: features" in printed
        assert "naive at C = 4 / features at C = 4:" in printed
        whole = json.loads((tmp_path / "new/similarity.json").read_text())
        assert whole["rows"] == 6
        assert {"cores", "threads", "processor", "python", "torch"} == whole["machine"].keys()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", whole["date"])
        assert "commit" in whole
        for found in whole["results"]:
            assert f"| 16 | 4 | 4 | {found['variant']} | {statistics.median(found['seconds']):.3g} |" in printed
            assert len(found["seconds"]) == 2
            assert found["bytes"] >= 0
            assert 0 <= found["similarity_error"] < 1e-5
            assert 0 <= found["gradient_error"] < 1e-4
            assert found["error_rows"] == 6

    def test_what_takes_too_much_is_predicted(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sizes = ("--rows", "6", "--classes", "4", "--dims", "16", "--variants", "naive", "tiled")
        run(similarity, monkeypatch, *sizes, "--naive-memory", "0", "--patience", "0")
        printed = capsys.readouterr().out
        assert "| naive | – | – | – | – | – | 6 | not run (predicted 2.07e-05 GB) |" in printed
        assert "| extrapolated |" in printed

    def test_without_matplotlib_it_says_how_to_have_a_plot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        sizes = ("--rows", "4", "--classes", "2", "--dims", "2", "--variants", "naive", "--naive-memory", "0")
        run(similarity, monkeypatch, *sizes, "--out", str(tmp_path))
        assert "pip install matplotlib" in capsys.readouterr().out
        assert [path.name for path in tmp_path.iterdir()] == ["similarity.json"]


class TestStep:
    def test_it_prints_the_parts_and_the_ratio_of_each_preset(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sizes = ("--encoder", "test_resnet", "--image-size", "32", "--images", "3", "--classes", "4")
        run(step, monkeypatch, *sizes, "--rounds", "2")
        printed = capsys.readouterr().out
        assert "| ms | bare encoder | default | paper |" in printed
        parts = {
            cells[0]: [float(x) for x in cells[1:]]
            for line in printed.splitlines()
            if (cells := line.strip("| ").split(" | "))[0] in step.PARTS
        }
        assert list(parts) == list(step.PARTS)
        assert parts["similarity"][0] == parts["mixture head"][0] == 0
        assert all(x > 0 for part in step.PARTS for x in parts[part][1:])
        for preset in ("default", "paper"):
            assert re.search(rf"{preset} preset / bare encoder: \d+\.\d{{3}} \(median\)", printed)

    def test_the_parts_of_a_step_make_up_the_whole(self) -> None:
        device = torch.device("cpu")
        args = argparse.Namespace(encoder="test_resnet", image_size=32, images=2, classes=3, device=device)
        for method in step.methods(args).values():
            watch = step.watched(method, device)
            before = [parameter.clone() for parameter in method.parameters()]
            took = step.stepper(method, watch, step.made(args))()
            assert watch.spent["whole step"] == [took]
            assert sum(watch.spent[part][0] for part in step.PARTS[:-1]) == pytest.approx(took)
            assert any(not torch.equal(a, b) for a, b in zip(before, method.parameters(), strict=True))

    def test_all_start_from_the_same_weights(self) -> None:
        args = argparse.Namespace(encoder="test_resnet", image_size=32, images=2, classes=3, device=torch.device("cpu"))
        first, *others = (method.encoder.state_dict() for method in step.methods(args).values())
        assert len(others) == len(find_method("probmcl").presets)
        for other in others:
            assert all(torch.equal(first[key], other[key]) for key in first)
