import re
import tomllib
from pathlib import Path

import pytest

from probmcl import recipes
from probmcl.recipes import find_recipe

SOURCE = Path(__file__).parent.parent / "recipes"


def test_the_named_recipes_are_the_files_of_the_source_tree() -> None:
    assert {name: path.read_text() for name, path in recipes.recipes().items()} == {
        path.stem: path.read_text() for path in SOURCE.glob("*.toml")
    }


def test_an_installed_package_has_them_beside_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text("")
    (tmp_path / "notes.md").write_text("")
    monkeypatch.setattr(recipes, "_FOLDERS", (tmp_path, SOURCE))
    assert recipes.recipes() == {"mine": tmp_path / "mine.toml"}


def test_a_named_recipe_can_be_read() -> None:
    assert tomllib.loads(find_recipe("coco-tresnet-m-224").read_text())["encoder"]["image_size"] == 224


def test_a_path_that_exists_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe("coco-tresnet-m-224") != Path("coco-tresnet-m-224")
    Path("coco-tresnet-m-224").write_text("mine")
    assert find_recipe("coco-tresnet-m-224") == Path("coco-tresnet-m-224")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("coco-tresnet-m-24", "did you mean 'coco-tresnet-m-224'"),
        ("coco-tresnet-m-224.toml", "did you mean 'coco-tresnet-m-224'"),
        (Path("away/adp-tresnet-l-448.toml"), "did you mean 'adp-tresnet-l-448'"),
        ("zzz", "there are adp-tresnet-l-448, coco-tresnet-l-448, coco-tresnet-m-224"),
        (".", "'.' is a folder"),
    ],
)
def test_a_recipe_that_is_not_there_is_answered_with_the_nearest(
    given: str | Path, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="--recipe: ") as error:
        find_recipe(given)
    assert message in str(error.value)


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.toml")), ids=lambda path: path.stem)
def test_the_command_in_a_recipes_head_names_the_recipe(path: Path) -> None:
    (command,) = re.findall(r"^# command +(.*)$", path.read_text(), re.MULTILINE)
    assert re.fullmatch(rf"probmcl train \w+ --recipe {path.stem}", command)
