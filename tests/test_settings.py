from pathlib import Path

import pytest

from probmcl.errors import SettingsError
from probmcl.settings import (
    AUTO,
    CONFIG_FILE,
    EncoderSettings,
    Settings,
    TrainingJob,
    make_settings,
    method_settings,
    parse_duration,
    read_recipe,
    read_settings,
    recipes,
)
from probmcl.store.run_folder import RunFolder
from probmcl.training.optimizer import Training

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))
PROBMCL_RECIPES = [path for path in RECIPES if read_recipe(path)["method"] == "probmcl"]


def write_recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def recipe(path: Path) -> Settings:
    return make_settings(read_recipe(path))


@pytest.mark.parametrize("path", PROBMCL_RECIPES, ids=lambda path: path.stem)
def test_probmcl_recipe_has_the_settings_of_the_paper(path: Path) -> None:
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
def test_recipe_header_is_complete(path: Path) -> None:
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert all(
        any(line.startswith(f"# {word} ") for line in head) for word in ("command", "data", "published", "status")
    )


def test_there_are_three_probmcl_recipes() -> None:
    assert len(PROBMCL_RECIPES) == 3


def test_recipes_are_found_by_name() -> None:
    assert set(recipes()) == {path.stem for path in RECIPES}


def test_missing_keys_of_a_recipe_have_defaults(tmp_path: Path) -> None:
    s = recipe(write_recipe(tmp_path, 'method = "bce"\n[encoder]\nname = "resnet18"\n'))
    assert s.jobs[0].training.learning_rate == 1e-3
    assert (s.augment, s.tune, s.encoder.weights) == ("light", "last", "pretrained")


def test_default_is_auto_on_a_small_pretrained_encoder() -> None:
    s = make_settings({})
    assert s.method == "auto"
    assert tuple(c.method for c in s.jobs) == AUTO
    assert (s.encoder.name, s.encoder.weights) == ("tf_efficientnet_lite0", "pretrained")


def test_auto_trains_all_methods_on_the_same_number_of_views() -> None:
    for options in ({}, {"training": {"epochs": 5}}):
        bce, probmcl = make_settings(options).jobs
        assert bce.training.epochs == 2 * probmcl.training.epochs
    assert probmcl.training.epochs == 5


def test_epochs_of_a_named_method_are_not_rescaled() -> None:
    assert make_settings({"method": "bce", "training": {"epochs": 5}}).jobs[0].training.epochs == 5


def test_probe_has_no_jobs_and_a_loss() -> None:
    s = make_settings({"method": "probe", "settings": {"loss": "bce"}})
    assert s.jobs == ()
    assert s.probe.loss == "bce"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "10m", "training": {"epochs": 3}}, "cannot be combined"),
        ({"settings": {"temperature": 0.1}}, "settings temperature cannot be combined"),
        ({"preset": "paper"}, "preset 'paper' cannot be combined"),
        ({"budget": "soon"}, "'soon'"),
        ({"budget": "0m"}, "'0m'"),
        ({"device": "tpu9"}, "cpu"),
        ({"tune": "most"}, "tune"),
        ({"workers": -1}, "workers=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"stored_views": 0}, "stored_views=0"),
        ({"jobs": []}, "key 'jobs'"),
        ({"augment": "strong"}, "augment"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_settings(options)


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0), ("1h30m", 5400.0), ("2H", 7200.0)]
)
def test_parse_duration(text: str, expected: float) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "30", "m", "3x", "1.2.3h", "-5m"])
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match="as in 30m"):
        parse_duration(text)


@pytest.mark.parametrize(
    "options", [{}, {"method": "probmcl", "preset": "paper"}, {"method": "probe"}, {"budget": "9m"}]
)
def test_settings_round_trip_through_json(tmp_path: Path, options: dict[str, object]) -> None:
    settings = make_settings(options)
    RunFolder(tmp_path).write(CONFIG_FILE, settings)
    assert read_settings(RunFolder(tmp_path)) == settings


def test_origin_of_every_setting_is_known() -> None:
    options = {"method": "probmcl", "preset": "paper", "settings": {"threshold": 0.5}, "training": {"epochs": 2}}
    origins = make_settings(options | {"device": "auto", "encoder": {"weights": "none"}}).origins
    job = "jobs.probmcl."
    assert {key for key, origin in origins.items() if origin == "auto"} == {
        *("encoder.name", "tune", "intensity", "device")
    }
    user = {key.removeprefix(job) for key, origin in origins.items() if origin == "user"}
    assert user > {"method", "encoder.weights", "settings.threshold", "settings.temperature", "training.epochs"}
    assert origins[f"{job}training.batch_size"] == origins["probe.epochs"] == origins["seed"] == "default"


def test_budget_determines_the_epochs() -> None:
    origins = make_settings({"method": "bce", "budget": "9m"}).origins
    assert (origins["budget"], origins["jobs.bce.training.epochs"]) == ("user", "auto")


def test_origins_do_not_distinguish_settings_and_cannot_be_set() -> None:
    settings = make_settings({"seed": 0})
    assert settings == make_settings({})
    assert settings.origins != make_settings({}).origins
    with pytest.raises(SettingsError, match="unknown key 'origins'"):
        make_settings({"origins": {}})


def test_run_folder_cannot_import_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_method.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    job = TrainingJob("evil_method:X", {}, Training(), "x")
    settings = Settings("evil_method:X", (job,), EncoderSettings("resnet18"))
    RunFolder(tmp_path).write(CONFIG_FILE, settings)
    with pytest.raises(SettingsError, match="is not loaded just because a folder names it"):
        read_settings(RunFolder(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = "bce"\naugmnt = "none"\n[encoder]\nname = "a"', "key 'augmnt'; did you mean 'augment'"),
        (
            'method = "bce"\n[encoder]\nname = "a"\n[training]\nepoch = 3',
            "'epoch'; did you mean 'epochs'",
        ),
        (
            'method = "bce"\n[encoder]\nname = "a"\n[settings]\ntemperature = 0.1',
            "key 'temperature'",
        ),
        ('method = "probmcl"\n[encoder]\nname = "a"\n[settings]\ntemprature = 0.1', "did you mean 'temperature'"),
        ('method = "probmcl"\npreset = "papr"\n[encoder]\nname = "a"', "no preset 'papr'; did you mean 'paper'"),
        ('method = "probmlc"\n[encoder]\nname = "a"', "did you mean 'probmcl'"),
        ('method = "bce"\n[encoder]\nname = "a"\n[training]\nepochs = "many"', "epochs"),
        ("method = ", "recipe.toml"),
        ('method = 5\n[encoder]\nname = "a"', "method and preset"),
        ('method = "my.mod:X"\n[encoder]\nname = "a"', "cannot be loaded"),
        ('method = "bce"\nmethod_settings = 3\n[encoder]\nname = "a"', "key 'method_settings'"),
        ('method = "bce"\nencoder = "a"', "[encoder]"),
        ('method = "bce"\n[encoder]\nname = "a"\n[training]\nbatch_size = 0', "batch_size=0"),
        ('method = "probmcl"\n[encoder]\nname = "a"\n[settings]\nsimilarity = "all_pairs"', "mean_size"),
    ],
)
def test_error_names_the_key_and_a_similar_one(tmp_path: Path, text: str, message: str) -> None:
    path = write_recipe(tmp_path, text)
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the message is checked below
        recipe(path)
    assert message in str(error.value)


def test_none_means_none_unless_it_is_a_choice() -> None:
    settings = method_settings("probmcl", changes={"target": "none", "dim": "none"})
    assert (settings.target, settings.dim) == ("none", None)


def test_changes_keep_the_other_values_of_a_preset() -> None:
    changed = method_settings("probmcl", "paper", {"threshold": 0.5, "contrastive_weight": "balanced"})
    assert (changed.threshold, changed.contrastive_weight, changed.temperature) == (0.5, "balanced", 0.2)
