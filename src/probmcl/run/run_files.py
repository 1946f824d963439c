"""The files that a run writes before training, and the predictions of its candidates."""

from pathlib import Path

from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from probmcl.audit.prepare import PreparedData
from probmcl.audit.signatures import read_all, write_signatures
from probmcl.console import Console
from probmcl.data.labels import State
from probmcl.data.records import Records, Split
from probmcl.evaluation.stored_scores import ScoredRows, scores_file, write_scores
from probmcl.readers.options import METADATA_FILE, ReadOptions
from probmcl.runtime.digests import content_digest
from probmcl.settings import CONFIG_FILE, Settings
from probmcl.store.class_labels import ClassLabels, StoredPolicy
from probmcl.store.files import FOLDS, LABELS, SPLIT
from probmcl.store.images import FoldRow, SplitRow
from probmcl.store.run_folder import RunFolder, refuse_used
from probmcl.store.run_metadata import RunMetadata, environment


def create_run(folder: RunFolder, data: PreparedData, settings: Settings, console: Console) -> None:
    """Write the inputs of a run to a new or empty folder. run.json comes last because it marks the folder as a run."""
    records = data.records
    signatures = read_all(records.paths, console) if data.signatures is None else data.signatures
    options = data.source.options if data.source else ReadOptions()
    refuse_used(folder.path)
    folder.write(CONFIG_FILE, settings)
    folder.write(LABELS, class_labels(records, options))
    write_split(folder, records, data.fold_of)
    write_signatures(folder.path, records.paths, signatures)
    folder.seal_inputs()
    started = environment()
    metadata = RunMetadata(
        command=started.command,
        seed=settings.seed,
        versions=started.versions,
        commit=started.commit,
        started=started.started,
        data=data.source,
        records=records_digest(records),
        duplicates=None if data.duplicates is None else dict(data.duplicates),
        status="running",
        seconds=0.0,
        warnings=tuple(data.warnings),
        candidates=(),
        kept=None,
        model=None,
    )
    folder.write(METADATA_FILE, metadata)


def write_split(folder: RunFolder, records: Records, fold_of: Int[ndarray, "N"] | None = None) -> None:
    """Write the split of every image, and its fold if there are folds."""
    paths = records.paths.texts
    folder.write_rows(SPLIT, map(SplitRow, paths, records.split))
    if fold_of is not None:
        folder.write_rows(FOLDS, map(FoldRow, paths, fold_of.tolist()))


def class_labels(records: Records, options: ReadOptions) -> ClassLabels:
    """Return the content of labels.json: class names, training positives, parents, and the label policy."""
    space, states = records.label_space, records.states
    chances = zip(space.names, states.chance.tolist(), strict=True)
    counts = states.counts().sum(axis=1)
    policy = StoredPolicy(
        unknown="labels that are not known are ignored everywhere",
        blank=options.blank or None,
        minus_one=options.minus_one or None,
        chance_of_uncertain={name: chance for name, chance in chances if chance == chance},  # NaN: unknown
        labels={state.name.lower(): int(count) for state, count in zip(State, counts, strict=True)},
    )
    hierarchy = None if space.hierarchy is None else dict(space.hierarchy)
    return ClassLabels(names=space.names, counts=tuple(space.counts.tolist()), hierarchy=hierarchy, policy=policy)


def records_digest(records: Records) -> str:
    """Return a hash of the image paths, labels and splits."""
    texts = ["\n".join(part) for part in (records.paths.texts, records.split, records.label_space.names)]
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    return content_digest([*encoded, records.states.digest()]).hex()


def write_split_scores(
    run: RunFolder, folder: Path, records: Records, split: Split, scores: Float[Tensor, "N C"]
) -> None:
    """Write the paths, raw scores and labels of a split to the folder of a run or of one of its candidates."""
    rows = records.rows(split)
    paths = [str(records.paths[row]) for row in rows]
    write_scores(scores_file(folder, split), paths, ScoredRows.of(records, rows, scores.numpy()), root=run.path)
