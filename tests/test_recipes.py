import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.images import label_space
from probmcl.encoders import Encoder, describe_encoder
from probmcl.methods import METHODS, find_method
from probmcl.settings import Settings, find_recipe, make_settings, read_recipe
from probmcl.settings import recipe_files as recipes

SOURCE = Path(__file__).parent.parent / "recipes"
PATHS = sorted(SOURCE.glob("*.toml"))

COLUMNS = ("mAP", "CP", "CR", "CF1", "OP", "OR", "OF1")
ROWS = """
coco-srn-resnet101-224       77.1  81.6  65.4  71.2  82.7  69.9  75.8
coco-pla-resnet101-288       -     80.4  68.9  74.2  81.5  73.3  77.2
coco-kmcl-tresnet-m-224      82.1  84.1  72.0  77.6  85.0  76.1  80.1
coco-tresnet-m-224           82.8  85.0  72.5  78.2  85.3  76.9  80.9
coco-ml-gcn-resnet101-448    83.0  85.1  72.0  78.0  85.8  75.4  80.3
coco-kssnet-resnet101-448    83.7  84.6  73.2  77.2  87.8  76.2  81.5
coco-tdrg-resnet101-448      84.6  86.0  73.1  79.0  86.6  76.4  81.2
coco-csra-resnet101-448      83.5  84.1  72.5  77.9  85.6  75.7  80.3
coco-kmcl-tresnet-l-448      88.6  87.7  81.6  84.5  86.3  83.6  84.9
coco-asl-tresnet-l-448       88.4  85.0  81.9  83.4  85.2  84.2  84.7
coco-tresnet-l-448           89.1  88.5  81.9  85.1  86.7  84.3  85.5
adp-ml-gcn-resnet101-448     94.9  91.8  87.0  89.3  92.0  86.9  89.7
adp-tdrg-resnet101-448       95.5  94.6  84.8  89.4  94.3  86.2  90.5
adp-csra-resnet101-448       96.1  93.1  88.6  90.8  93.0  89.7  91.7
adp-kmcl-tresnet-l-448       96.5  92.6  92.0  92.3  92.7  92.9  92.8
adp-asl-tresnet-l-448        96.1  93.1  88.6  90.8  92.1  90.7  91.4
adp-tresnet-l-448            96.9  93.0  92.7  92.8  92.9  93.3  93.1
"""
PUBLISHED = {name: numbers for name, *numbers in map(str.split, ROWS.strip().splitlines())}
"""Tables 1 and 2 of the paper in their order, with the recipe of each row."""


def head(path: Path) -> str:
    """Return the comment at the top of a recipe as one line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return " ".join(" ".join(lines[:end]).replace("#", " ").split())


def settings(path: Path) -> Settings:
    return make_settings(read_recipe(path))


def harmonic(precision: str, recall: str) -> float:
    p, r = float(precision), float(recall)
    return 2 * p * r / (p + r)


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_recipes_match_the_rows_of_both_tables() -> None:
    assert sorted(PUBLISHED) == [path.stem for path in PATHS]
    assert len(PUBLISHED) == len(ROWS.strip().splitlines()) == 17


def test_named_recipes_are_the_files_of_the_source_tree() -> None:
    assert {name: path.read_text() for name, path in recipes.recipes().items()} == {
        path.stem: path.read_text() for path in PATHS
    }


def test_docs_list_every_recipe_with_its_published_map_in_table_order() -> None:
    page = (SOURCE.parent / "docs" / "reproducing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`([\w-]+)`\]\(\.\./recipes/\1\.toml\) \| ([\d.]+|none)", page, re.MULTILINE)
    assert rows == [(name, "none" if mean == "-" else mean) for name, (mean, *_) in PUBLISHED.items()]


def test_installed_package_finds_recipes_next_to_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text("")
    (tmp_path / "notes.md").write_text("")
    monkeypatch.setattr(recipes, "_FOLDERS", (tmp_path, SOURCE))
    assert recipes.recipes() == {"mine": tmp_path / "mine.toml"}


def test_recipe_is_found_by_name() -> None:
    assert tomllib.loads(find_recipe("coco-tresnet-m-224").read_text())["encoder"]["image_size"] == 224


def test_existing_path_takes_precedence_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe("coco-tresnet-m-224") != Path("coco-tresnet-m-224")
    Path("coco-tresnet-m-224").write_text("mine")
    assert find_recipe("coco-tresnet-m-224") == Path("coco-tresnet-m-224")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coco-tresnet-m-24", "did you mean 'coco-tresnet-m-224'"),
        ("coco-tresnet-m-224.toml", "did you mean 'coco-tresnet-m-224'"),
        ("coco-pla-resnet101-448", "did you mean 'coco-pla-resnet101-288'"),
        (Path("away/adp-tresnet-l-448.toml"), "did you mean 'adp-tresnet-l-448'"),
        ("zzz", ", ".join(sorted(PUBLISHED))),
        (".", '="."` is a folder'),
    ],
)
def test_unknown_recipe_suggests_the_closest_name(
    name: str | Path, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="`recipe=") as error:
        find_recipe(name)
    assert message in str(error.value)


def test_head_has_the_command_with_the_recipes_name(path: Path) -> None:
    (command,) = re.findall(r"^# command +(.*)$", path.read_text(), re.MULTILINE)
    data = path.stem.partition("-")[0].upper()
    assert command == f"probmcl train {data} --recipe {path.stem}"


def test_head_has_the_published_scores(path: Path) -> None:
    numbers = ", ".join(f"{name} {number}" for name, number in zip(COLUMNS, PUBLISHED[path.stem], strict=True))
    assert f" published {numbers} (" in head(path)


def test_head_has_data_status_and_threshold(path: Path) -> None:
    comment = head(path)
    assert (
        " data MS-COCO 2014: " in comment if path.stem.startswith("coco") else " data ADP V1.0, flat release" in comment
    )
    assert re.search(r" status .*not run by us: no GPU", comment)
    assert "(no threshold: " in comment if "-pla-" in path.stem else "threshold" in comment


def test_head_separates_original_settings_from_differences(path: Path) -> None:
    if settings(path).method != "probmcl":  # its recipes follow the trainer of the paper
        assert re.search(r" original .+ differs ", head(path))


def test_head_mentions_f1_that_is_not_the_harmonic_mean(path: Path) -> None:
    _, cp, cr, cf1, op, recall, of1 = PUBLISHED[path.stem]
    for name, printed, expected in (("CF1", cf1, harmonic(cp, cr)), ("OF1", of1, harmonic(op, recall))):
        differs = abs(float(printed) - expected) > 0.15  # more than rounding can explain
        assert bool(re.search(rf"{name} is .*?not the harmonic mean of \w+ and \w+,", head(path))) is differs
        assert not differs or f" {expected:.1f}" in head(path)


def test_title_has_method_table_encoder_and_size(path: Path) -> None:
    title = path.read_text().splitlines()[0]
    table = "Table 1, (upper|lower) block: MS-COCO" if path.stem.startswith("coco") else "Table 2: ADP"
    encoder = {"resnet101": "ResNet-101", "tresnet-m": "TResNet-M", "tresnet-l": "TResNet-L"}
    (network,) = (long for short, long in encoder.items() if f"-{short}-" in path.stem)
    size = path.stem.rpartition("-")[2]
    assert re.fullmatch(rf"# [\w-]+, {table}.*, {network} at {size} px\.", title)
    block = "upper" if settings(path).encoder.image_size in (224, 288) else "lower"
    assert not path.stem.startswith("coco") or f"{block} block" in title


def test_name_matches_method_encoder_and_size(path: Path) -> None:
    s = settings(path)
    (job,) = s.jobs
    parts = path.stem.split("-")[1:-1]
    network = {"resnet101": "resnet101", "m": "tresnet_m", "l": "tresnet_v2_l"}[parts[-1]]
    method = "_".join(parts[: -1 if parts[-1] == "resnet101" else -2]) or "probmcl"
    assert (s.method, job.method) == (method, method)
    assert method in METHODS
    assert s.encoder.name.split(".")[0] == network
    assert s.encoder.image_size == int(path.stem.rpartition("-")[2])
    assert (s.tune, s.encoder.statistics, s.encoder.weights) == ("all", "moving", "pretrained")


def test_training_settings_are_explicit(path: Path) -> None:
    recipe = read_recipe(path)
    assert recipe["training"].keys() >= {"epochs", "batch_size", "learning_rate", "weight_decay"}
    # By default the head of a classifier has three times the learning rate of its encoder.
    assert "head_factor" in recipe["training"] or recipe["method"] == "probmcl"


def test_timm_has_weights_for_the_encoder(path: Path) -> None:
    name = settings(path).encoder.name
    assert describe_encoder(name).startswith(name)


def test_only_file_settings_are_commented_out(path: Path) -> None:
    commented = re.findall(r'^# (\w+) = "', path.read_text(), re.MULTILINE)
    assert set(commented) == set(find_method(settings(path).method).files)


def test_method_takes_a_step_on_a_small_encoder(path: Path) -> None:
    (job,) = settings(path).jobs
    method_class = find_method(job.method)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the paper's preset warns about collapse
        method: Any = method_class(Encoder("test_resnet", image_size=64), label_space(4), job.settings)
    labels = torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 0], [1, 1, 0, 0]])
    loss = method.train()(torch.rand(method_class.n_views, 3, 3, 64, 64), labels).loss
    loss.backward()
    assert loss.isfinite()
    assert any(p.grad is not None and (p.grad != 0).any() for p in method.parameters())
