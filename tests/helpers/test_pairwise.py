from itertools import combinations, product

from helpers.pairwise import pairwise_cover


def test_cover_has_every_pair_of_values() -> None:
    cases = [dict(zip("abcd", values, strict=True)) for values in product("xy", range(5), range(7), (None, 0.5, 1))]
    chosen = pairwise_cover(cases)
    assert len(chosen) < len(cases) / 4
    for first, second in combinations("abcd", 2):
        pairs = {(case[first], case[second]) for case in cases}
        assert {(cases[index][first], cases[index][second]) for index in chosen} == pairs


def test_cover_of_one_parameter_has_every_value() -> None:
    assert pairwise_cover([{"a": value} for value in range(4)]) == {0, 1, 2, 3}
    assert pairwise_cover([]) == set()
