"""Splits of the data of a run: as given, made as the user asks, or read from a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Int
from numpy import ndarray

from probmcl.audit.split_file import read_folds, read_splits
from probmcl.data.records import Records
from probmcl.data.splitting import Sets, folds, make_splits, taken_from_train, with_fold
from probmcl.errors import OptionError
from probmcl.readers.options import DataChecks
from probmcl.readers.spreadsheet import load_spreadsheet


class SplitRecords(NamedTuple):
    """Records with their splits, a note on how the splits were made ('' if the data define them), and the folds."""

    records: Records
    note: str
    fold_of: Int[ndarray, "N"] | None = None


def split_records(
    records: Records, checks: DataChecks, seed: int, together: Sets, left_out: Sequence[Path]
) -> SplitRecords:
    """Split records according to `checks.split_file` or `checks.folds`; without these options, call `make_splits`."""
    file = checks.split_file
    if checks.fold is not None:
        if file is not None:
            fold_of = read_folds(records, file, left_out=left_out)
        else:
            fold_of = folds(records, checks.folds or 0, seed=seed, together=together)
        result = with_fold(records, fold_of, checks.fold, seed=seed, together=together)
        note = f"test is fold {checks.fold} of {fold_of.max()}, val taken from the other folds with seed {seed}"
        return SplitRecords(result, note, fold_of)
    if file is None:
        result = make_splits(records, seed=seed, together=together)
        return SplitRecords(result, taken_from_train(records, result, seed))
    columns = load_spreadsheet(file, lambda names: "path" in names, most=0).columns
    if "fold" in columns and "split" not in columns:
        raise OptionError("split_file", file, "has folds; choose the test fold with `fold=K`")
    return SplitRecords(read_splits(records, file, left_out=left_out), f"splits from {file}")
