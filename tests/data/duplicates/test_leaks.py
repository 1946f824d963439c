from probmcl.data.duplicates.leaks import REMEDY, leaks
from probmcl.data.duplicates.search import NearPair

SPLIT = ("train", "train", "val", "test", "test")


def pair(one: int, other: int, *, confirmed: bool) -> NearPair:
    return NearPair(one, other, 3, 0.97, confirmed)


def test_only_what_stands_in_two_splits_leaks() -> None:
    sure, unsure = pair(1, 2, confirmed=True), pair(2, 3, confirmed=False)
    inside = [pair(0, 1, confirmed=True), pair(3, 4, confirmed=False)]
    found = leaks(SPLIT, ("a", "a", "b", "c", "b"), [(0, 1), (3, 4), (0, 1, 2)], [sure, unsure, *inside])
    assert found.exact == [(0, 1, 2)]
    assert found.groups == {"b": (2, 4)}
    assert found.confirmed == [sure]
    assert found.doubtful == [unsure]


def test_equal_files_groups_and_confirmed_pairs_block_and_doubtful_ones_do_not() -> None:
    assert leaks(SPLIT, None, [(0, 3)], []).blocks
    assert leaks(SPLIT, ("a", "b", "c", "a", "d"), [], []).blocks
    assert leaks(SPLIT, None, [], [pair(0, 3, confirmed=True)]).blocks
    assert not leaks(SPLIT, None, [], [pair(0, 3, confirmed=False)]).blocks
    assert not leaks(SPLIT, ("a", "a", "b", "c", "c"), [(0, 1)], [pair(3, 4, confirmed=True)]).blocks


def test_a_leak_is_told_with_splits_files_and_remedies() -> None:
    names = [f"{row}.jpg" for row in range(5)]
    near = [pair(0, 4, confirmed=True), pair(1, 2, confirmed=False)]
    lines = leaks(SPLIT, ("a", "b", "c", "c", "d"), [(1, 2, 3)], near).lines(names)
    assert lines == [
        "equal files in train and val: 1",
        "  1.jpg (train) and 2.jpg (val)",
        "equal files in train and test: 1",
        "  1.jpg (train) and 3.jpg (test)",
        "equal files in val and test: 1",
        "  2.jpg (val) and 3.jpg (test)",
        "one group in val and test: 1",
        "  2.jpg (val) and 3.jpg (test): group 'c'",
        "the same picture in train and test: 1",
        "  0.jpg (train) and 4.jpg (test): correlation 0.970",
        "perhaps the same picture in train and val: 1",
        "  1.jpg (train) and 2.jpg (val): correlation 0.970",
    ]
    for remedy in ("allow_leaks", "`group=COLUMN`", "drop the split column"):
        assert remedy in REMEDY


def test_a_doubtful_pair_is_told_and_nothing_else_is() -> None:
    assert leaks(SPLIT, None, [], []).lines([]) == []
    lines = leaks(SPLIT, None, [], [pair(0, 3, confirmed=False)]).lines(list("abcde"))
    assert lines == ["perhaps the same picture in train and test: 1", "  a (train) and d (test): correlation 0.970"]


def test_many_leaks_are_counted_and_the_first_few_shown() -> None:
    split = ["train"] * 2000 + ["test"] * 2000
    lines = leaks(split, None, [(row, 2000 + row) for row in range(2000)], []).lines([str(row) for row in range(4000)])
    assert lines[0] == "equal files in train and test: 2,000"
    assert lines[1:4] == [f"  {row} (train) and {2000 + row} (test)" for row in range(3)]
    assert len(lines) == 4
