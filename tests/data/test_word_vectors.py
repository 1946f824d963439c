from pathlib import Path

import numpy as np
import pytest

from probmcl.data.word_vectors import label_vectors, words_of
from probmcl.errors import DataError

WORDS = {"the": (9, 9, 9), "dog": (1, 2, 3), "traffic": (1, 0, 0), "light": (0, 1, 0.5), "café": (-1e-3, 2e2, 0)}


def written(folder: Path, lines: str | bytes) -> Path:
    path = folder / "vectors.txt"
    path.write_bytes(lines.encode() if isinstance(lines, str) else lines)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path, "".join(f"{word} {' '.join(map(str, v))}\n" for word, v in WORDS.items()))


def test_a_class_has_the_vector_of_its_word_in_the_order_of_the_classes(file: Path) -> None:
    vectors = label_vectors(file, ["light", "dog", "café"], size=3)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, np.array([WORDS["light"], WORDS["dog"], WORDS["café"]], dtype=np.float32))


@pytest.mark.parametrize(
    "name", ["traffic light", "Traffic_Light", "traffic-light", "light  traffic", "_traffic light"]
)
def test_several_words_are_averaged_whatever_divides_them(file: Path, name: str) -> None:
    assert label_vectors(file, [name], size=3).tolist() == [[0.5, 0.5, 0.25]]


def test_a_name_is_divided_at_spaces_underscores_and_hyphens_alone() -> None:
    assert words_of("A_b-c\td.e") == ["a", "b", "c", "d.e"]


def test_case_does_not_matter_and_lower_case_is_preferred(tmp_path: Path) -> None:
    path = written(tmp_path, "Dog 1 1\nDOG 2 2\ndog 3 3\nCat 4 4\nCAT 5 5\ndog 6 6\n")
    assert label_vectors(path, ["DOG", "cat"], size=2).tolist() == [[3, 3], [4, 4]]


def test_it_reads_no_further_than_needed(tmp_path: Path) -> None:
    path = written(tmp_path, "dog 1 2\ncat 3 4\ncat not numbers\n")
    assert label_vectors(path, ["cat", "dog"], size=2).tolist() == [[3, 4], [1, 2]]


def test_lines_that_nobody_asked_for_may_be_anything(tmp_path: Path) -> None:
    header, odd = b"400000 2\n", b"\n\xff\xfe 1 2\nlonger 1 2 3 4\n"
    assert label_vectors(written(tmp_path, header + odd + b"dog 1 2\r\n"), ["dog"], size=2).tolist() == [[1, 2]]


def test_a_phrase_is_not_its_first_word(tmp_path: Path) -> None:
    path = written(tmp_path, "contact name@domain.com 7 7\ncontact 1 2\n")
    assert label_vectors(path, ["contact"], size=2).tolist() == [[1, 2]]


def test_a_word_that_is_not_there_is_named_with_class_file_and_remedy(file: Path) -> None:
    with pytest.raises(
        DataError, match=r"class 'Dining_table': there is no word 'dining'; name the class in"
    ) as caught:
        label_vectors(file, ["dog", "Dining_table"], size=3)
    assert str(caught.value).startswith(f"{file}: ")
    assert str(caught.value).endswith("or leave out the file of vectors: then they are learned")


def test_more_classes_without_a_word_are_counted(file: Path) -> None:
    with pytest.raises(DataError, match=r"class 'sofa': there is no word 'sofa' \(and for 2 more classes\)"):
        label_vectors(file, ["sofa", "dog", "no way", "---"], size=3)


@pytest.mark.parametrize("numbers", ["1 2", "1 2 3 4"])
def test_a_vector_of_another_size_names_its_line(tmp_path: Path, numbers: str) -> None:
    path = written(tmp_path, f"cat 1 2 3\ndog {numbers}\n")
    count = len(numbers.split())
    with pytest.raises(
        DataError, match=rf"line 2: 'dog' has {count} numbers instead of 3; give a whole file"
    ) as caught:
        label_vectors(path, ["dog", "cat"], size=3)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("numbers", ["1 two", "1 nan", "inf 1", "one 2"])
def test_what_is_no_number_names_its_line(tmp_path: Path, numbers: str) -> None:
    path = written(tmp_path, f"cat 1 2\ndog {numbers}\n")
    with pytest.raises(DataError, match=r"line 2: 'dog' is not followed by numbers alone; give a text file in GloVe's"):
        label_vectors(path, ["dog"], size=2)


def test_a_file_that_is_not_there_is_named_with_a_remedy(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.txt", tmp_path):
        with pytest.raises(DataError, match=r"cannot be read \(.+\); give another file, or leave out") as caught:
            label_vectors(path, ["dog"], size=2)
        assert str(caught.value).startswith(f"{path}: ")
