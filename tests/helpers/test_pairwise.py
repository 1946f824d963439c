from itertools import combinations, product

from helpers.pairwise import pairwise_cover


def test_a_small_part_of_a_grid_has_every_pair_of_values() -> None:
    cases = [dict(zip("abcd", values, strict=True)) for values in product("xy", range(5), range(7), (None, 0.5, 1))]
    chosen = pairwise_cover(cases)
    assert len(chosen) < len(cases) / 4
    for one, other in combinations("abcd", 2):
        pairs = {(case[one], case[other]) for case in cases}
        assert {(cases[index][one], cases[index][other]) for index in chosen} == pairs


def test_of_one_parameter_every_value_is_taken() -> None:
    assert pairwise_cover([{"a": value} for value in range(4)]) == {0, 1, 2, 3}
    assert pairwise_cover([]) == set()
