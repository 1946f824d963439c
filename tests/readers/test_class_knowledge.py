import warnings
from pathlib import Path

import numpy as np
import pytest

from probmcl.errors import DataError
from probmcl.readers.class_knowledge import label_knowledge, label_vectors, words_of

NAMES = ("dog", "Traffic light", "car", "unicorn")


def write(folder: Path, text: str, name: str = "knowledge.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_relations_are_symmetric(tmp_path: Path) -> None:
    path = write(tmp_path, "start,end,weight\ncar,Traffic light,0.5\ndog,car,0.25\n")
    expected = np.zeros((4, 4))
    expected[1, 2] = expected[2, 1] = 0.5
    expected[0, 2] = expected[2, 0] = 0.25
    np.testing.assert_array_equal(label_knowledge(path, NAMES), expected)


@pytest.mark.parametrize(
    "header",
    ["start,end,weight", "Source,Target,Weight", "label 1,label 2,score", "head,tail,strength", "from,to,weight"],
)
def test_columns_are_found_by_name(tmp_path: Path, header: str) -> None:
    assert label_knowledge(write(tmp_path, f"{header}\ndog,car,0.5\n"), NAMES)[0, 2] == 0.5


def test_order_of_columns_and_other_columns_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path, "weight\trel\tend\tstart\n0.5\tAtLocation\tdog\tcar\n", "edges.tsv")
    assert label_knowledge(path, NAMES)[2, 0] == 0.5


def test_weights_default_to_one(tmp_path: Path) -> None:
    related = label_knowledge(write(tmp_path, "source,target\ndog,car\nunicorn,dog\n"), NAMES)
    assert related[0].tolist() == [0, 0, 1, 1]


def test_rows_for_the_same_pair_are_averaged(tmp_path: Path) -> None:
    path = write(tmp_path, "start,end,weight\ndog,car,0.5\ncar,dog,0.2\ndog,car,0.2\n")
    assert label_knowledge(path, NAMES)[0, 2] == pytest.approx(0.3)


def test_weights_above_one_are_normalized(tmp_path: Path) -> None:
    path = write(tmp_path, "start,end,weight\ndog,car,4\nunicorn,dog,1\ndog,Traffic light,0.0\n")
    assert label_knowledge(path, NAMES)[0].tolist() == [0, 0, 1, 0.25]


@pytest.mark.parametrize("label", ["traffic light", "TRAFFIC_LIGHT", "traffic-light", "/c/en/traffic_light/n"])
def test_labels_match_classes_by_words(tmp_path: Path, label: str) -> None:
    assert label_knowledge(write(tmp_path, f"start,end\n/c/en/car,{label}\n"), NAMES)[2, 1] == 1


def test_classes_with_the_same_words_match_by_exact_name_only(tmp_path: Path) -> None:
    path = write(tmp_path, "start,end\nDog,car\nDOG,car\n")
    with pytest.warns(UserWarning, match="1 of 2 rows does not .* and is ignored; the other relates 1 pair"):
        related = label_knowledge(path, ("dog", "Dog", "car"))
    assert related[2].tolist() == [0, 1, 0]


def test_unused_rows_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path, "start,end\ndog,car\ndog,wolf\ndog,Dog\n,car\ncar,dog\n")
    with pytest.warns(UserWarning, match="3 of 5 rows do not .* and are ignored; the others") as caught:
        related = label_knowledge(path, NAMES)
    assert str(caught[0].message).startswith(f"{path}: ")
    assert str(caught[0].message).endswith("the others relate 1 pair of classes")
    assert related.sum() == 2


def test_no_warning_if_all_rows_are_used(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        label_knowledge(write(tmp_path, "start,end\ndog,car\n"), NAMES)


def test_table_without_a_pair_of_classes_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "start,end\n\nwolf,dog\ncar,lorry\n")
    with pytest.raises(DataError, match="row 3: 'wolf' and 'dog' are not two classes") as caught:
        label_knowledge(path, NAMES)
    assert str(caught.value).startswith(f"{path}, ")
    assert "such as 'dog'" in str(caught.value)


@pytest.mark.parametrize("weight", ["much", "-1", "nan", "inf", "", '"0,5"'])
def test_invalid_weight_is_refused(tmp_path: Path, weight: str) -> None:
    path, shown = write(tmp_path, f"start,end,weight\ndog,car,1\ndog,wolf,{weight}\n"), weight.strip('"')
    with pytest.raises(DataError, match=rf"row 3: weight 'weight' is '{shown}'"):
        label_knowledge(path, NAMES)


@pytest.mark.parametrize(
    ("header", "missing"), [("dog,end", "start"), ("start,wolf", "end"), ("unicorn,car,0.5", "start")]
)
def test_missing_column_is_refused(tmp_path: Path, header: str, missing: str) -> None:
    with pytest.raises(
        DataError,
        match=rf"columns {header.replace(',', ', ')} .*'{missing}'",
    ):
        label_knowledge(write(tmp_path, f"{header}\n{header}\n"), NAMES)


def test_file_of_conceptnet_is_refused_by_its_first_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = '/a/[/r/AtLocation/,/c/en/dog/,/c/en/car/]\t/r/AtLocation\t/c/en/dog\t/c/en/car\t{"weight": 1.0}\n'
    path = write(tmp_path, line)
    monkeypatch.setattr("probmcl.readers.class_knowledge.load_spreadsheet", None)  # the file must not be loaded
    with pytest.raises(DataError, match=r"row 1: starts with '/a/\['.*'start,end,weight'") as caught:
        label_knowledge(path, NAMES)
    assert str(caught.value).startswith(f"{path}, ")


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffstart,end,weight\ndog,car,0.5\n",
        "start;end;weight\r\ndog;car;0.5\r\n",
        "start\tend\tweight\ndog\tcar\t0.5\n",
        '"START","END","WEIGHT"\n"DOG","Car","0.5"\n',
        "end,start,weight\ndog,car,0.5\n\n",
    ],
)
def test_dialects_of_spreadsheets(tmp_path: Path, text: str) -> None:
    assert label_knowledge(write(tmp_path, text), NAMES)[0, 2] == 0.5


def test_two_columns_for_one_role_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="columns 'start' and 'source' could all be"):
        label_knowledge(write(tmp_path, "start,source,end\ndog,car,dog\n"), NAMES)


def test_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.csv does not exist"):
        label_knowledge(tmp_path / "nowhere.csv", NAMES)


WORDS = {"the": (9, 9, 9), "dog": (1, 2, 3), "traffic": (1, 0, 0), "light": (0, 1, 0.5), "café": (-1e-3, 2e2, 0)}


def write_vectors(folder: Path, lines: str | bytes) -> Path:
    path = folder / "vectors.txt"
    path.write_bytes(lines.encode() if isinstance(lines, str) else lines)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_vectors(tmp_path, "".join(f"{word} {' '.join(map(str, v))}\n" for word, v in WORDS.items()))


def test_vectors_are_in_the_order_of_the_classes(file: Path) -> None:
    vectors = label_vectors(file, ["light", "dog", "café"], size=3)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, np.array([WORDS["light"], WORDS["dog"], WORDS["café"]], dtype=np.float32))


@pytest.mark.parametrize(
    "name", ["traffic light", "Traffic_Light", "traffic-light", "light  traffic", "_traffic light"]
)
def test_vectors_of_several_words_are_averaged(file: Path, name: str) -> None:
    assert label_vectors(file, [name], size=3).tolist() == [[0.5, 0.5, 0.25]]


def test_names_are_split_at_spaces_underscores_and_hyphens() -> None:
    assert words_of("A_b-c\td.e") == ["a", "b", "c", "d.e"]


def test_case_is_ignored_and_lower_case_takes_precedence(tmp_path: Path) -> None:
    path = write_vectors(tmp_path, "Dog 1 1\nDOG 2 2\ndog 3 3\nCat 4 4\nCAT 5 5\ndog 6 6\n")
    assert label_vectors(path, ["DOG", "cat"], size=2).tolist() == [[3, 3], [4, 4]]


def test_reading_stops_when_all_words_are_found(tmp_path: Path) -> None:
    path = write_vectors(tmp_path, "dog 1 2\ncat 3 4\ncat not numbers\n")
    assert label_vectors(path, ["cat", "dog"], size=2).tolist() == [[3, 4], [1, 2]]


def test_invalid_lines_of_other_words_are_ignored(tmp_path: Path) -> None:
    header, invalid = b"400000 2\n", b"\n\xff\xfe 1 2\nlonger 1 2 3 4\n"
    assert label_vectors(write_vectors(tmp_path, header + invalid + b"dog 1 2\r\n"), ["dog"], size=2).tolist() == [
        [1, 2]
    ]


def test_phrases_are_ignored(tmp_path: Path) -> None:
    path = write_vectors(tmp_path, "contact name@domain.com 7 7\ncontact 1 2\n")
    assert label_vectors(path, ["contact"], size=2).tolist() == [[1, 2]]


def test_missing_word_is_refused(file: Path) -> None:
    with pytest.raises(DataError, match=r"'dining' in class 'Dining_table'") as caught:
        label_vectors(file, ["dog", "Dining_table"], size=3)
    assert str(caught.value).startswith(f"{file}: ")


def test_classes_with_missing_words_are_counted(file: Path) -> None:
    with pytest.raises(DataError, match=r"'sofa' in class 'sofa' \(and for 2 more classes\)"):
        label_vectors(file, ["sofa", "dog", "no way", "---"], size=3)


@pytest.mark.parametrize("numbers", ["1 2", "1 2 3 4"])
def test_vector_of_another_size_is_refused(tmp_path: Path, numbers: str) -> None:
    path = write_vectors(tmp_path, f"cat 1 2 3\ndog {numbers}\n")
    count = len(numbers.split())
    with pytest.raises(DataError, match=rf"line 2: 'dog' has {count} numbers") as caught:
        label_vectors(path, ["dog", "cat"], size=3)
    assert str(caught.value).startswith(f"{path}, ")


@pytest.mark.parametrize("numbers", ["1 two", "1 nan", "inf 1", "one 2"])
def test_vector_with_invalid_numbers_is_refused(tmp_path: Path, numbers: str) -> None:
    path = write_vectors(tmp_path, f"cat 1 2\ndog {numbers}\n")
    with pytest.raises(DataError, match="line 2: 'dog' must be followed by numbers"):
        label_vectors(path, ["dog"], size=2)


def test_missing_vectors_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.txt", tmp_path):
        with pytest.raises(DataError, match=r"cannot be read \(.+\)") as caught:
            label_vectors(path, ["dog"], size=2)
        assert str(caught.value).startswith(str(path))
