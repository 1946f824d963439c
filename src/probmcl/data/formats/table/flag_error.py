"""A flag that is wrong, as distinct from data that are."""

from probmcl.data.records import DataError


class FlagError(DataError):
    """A flag names or says what there is not; the data may be fine, and nothing was found out about them."""
