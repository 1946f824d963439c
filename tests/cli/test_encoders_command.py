"""`probmcl encoders`: timm's models by name, with what one has to know before taking one."""

import subprocess
import sys

import pytest

import probmcl.encoders
from probmcl.cli import encoders as command
from probmcl.encoders import Encoder

RUN = "import sys; sys.argv[0] = 'probmcl'; from probmcl.cli import main; main()"


def rows(text: str) -> list[list[str]]:
    """The cells of a printed table."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_without_a_pattern_a_few_are_recommended_each_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    command.encoders()
    text = capsys.readouterr().out
    for name, why in command.RECOMMENDED.items():
        assert f"│ {name}." in text
        assert why in text


def test_part_of_a_name_finds_every_model_that_has_it() -> None:
    assert command.matching("tresnet") == ["tresnet_l", "tresnet_m", "tresnet_v2_l", "tresnet_xl"]


def test_wildcards_bind_both_ends() -> None:
    assert command.matching("tresnet_?") == ["tresnet_l", "tresnet_m"]


def test_a_whole_name_shows_all_its_weights_and_no_other_model() -> None:
    found = command.matching("tresnet_m")
    assert "tresnet_m.miil_in21k" in found
    assert len(found) > 2
    assert {name.partition(".")[0] for name in found} == {"tresnet_m"}


@pytest.mark.parametrize("model", ["mobilenetv4_conv_small_035", "nf_ecaresnet50"])
def test_a_whole_name_without_weights_shows_the_model_and_says_so(model: str) -> None:
    (found,) = map(command.describe_weights, command.matching(model))
    assert (found.name, found.license) == (model, "(no weights)")


def test_a_pattern_with_a_dot_finds_weights() -> None:
    assert command.matching("tresnet_l.miil_in1k*") == ["tresnet_l.miil_in1k", "tresnet_l.miil_in1k_448"]


@pytest.mark.slow
def test_nothing_that_fits_is_answered_with_the_nearest_names() -> None:
    words = [sys.executable, "-c", RUN, "encoders", "resnt50"]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("probmcl: no encoder of timm fits 'resnt50'; did you mean 'resnet50'")


def test_each_row_has_weights_size_and_license(capsys: pytest.CaptureFixture[str]) -> None:
    command.encoders("resnet50.fb_s*")
    assert rows(capsys.readouterr().out) == [
        ["resnet50.fb_ssl_yfcc100m_ft_in1k", "23.5", "224", "cc-by-nc-4.0"],
        ["resnet50.fb_swsl_ig1b_ft_in1k", "23.5", "224", "cc-by-nc-4.0"],
    ]


def test_a_long_list_is_cut_with_a_count_and_builds_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probmcl.encoders, "parameters_in_millions", lambda model: pytest.fail(f"{model} was built"))
    command.encoders("resnet")
    text = capsys.readouterr().out
    rest = len(command.matching("resnet")) - command.MAX_ROWS
    assert rest > 0
    assert f"… and {rest} more" in text
    assert "│ params" not in text


def test_what_is_shown_as_an_encoder_can_be_built_by_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    command.encoders("test_resnet")
    (name, _, size, _), *_ = rows(capsys.readouterr().out)
    assert Encoder(name).image_size == int(size)
