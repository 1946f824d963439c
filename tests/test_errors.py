import pytest

from probmcl.errors import counted


@pytest.mark.parametrize(
    ("number", "forms", "text"),
    [
        (0, ["image"], "0 images"),
        (1, ["image"], "1 image"),
        (2, ["image"], "2 images"),
        (1234, ["test image"], "1,234 test images"),
        (1, ["class", "classes"], "1 class"),
        (3, ["copy", "copies"], "3 copies"),
        (1, ["more is", "more are"], "1 more is"),
    ],
)
def test_a_number_agrees_with_its_noun(number: int, forms: list[str], text: str) -> None:
    assert counted(number, *forms) == text
