from pathlib import Path

import pytest

from probmcl.settings import SettingsError, method_settings, read_recipe

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))


def written(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_of_a_published_run_has_the_papers_values(path: Path) -> None:
    s = read_recipe(path)
    assert s.method == "probmcl"
    assert s.augment == "paper"
    assert (s.training.epochs, s.training.batch_size, s.training.learning_rate) == (80, 128, 1e-4)
    assert s.probe.epochs == 40
    own = s.method_settings
    assert (own.temperature, own.contrastive_weight, own.target, own.mean_size) == (0.2, 0.3, "feature", None)
    assert own.threshold == (0.5 if path.stem.startswith("adp") else 0.6)
    assert (s.encoder.name.split(".")[0], s.encoder.image_size) == (
        ("tresnet_m", 224) if "tresnet-m" in path.stem else ("tresnet_v2_l", 448)
    )


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_opens_with_command_data_published_score_and_machine(path: Path) -> None:
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert all(
        any(line.startswith(f"# {word} ") for line in head) for word in ("command", "data", "published", "machine")
    )


def test_the_three_published_runs_are_there() -> None:
    assert len(RECIPES) == 3


def test_what_a_recipe_does_not_say_has_its_default(tmp_path: Path) -> None:
    s = read_recipe(written(tmp_path, 'method = "bce"\n[encoder]\nname = "resnet18"\n'))
    assert s.training.learning_rate == 3e-4
    assert s.augment == "light"
    assert s.encoder.weights is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = "bce"\naugmnt = "none"\n[encoder]\nname = "a"', "no key 'augmnt'; did you mean 'augment'"),
        (
            'method = "bce"\n[encoder]\nname = "a"\n[training]\nepoch = 3',
            "training: no key 'epoch'; did you mean 'epochs'",
        ),
        (
            'method = "bce"\n[encoder]\nname = "a"\n[settings]\ntemperature = 0.1',
            "settings of bce: no key 'temperature'",
        ),
        ('method = "probmcl"\n[encoder]\nname = "a"\n[settings]\ntemprature = 0.1', "did you mean 'temperature'"),
        ('method = "probmcl"\npreset = "papr"\n[encoder]\nname = "a"', "no preset 'papr'; did you mean 'paper'"),
        ('method = "probmlc"\n[encoder]\nname = "a"', "did you mean 'probmcl'"),
        ('method = "bce"\n[encoder]\nname = "a"\n[training]\nepochs = "many"', "epochs"),
        ('[encoder]\nname = "a"', "say method = "),
        ('method = "bce"', "encoder"),
        ("method = ", "recipe.toml"),
        ('method = 5\n[encoder]\nname = "a"', "say method = "),
        ('method = "my.mod:X"\n[encoder]\nname = "a"', "cannot be loaded"),
        ('method = "bce"\nmethod_settings = 3\n[encoder]\nname = "a"', "table [settings]"),
        ('method = "bce"\n[encoder]\nname = "a"\n[training]\nbatch_size = 0', "batch_size=0"),
        ('method = "probmcl"\n[encoder]\nname = "a"\n[settings]\nsimilarity = "all_pairs"', "mean_size"),
    ],
)
def test_a_mistake_names_the_file_the_key_and_the_nearest_one(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingsError) as error:
        read_recipe(path)
    assert "recipe.toml" in str(error.value)
    assert message in str(error.value)


def test_changes_keep_the_rest_of_a_preset() -> None:
    changed = method_settings("probmcl", "paper", {"threshold": 0.5, "contrastive_weight": "balanced"})
    assert (changed.threshold, changed.contrastive_weight, changed.temperature) == (0.5, "balanced", 0.2)
