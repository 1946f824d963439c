"""`probmcl encoders`: timm models by name, with sizes and licenses."""

import pytest

import probmcl.encoders
from helpers.commands import main
from probmcl.cli import encoders
from probmcl.encoders import Encoder


def rows(text: str) -> list[list[str]]:
    """Return the cells of a printed table."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_without_a_pattern_recommended_encoders_are_listed_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    encoders.command()
    text = capsys.readouterr().out
    for name, reason in encoders.RECOMMENDED.items():
        assert f"│ {name}." in text
        assert reason in text


def test_part_of_a_name_matches_all_models_that_contain_it() -> None:
    assert encoders.matching("tresnet") == ["tresnet_l", "tresnet_m", "tresnet_v2_l", "tresnet_xl"]


def test_wildcards_match_the_complete_name() -> None:
    assert encoders.matching("tresnet_?") == ["tresnet_l", "tresnet_m"]


def test_a_full_name_lists_the_weights_of_that_model_only() -> None:
    names = encoders.matching("tresnet_m")
    assert "tresnet_m.miil_in21k" in names
    assert len(names) > 2
    assert {name.partition(".")[0] for name in names} == {"tresnet_m"}


@pytest.mark.parametrize("model", ["mobilenetv4_conv_small_035", "nf_ecaresnet50"])
def test_a_model_without_weights_is_marked(model: str) -> None:
    (weights,) = map(encoders.describe_weights, encoders.matching(model))
    assert (weights.name, weights.license) == (model, "(no weights)")


def test_a_pattern_with_a_dot_matches_weights() -> None:
    assert encoders.matching("tresnet_l.miil_in1k*") == ["tresnet_l.miil_in1k", "tresnet_l.miil_in1k_448"]


def test_no_match_suggests_similar_names() -> None:
    answer = main("encoders", "resnt50")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "'resnt50'; did you mean 'resnet50'" in answer.stderr


def test_rows_have_parameters_size_and_license(capsys: pytest.CaptureFixture[str]) -> None:
    encoders.command("resnet50.fb_s*")
    assert rows(capsys.readouterr().out) == [
        ["resnet50.fb_ssl_yfcc100m_ft_in1k", "23.5", "224", "cc-by-nc-4.0"],
        ["resnet50.fb_swsl_ig1b_ft_in1k", "23.5", "224", "cc-by-nc-4.0"],
    ]


def test_a_long_list_is_truncated_and_builds_no_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probmcl.encoders, "parameters_in_millions", lambda model: pytest.fail(f"{model} was built"))
    encoders.command("resnet")
    text = capsys.readouterr().out
    rest = len(encoders.matching("resnet")) - encoders.MAX_ROWS
    assert rest > 0
    assert f"{rest} more" in text
    assert "parameters" not in text


def test_a_listed_encoder_can_be_built_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    encoders.command("test_resnet")
    (name, _, size, _), *_ = rows(capsys.readouterr().out)
    assert Encoder(name).image_size == int(size)
