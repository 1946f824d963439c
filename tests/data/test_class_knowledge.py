import warnings
from pathlib import Path

import numpy as np
import pytest

from probmcl.data.class_knowledge import label_knowledge, label_vectors, words_of
from probmcl.errors import DataError

NAMES = ("dog", "Traffic light", "car", "unicorn")


def written(folder: Path, text: str, name: str = "knowledge.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_row_relates_two_classes_both_ways(tmp_path: Path) -> None:
    path = written(tmp_path, "start,end,weight\ncar,Traffic light,0.5\ndog,car,0.25\n")
    expected = np.zeros((4, 4))
    expected[1, 2] = expected[2, 1] = 0.5
    expected[0, 2] = expected[2, 0] = 0.25
    np.testing.assert_array_equal(label_knowledge(path, NAMES), expected)


@pytest.mark.parametrize(
    "header",
    ["start,end,weight", "Source,Target,Weight", "label 1,label 2,score", "head,tail,strength", "from,to,weight"],
)
def test_columns_are_found_by_name(tmp_path: Path, header: str) -> None:
    assert label_knowledge(written(tmp_path, f"{header}\ndog,car,0.5\n"), NAMES)[0, 2] == 0.5


def test_columns_may_come_in_any_order_among_others_and_with_tabs(tmp_path: Path) -> None:
    path = written(tmp_path, "weight\trel\tend\tstart\n0.5\tAtLocation\tdog\tcar\n", "edges.tsv")
    assert label_knowledge(path, NAMES)[2, 0] == 0.5


def test_without_weights_every_row_weighs_one(tmp_path: Path) -> None:
    related = label_knowledge(written(tmp_path, "source,target\ndog,car\nunicorn,dog\n"), NAMES)
    assert related[0].tolist() == [0, 0, 1, 1]


def test_rows_for_the_same_two_classes_are_averaged_in_whatever_order(tmp_path: Path) -> None:
    path = written(tmp_path, "start,end,weight\ndog,car,0.5\ncar,dog,0.2\ndog,car,0.2\n")
    assert label_knowledge(path, NAMES)[0, 2] == pytest.approx(0.3)


def test_weights_above_one_are_divided_by_the_largest_and_smaller_ones_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path, "start,end,weight\ndog,car,4\nunicorn,dog,1\ndog,Traffic light,0.0\n")
    assert label_knowledge(path, NAMES)[0].tolist() == [0, 0, 1, 0.25]


@pytest.mark.parametrize("label", ["traffic light", "TRAFFIC_LIGHT", "traffic-light", "/c/en/traffic_light/n"])
def test_a_label_is_a_class_by_its_words(tmp_path: Path, label: str) -> None:
    assert label_knowledge(written(tmp_path, f"start,end\n/c/en/car,{label}\n"), NAMES)[2, 1] == 1


def test_two_classes_of_the_same_words_are_told_apart_by_their_spelling_alone(tmp_path: Path) -> None:
    path = written(tmp_path, "start,end\nDog,car\nDOG,car\n")
    with pytest.warns(UserWarning, match="1 of 2 rows do not join two classes"):
        related = label_knowledge(path, ("dog", "Dog", "car"))
    assert related[2].tolist() == [0, 1, 0]


def test_rows_that_join_no_two_classes_are_counted_and_said(tmp_path: Path) -> None:
    path = written(tmp_path, "start,end\ndog,car\ndog,wolf\ndog,Dog\n,car\ncar,dog\n")
    with pytest.warns(
        UserWarning, match="3 of 5 rows do not join two classes of the data and are left out; the"
    ) as told:
        related = label_knowledge(path, NAMES)
    assert str(told[0].message).startswith(f"{path}: ")
    assert str(told[0].message).endswith("the others relate 1 pair of classes")
    assert related.sum() == 2


def test_nothing_is_said_where_every_row_is_taken(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        label_knowledge(written(tmp_path, "start,end\ndog,car\n"), NAMES)


def test_a_table_that_names_no_two_classes_is_an_error_with_row_value_and_remedy(tmp_path: Path) -> None:
    path = written(tmp_path, "start,end\n\nwolf,dog\ncar,lorry\n")
    with pytest.raises(DataError, match=r"row 3: 'wolf' and 'dog' are not two classes of the data, nor are") as caught:
        label_knowledge(path, NAMES)
    assert str(caught.value).startswith(f"{path}: ")
    assert "such as 'dog', or leave out the file: then the graph is made of co-occurrence" in str(caught.value)


@pytest.mark.parametrize("weight", ["much", "-1", "nan", "inf", "", '"0,5"'])
def test_a_weight_that_is_none_names_its_row(tmp_path: Path, weight: str) -> None:
    path, shown = written(tmp_path, f"start,end,weight\ndog,car,1\ndog,wolf,{weight}\n"), weight.strip('"')
    with pytest.raises(
        DataError, match=rf"row 3: column 'weight' holds '{shown}'; a weight is a number from 0 on, such"
    ):
        label_knowledge(path, NAMES)


@pytest.mark.parametrize(
    ("header", "lacking"), [("dog,end", "start"), ("start,wolf", "end"), ("unicorn,car,0.5", "start")]
)
def test_a_column_that_is_not_there_is_named(tmp_path: Path, header: str, lacking: str) -> None:
    with pytest.raises(
        DataError,
        match=rf"none of its columns \({header.replace(',', ', ')}\).*name it '{lacking}', or put a row 'start,end",
    ):
        label_knowledge(written(tmp_path, f"{header}\n{header}\n"), NAMES)


def test_conceptnets_own_file_is_known_by_its_first_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = '/a/[/r/AtLocation/,/c/en/dog/,/c/en/car/]\t/r/AtLocation\t/c/en/dog\t/c/en/car\t{"weight": 1.0}\n'
    path = written(tmp_path, line)
    monkeypatch.setattr("probmcl.data.class_knowledge.load", None)  # it may have gigabytes
    with pytest.raises(
        DataError, match=r"row 1: begins with '/a/\['.*below a row 'start,end,weight', or leave"
    ) as caught:
        label_knowledge(path, NAMES)
    assert str(caught.value).startswith(f"{path}: ")


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
def test_a_table_as_spreadsheets_write_it(tmp_path: Path, text: str) -> None:
    assert label_knowledge(written(tmp_path, text), NAMES)[0, 2] == 0.5


def test_two_columns_that_could_be_the_same_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="columns 'start' and 'source' could each be the start; rename those"):
        label_knowledge(written(tmp_path, "start,source,end\ndog,car,dog\n"), NAMES)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.csv does not exist"):
        label_knowledge(tmp_path / "nowhere.csv", NAMES)


WORDS = {"the": (9, 9, 9), "dog": (1, 2, 3), "traffic": (1, 0, 0), "light": (0, 1, 0.5), "café": (-1e-3, 2e2, 0)}


def written_vectors(folder: Path, lines: str | bytes) -> Path:
    path = folder / "vectors.txt"
    path.write_bytes(lines.encode() if isinstance(lines, str) else lines)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written_vectors(tmp_path, "".join(f"{word} {' '.join(map(str, v))}\n" for word, v in WORDS.items()))


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
    path = written_vectors(tmp_path, "Dog 1 1\nDOG 2 2\ndog 3 3\nCat 4 4\nCAT 5 5\ndog 6 6\n")
    assert label_vectors(path, ["DOG", "cat"], size=2).tolist() == [[3, 3], [4, 4]]


def test_it_reads_no_further_than_needed(tmp_path: Path) -> None:
    path = written_vectors(tmp_path, "dog 1 2\ncat 3 4\ncat not numbers\n")
    assert label_vectors(path, ["cat", "dog"], size=2).tolist() == [[3, 4], [1, 2]]


def test_lines_that_nobody_asked_for_may_be_anything(tmp_path: Path) -> None:
    header, odd = b"400000 2\n", b"\n\xff\xfe 1 2\nlonger 1 2 3 4\n"
    assert label_vectors(written_vectors(tmp_path, header + odd + b"dog 1 2\r\n"), ["dog"], size=2).tolist() == [[1, 2]]


def test_a_phrase_is_not_its_first_word(tmp_path: Path) -> None:
    path = written_vectors(tmp_path, "contact name@domain.com 7 7\ncontact 1 2\n")
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
    path = written_vectors(tmp_path, f"cat 1 2 3\ndog {numbers}\n")
    count = len(numbers.split())
    with pytest.raises(
        DataError, match=rf"line 2: 'dog' has {count} numbers instead of 3; give a whole file"
    ) as caught:
        label_vectors(path, ["dog", "cat"], size=3)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("numbers", ["1 two", "1 nan", "inf 1", "one 2"])
def test_what_is_no_number_names_its_line(tmp_path: Path, numbers: str) -> None:
    path = written_vectors(tmp_path, f"cat 1 2\ndog {numbers}\n")
    with pytest.raises(DataError, match=r"line 2: 'dog' is not followed by numbers alone; give a text file in GloVe's"):
        label_vectors(path, ["dog"], size=2)


def test_a_file_that_is_not_there_is_named_with_a_remedy(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.txt", tmp_path):
        with pytest.raises(DataError, match=r"cannot be read \(.+\); give another file, or leave out") as caught:
            label_vectors(path, ["dog"], size=2)
        assert str(caught.value).startswith(f"{path}: ")
