"""The model of a run: prediction, explanation, embedding and evaluation."""

import contextlib
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, final, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from numpy import ndarray

from probmcl.audit.findings import BadImage, without_bad
from probmcl.calibration import Calibration, ThresholdRule, abstention_limits
from probmcl.calibration.maps import Kind
from probmcl.console import Console
from probmcl.data.images import Preprocessing
from probmcl.data.labels import levels_of, parents_of
from probmcl.data.loader import Decoded, Source, decode, decode_files, find
from probmcl.data.records import SPLITS, Records
from probmcl.errors import DataError, ImageError, OptionError, calibrate_call, counted
from probmcl.evaluation.bootstrap import affordable_draws
from probmcl.evaluation.evaluate import EvaluatedModel
from probmcl.evaluation.groups import EvaluationOptions, evaluate_rows
from probmcl.evaluation.metrics import DEFAULT_THRESHOLD
from probmcl.evaluation.scores import ScoredRows, read_scores, scores_file
from probmcl.explain import Explanation, Explanations
from probmcl.explain.explanations import NOT_FINITE, explain_batch, failed_rows, label_columns
from probmcl.inference.evaluation import (
    AppliedCalibration,
    ClassMapping,
    EvaluatedImages,
    ScoredEvaluation,
    ScoreRecords,
    count_calibrated_on,
    count_trained_on,
    match_classes,
    read_renames,
    read_run_splits,
    select_split,
    unscored,
    with_provenance,
)
from probmcl.inference.predictions import Predictions
from probmcl.methods.base import Classifier
from probmcl.readers.options import DataSource, refuse_share
from probmcl.readers.read import read_recorded, read_source
from probmcl.runtime.machine import CPU_PIXELS, GPU_PIXELS
from probmcl.settings.declaration import method_keywords_of
from probmcl.settings.model_options import (
    CalibrateOptions,
    EmbedOptions,
    EvaluateOptions,
    ExplainOptions,
    PredictOptions,
    StreamOptions,
)
from probmcl.store.evaluation import ModelEvaluation

DecisionRule = tuple[float | Float64[ndarray, " C"], Float64[ndarray, " C"] | None]
"""The threshold of yes decisions, for all classes or per class, and that of no decisions if the model may abstain."""


@final
class Model:
    """The trained model of a run.

    Images can be files, folders, patterns (`photos/**/*.jpg`), `.txt` lists of paths, Pillow images, NumPy arrays
    (H×W×3, H×W×4 or H×W; uint8), tensors (3×H×W, 1×H×W or H×W; uint8, or floats between 0 and 1), or a list of these.
    An opened Pillow image has exactly the scores of its file. A large JPEG whose pixels have been loaded has slightly
    different scores, because a file is decoded at a reduced size (up to 0.02 for 100 photographs, enlarged to 720 px).

    Files are decoded by `workers` processes (None: one per core, up to eight; 0: in this process). On Linux, the script
    does not need `if __name__ == "__main__"`. `batch_size` is the number of images in a forward pass (None: depends on
    the device). During inference, glibc keeps freed memory and idle OpenMP threads sleep sooner in the whole process;
    both settings end with the call (with the iteration, for `stream`). A call that takes more than a few seconds shows
    its progress on stderr; the argument `console=Console.quiet()` (from `probmcl.console`) turns this off.

    Attributes:
        classifier: the network.
        names: the classes, in the order of the scores.
        hierarchy: the parent of each class that has one.
        preprocessing: the transform from an image to the network's input.
        calibration: calibrated probabilities and thresholds; None for an unfinished run, which has raw scores.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        names: tuple[str, ...],
        preprocessing: Preprocessing,
        device: torch.device,
        folder: Path,
        source: DataSource | None,
        hierarchy: Mapping[str, str] | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        # Images have the same memory format, which makes convolutions faster.
        moved = classifier.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.classifier: Classifier = moved.eval()
        self.names, self.preprocessing, self.device = names, preprocessing, device
        self.folder, self.hierarchy, self._source, self.calibration = folder, hierarchy, source, calibration
        self._parents = parents_of(names, hierarchy)

    def __repr__(self) -> str:
        classes = counted(len(self.names), "class", "classes")
        summary = f"{classes}, {self.preprocessing.size} px, {self.device}"
        summary += ", not calibrated" if self.calibration is None else ""
        return f"Model({str(self.folder)!r}, {summary})"

    @method_keywords_of(PredictOptions)
    def predict(self, options: PredictOptions) -> Predictions:
        """Return a calibrated probability and a decision for each image and class; unreadable images are in `errors`.

        The default threshold of raw scores is 0.5. With `abstain`, the error rates among the yes and among the no
        decisions of each class stay below it with probability 0.9, other decisions are left open, and thresholds are
        not used.
        """
        rule = self._decision_rule(options.threshold, options.raw, options.abstain)
        blocks = _with_progress(self._stream(options, rule), "predicting", options.images, options.console)
        return Predictions.concatenate(self.names, rule[0], blocks)

    @method_keywords_of(StreamOptions)
    def stream(self, options: StreamOptions) -> Iterator[Predictions]:
        """Yield the predictions of `predict` in blocks, so memory use does not grow with the number of images."""
        return self._stream(options, self._decision_rule(options.threshold, options.raw, options.abstain))

    def _stream(self, options: StreamOptions, rule: DecisionRule) -> Iterator[Predictions]:
        batches = self._decode(options)
        return (self._predict_batch(batch, rule, options.raw) for batch in batches)

    def _decode(self, options: StreamOptions | EmbedOptions | ExplainOptions) -> Generator[Decoded, None, None]:
        size = self._batch_size(options.batch_size)
        return decode(options.images, self.preprocessing, batch_size=size, workers=options.workers)

    @method_keywords_of(EmbedOptions)
    @torch.inference_mode()
    def embed(self, options: EmbedOptions) -> Float[ndarray, "N D"]:
        """Return the encoder's unnormalized features for each image; an unreadable image is an error."""
        features: list[ndarray] = []
        batches = self._decode(options)
        with contextlib.closing(batches):
            for batch in _with_progress(batches, "embedding", options.images, options.console):
                if batch.errors:
                    raise ImageError(batch.errors[0].path, f"{batch.errors[0].reason}; repair or remove it")
                rows = self.classifier.encoder(batch.images.to(self.device, memory_format=torch.channels_last))
                if failed := failed_rows(batch, rows):
                    raise ImageError(batch.paths[min(failed)], f"{NOT_FINITE}; remove it, or train again")
                features.append(np.asarray(rows.float().cpu()))
        return np.concatenate(features)

    @method_keywords_of(ExplainOptions)
    def explain(self, options: ExplainOptions) -> Explanations:
        """Return a Grad-CAM heat map for each image and label; unreadable images are in `errors`."""
        columns = label_columns(options.labels, self.names)
        yes, _ = self._decision_rule(options.threshold, False, None)

        def decide(scores: Float[ndarray, "K C"]) -> tuple[Float[ndarray, "K C"], Bool[ndarray, "K C"]]:
            probabilities = self._probabilities(scores, raw=False)
            return probabilities, probabilities > yes

        batches = self._decode(options)
        explained: list[Explanation] = []
        with contextlib.closing(batches):
            for batch in _with_progress(batches, "explaining", options.images, options.console):
                explained += explain_batch(self.classifier, batch, self.names, decide, columns)
        return Explanations(self.names, tuple(explained))

    @method_keywords_of(EvaluateOptions)
    def evaluate(self, options: EvaluateOptions) -> ModelEvaluation:
        """Evaluate the model on one split of labeled data, with confidence intervals.

        Images of the run keep the split that they had there. New images have their split in the data; if the data have
        only train images, new images count as `split`. Classes are matched by name. The result also lists the classes
        that only the model or only the data have, the `skipped` images, and the number of images that the run was
        `trained_on` and `calibrated_on`. For the data of the run, `read` overrides the stored options. The bootstrap
        draws groups, or images if there are no groups.

        Values of the result are attributes, as in `result.mAP`, and can also be read by their keys in evaluation.json,
        as in `result["at"]["0.5"]["CF1"]`.
        """
        if options.split not in SPLITS:
            raise OptionError("split", options.split, f"must be one of {', '.join(SPLITS)}")
        refuse_share(options.skip_bad)
        self._evaluation_options(options, images=1)  # raises errors before the data are read
        self._decision_rule(None, options.raw, options.abstain)
        console = options.console or Console.delayed()
        source = self._evaluation_source(options)
        keep = () if options.by is None else (options.by,)
        with console.working("reading the data"):
            is_recorded = options.data is None
            records = read_recorded(source, console, keep=keep) if is_recorded else read_source(source, keep=keep)
        return self.evaluate_records(records, options).evaluation

    def evaluate_records(
        self, records: Records, options: EvaluateOptions, score: ScoreRecords | None = None
    ) -> ScoredEvaluation:
        """Evaluate the model on one split of records; see `evaluate`.

        `score` computes the raw scores (default: the method `score`); several processes may share the work.
        """
        console = options.console or Console.delayed()
        renames = read_renames(options.rename, model=self.names, data=records.label_space.names)
        mapping = match_classes(self.names, records.label_space.names, renames)
        run_splits = read_run_splits(self.folder)
        records = select_split(records, options.split, run_splits)
        how = self._evaluation_options(options, len(records))
        how.values(records)  # raises errors before images are scored
        trained_on = count_trained_on(records.paths, run_splits, options.split)
        applied = self._applied_calibration(options, records.paths, mapping)
        records, scores, bad = (score or self.score)(records, options, console)
        images = EvaluatedImages.of_records(records, mapping, how)
        images = replace(images, renames=renames, trained_on=trained_on, skipped=unscored(bad))
        return ScoredEvaluation(records, scores, self.evaluate_scores(scores, images, applied, how, console))

    def evaluate_scores(
        self,
        scores: Float[ndarray, "N C"],
        images: EvaluatedImages,
        applied: AppliedCalibration,
        how: EvaluationOptions,
        console: Console,
    ) -> ModelEvaluation:
        """Evaluate the raw scores of images."""
        calibration = applied.calibration
        columns = images.mapping.in_model
        probabilities = scores if calibration is None else calibration.probabilities(scores, self._parents)
        unchanged = calibration is None or (calibration.kind == "none" and not self.hierarchy)
        rows = ScoredRows(
            probabilities[:, columns],
            images.labels,
            images.known,
            images.group,
            raw=None if unchanged else scores[:, columns],
        )
        described = EvaluatedModel(
            images.mapping.common,
            levels=levels_of(self._parents)[columns].tolist() if self.hierarchy else (),
            note=self.classifier.note,
            thresholds=None if calibration is None else calibration.threshold[columns],
            limits=applied.limits,
        )
        evaluation = evaluate_rows(rows, described, how, images.values, console)
        return with_provenance(evaluation, images, applied)

    def _evaluation_options(self, options: EvaluateOptions, images: int) -> EvaluationOptions:
        draws = affordable_draws(images, len(self.names)) if options.draws is None else options.draws
        return EvaluationOptions(
            split=options.split, by=options.by, aggregate=options.aggregate, draws=draws, seed=options.seed
        )

    def _applied_calibration(
        self, options: EvaluateOptions, paths: Sequence[Path], mapping: ClassMapping
    ) -> AppliedCalibration:
        calibration = None if options.raw else self.calibration
        if calibration is None:
            return AppliedCalibration(None)
        yes, no = self._decision_rule(None, options.raw, options.abstain)
        columns = mapping.in_model
        limits = None if no is None else (no[columns], np.asarray(yes)[columns])
        return AppliedCalibration(calibration, self._count_calibrated_on(paths, calibration), limits)

    @method_keywords_of(CalibrateOptions)
    def calibrate(self, options: CalibrateOptions) -> Calibration:
        """Fit the calibration and the thresholds again, use them from now on, and write them to the run folder.

        Without data, they are fitted to the same held-out scores as before. With data from another site, they are
        fitted to its validation images or, if the data have no splits, to all of its images; classes that the data
        lack keep their calibration. The scores of the run's test images in evaluation.json are updated.
        """
        from probmcl.inference import recalibration

        if options.calibration not in (None, *get_args(Kind)):
            raise OptionError("calibration", options.calibration, f"must be one of {', '.join(get_args(Kind))}")
        before = self.calibration
        kind = options.calibration or (before.kind if before else "sigmoid")
        thresholds = before.thresholds if before else "balanced"
        rule = ThresholdRule.parse(thresholds if options.thresholds is None else options.thresholds)
        refuse_share(options.skip_bad)
        recalibration.refuse_unfinished(self.folder)
        console = options.console or Console.delayed()
        if options.data is None:
            held_out = recalibration.stored_held_out_scores(self)
        else:
            source = self._evaluation_source(options)
            held_out = recalibration.score_other_images(self, source, options, console)
        self.calibration = recalibration.calibrate_run(self, held_out, kind, rule, console)
        return self.calibration

    def _evaluation_source(self, options: EvaluateOptions | CalibrateOptions) -> DataSource:
        if options.data is not None:
            images = None if options.images is None else Path(options.images)
            return DataSource(Path(options.data), images, options.read)
        if self._source is None:
            raise DataError("the data of this run were not read from a file; specify the data to evaluate on")
        return self._source.with_changes(options.images, options.read)

    def score(
        self, records: Records, options: EvaluateOptions | CalibrateOptions, console: Console
    ) -> tuple[Records, Float[ndarray, "N C"], list[BadImage]]:
        """Score the readable images. If too many are unreadable, the rest are only decoded, to list all bad images."""
        scores: list[ndarray] = []
        bad: list[BadImage] = []
        size, first = self._batch_size(options.batch_size), 0
        with console.progress("scoring", len(records)) as bar:
            for batch in decode_files(records.paths, self.preprocessing, batch_size=size, workers=options.workers):
                if len(bad) / len(records) <= (options.skip_bad or 0.0):
                    batch, block = self._scores(batch)
                    scores.append(block)
                unreadable = sorted(set(range(len(batch.paths))) - set(batch.rows))
                for row, error in zip(unreadable, batch.errors, strict=True):
                    bad.append(BadImage(first + row, error.path, error.reason))
                first += len(batch.paths)
                bar.advance(len(batch.paths), steps=len(batch.paths))
        return without_bad(records, bad, share=options.skip_bad), np.concatenate(scores), bad

    def _count_calibrated_on(self, paths: Sequence[Path], calibration: Calibration) -> int | None:
        """Return how many images the calibration was fitted to; None if its images are not stored with the run."""
        file = scores_file(self.folder, calibration.predictions)
        if not file.is_file():
            problem = f"{file} does not exist, so images that the calibration was fitted to cannot be recognized"
            warnings.warn(problem, stacklevel=3)
            return None
        return count_calibrated_on(paths, read_scores(file).paths)

    def _decision_rule(self, threshold: float | None, raw: bool, abstain: float | None) -> DecisionRule:
        """Return the threshold of yes decisions and, if the model may abstain, that of no decisions."""
        if threshold is not None and (not isinstance(threshold, int | float) or not 0 <= threshold <= 1):
            raise OptionError("threshold", threshold, "must be a probability between 0 and 1")
        if abstain is None:
            chosen = DEFAULT_THRESHOLD if self.calibration is None or raw else self.calibration.threshold
            return chosen if threshold is None else threshold, None
        if threshold is not None or raw:
            other = "raw" if raw else "threshold"
            raise OptionError("abstain", abstain, f"cannot be combined with `{other}`")
        if self.calibration is None:
            raise OptionError("abstain", abstain, f"needs a calibration; first run {calibrate_call(self.folder)}")
        file = scores_file(self.folder, self.calibration.predictions)
        if not file.is_file():
            raise OptionError("abstain", abstain, f"needs the held-out scores of the run, but {file} does not exist")
        rows = read_scores(file, classes=len(self.names)).rows
        limits = abstention_limits(abstain, self._probabilities(rows.scores, raw), rows.labels, rows.known)
        return limits.yes, limits.no

    def _batch_size(self, batch_size: int | None) -> int:
        pixels = CPU_PIXELS if self.device.type == "cpu" else GPU_PIXELS
        return max(1, pixels // self.preprocessing.size**2) if batch_size is None else batch_size

    def _predict_batch(self, batch: Decoded, rule: DecisionRule, raw: bool) -> Predictions:
        dtype = np.float32 if self.calibration is None or raw else np.float64
        scores = np.full((len(batch.paths), len(self.names)), np.nan, dtype=dtype)
        batch, readable = self._scores(batch)
        if batch.rows:
            scores[batch.rows] = self._probabilities(readable, raw)
        errors = iter(batch.errors)
        reasons = tuple(None if row in batch.rows else next(errors).reason for row in range(len(batch.paths)))
        threshold, no_up_to = rule
        return Predictions(self.names, tuple(batch.paths), scores, threshold, reasons, no_up_to)

    def _probabilities(self, scores: Float[ndarray, "N C"], raw: bool) -> Float[ndarray, "N C"]:
        """Calibrate scores, unless raw scores are requested or the run has no calibration."""
        if self.calibration is None or raw:
            return scores
        return self.calibration.probabilities(scores, self._parents)

    @torch.inference_mode()
    def _scores(self, batch: Decoded) -> tuple[Decoded, Float[ndarray, "K C"]]:
        """Return the scores of the readable images, and the batch without images whose scores are not finite."""
        if not batch.rows:
            return batch, np.empty((0, len(self.names)), dtype=np.float32)
        logits = self.classifier.logits(batch.images.to(self.device, memory_format=torch.channels_last)).float()
        failed = failed_rows(batch, logits)
        finite = [row not in failed for row in batch.rows]
        return batch.without(failed) if failed else batch, np.asarray(logits.sigmoid().cpu())[finite]


Block = TypeVar("Block", Predictions, Decoded)


def _with_progress(
    blocks: Iterator[Block], name: str, images: Source | Sequence[Source], console: Console | None
) -> Iterator[Block]:
    console = console or Console.delayed()
    with console.working("listing the images"):
        count = sum(1 for _ in find(images))
    with console.progress(name, count) as bar:
        for block in blocks:
            yield block
            bar.advance(len(block.paths), steps=len(block.paths))
