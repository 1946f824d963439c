"""Options with several values, which may be one text with commas between them."""

from collections.abc import Callable, Sequence


def split_at_commas(values: Sequence[str], is_value: Callable[[str], bool]) -> tuple[str, ...]:
    """Split each value at its commas, unless it is a value itself or some part is not.

    >>> split_at_commas(["site,date", "lung, left", "lung, right"], {"site", "date", "lung, left"}.__contains__)
    ('site', 'date', 'lung, left', 'lung, right')
    """
    result: list[str] = []
    for value in values:
        parts = [part.strip() for part in value.split(",")]
        split = len(parts) > 1 and not is_value(value) and all(map(is_value, parts))
        result += parts if split else [value]
    return tuple(result)
