from pathlib import Path

import pytest

from probmcl.errors import SettingsError
from probmcl.files import read_json, write_json
from probmcl.settings import (
    AUTO,
    Settings,
    load_settings,
    make_settings,
    method_settings,
    parse_duration,
    read_recipe,
    recipes,
)

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))
OF_PROBMCL = [path for path in RECIPES if read_recipe(path)["method"] == "probmcl"]


def written(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def recipe(path: Path) -> Settings:
    return make_settings(read_recipe(path))


@pytest.mark.parametrize("path", OF_PROBMCL, ids=lambda path: path.stem)
def test_a_recipe_of_a_published_run_has_the_papers_values(path: Path) -> None:
    s = recipe(path)
    (job,) = s.jobs
    assert (s.method, job.method, s.augment, s.tune) == ("probmcl", "probmcl", "paper", "all")
    training, own = job.training, job.settings
    assert (training.epochs, training.batch_size, training.learning_rate) == (80, 128, 1e-4)
    assert s.probe.epochs == 40
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


def test_the_three_published_runs_of_probmcl_are_there() -> None:
    assert len(OF_PROBMCL) == 3


def test_they_are_found_by_name() -> None:
    assert set(recipes()) == {path.stem for path in RECIPES}


def test_what_a_recipe_does_not_say_has_its_default(tmp_path: Path) -> None:
    s = recipe(written(tmp_path, 'method = "bce"\n[encoder]\nname = "resnet18"\n'))
    assert s.jobs[0].training.learning_rate == 1e-3
    assert (s.augment, s.tune, s.encoder.weights) == ("light", "last", "pretrained")


def test_nothing_said_is_auto_on_a_small_pretrained_encoder() -> None:
    s = make_settings({})
    assert s.method == "auto"
    assert tuple(c.method for c in s.jobs) == AUTO
    assert (s.encoder.name, s.encoder.weights) == ("tf_efficientnet_lite0", "pretrained")


def test_under_auto_every_contender_sees_as_many_views() -> None:
    for given in ({}, {"training": {"epochs": 5}}):
        bce, probmcl = make_settings(given).jobs
        assert bce.training.epochs == 2 * probmcl.training.epochs
    assert probmcl.training.epochs == 5


def test_a_named_methods_epochs_are_its_own() -> None:
    assert make_settings({"method": "bce", "training": {"epochs": 5}}).jobs[0].training.epochs == 5


def test_the_probe_alone_has_no_contender_and_its_own_loss() -> None:
    s = make_settings({"method": "probe", "settings": {"loss": "bce"}})
    assert s.jobs == ()
    assert s.probe.loss == "bce"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": "10m", "training": {"epochs": 3}}, "give one"),
        ({"settings": {"temperature": 0.1}}, "belong to one method"),
        ({"preset": "paper"}, "belong to one method"),
        ({"budget": "soon"}, "30m"),
        ({"budget": "0m"}, "more than nothing"),
        ({"device": "tpu9"}, "cpu"),
        ({"tune": "most"}, "tune"),
        ({"workers": -1}, "workers=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"stored_views": 0}, "stored_views=0"),
        ({"jobs": []}, "no key 'jobs'"),
        ({"augment": "strong"}, "augment"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_settings(given)


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0), ("1h30m", 5400.0), ("2H", 7200.0)]
)
def test_a_length_of_time(text: str, expected: float) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "30", "m", "3x", "1.2.3h", "-5m"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(SettingsError, match="as in 30m"):
        parse_duration(text)


@pytest.mark.parametrize("given", [{}, {"method": "probmcl", "preset": "paper"}, {"method": "probe"}, {"budget": "9m"}])
def test_settings_survive_being_written_down(tmp_path: Path, given: dict[str, object]) -> None:
    settings = make_settings(given)
    write_json(tmp_path / "config.json", settings)
    assert load_settings(read_json(tmp_path / "config.json")) == settings


def test_a_run_folder_imports_no_code_of_its_own_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_method.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {
        "method": "evil_method:X",
        "jobs": [{"method": "evil_method:X", "settings": {}, "training": {}, "name": "x"}],
        "encoder": {"name": "resnet18"},
    }
    with pytest.raises(SettingsError, match="import it first"):
        load_settings(config)


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
        ("method = ", "recipe.toml"),
        ('method = 5\n[encoder]\nname = "a"', "say method = "),
        ('method = "my.mod:X"\n[encoder]\nname = "a"', "cannot be loaded"),
        ('method = "bce"\nmethod_settings = 3\n[encoder]\nname = "a"', "no key 'method_settings'"),
        ('method = "bce"\nencoder = "a"', "[encoder]"),
        ('method = "bce"\n[encoder]\nname = "a"\n[training]\nbatch_size = 0', "batch_size=0"),
        ('method = "probmcl"\n[encoder]\nname = "a"\n[settings]\nsimilarity = "all_pairs"', "mean_size"),
    ],
)
def test_a_mistake_names_the_key_and_the_nearest_one(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError) as error:  # noqa: PT011  # what it says is asked below
        recipe(path)
    assert message in str(error.value)


def test_none_is_empty_where_a_setting_may_be_and_a_word_where_it_is_a_choice() -> None:
    settings = method_settings("probmcl", changes={"target": "none", "dim": "none"})
    assert (settings.target, settings.dim) == ("none", None)


def test_changes_keep_the_rest_of_a_preset() -> None:
    changed = method_settings("probmcl", "paper", {"threshold": 0.5, "contrastive_weight": "balanced"})
    assert (changed.threshold, changed.contrastive_weight, changed.temperature) == (0.5, "balanced", 0.2)
