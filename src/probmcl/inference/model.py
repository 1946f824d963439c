"""The model of a run: prediction, explanation, embedding and evaluation."""

import contextlib
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar, final, get_args

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
from probmcl.evaluation.intervals import EvaluationOptions, evaluate_rows
from probmcl.evaluation.metrics import DEFAULT_THRESHOLD
from probmcl.evaluation.scores import ScoredRows, read_scores, scores_file
from probmcl.explain import Explanation, Explanations
from probmcl.explain.explanations import NOT_FINITE, errors_by_row, explain_batch, failed_rows, label_columns
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

Block = TypeVar("Block", Predictions, Decoded)
"""A block of consecutive images, decoded or predicted."""


class DecisionRule(NamedTuple):
    """The probabilities at which a class is predicted or ruled out; without `no_up_to`, every other decision is a no.

    Attributes:
        yes_above: a class is predicted above this probability; one for all classes, or one per class.
        no_up_to: a class is ruled out up to this probability, if the model may abstain; None otherwise.
    """

    yes_above: float | Float64[ndarray, " C"]
    no_up_to: Float64[ndarray, " C"] | None = None


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
        self.names = names
        self.hierarchy = hierarchy
        self.preprocessing = preprocessing
        self.calibration = calibration
        self.device = device
        self.folder = folder
        self._source = source  # of the data of the run; None if they were not read from a file
        self._parents = parents_of(names, hierarchy)  # indices; −1 for a class without a parent

    def __repr__(self) -> str:
        classes = counted(len(self.names), "class", "classes")
        summary = f"{classes}, {self.preprocessing.size} px, {self.device}"
        if self.calibration is None:
            summary += ", not calibrated"
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
        return Predictions.concatenate(self.names, rule.yes_above, blocks)

    @method_keywords_of(StreamOptions)
    def stream(self, options: StreamOptions) -> Iterator[Predictions]:
        """Yield the predictions of `predict` in blocks, so memory use does not grow with the number of images."""
        rule = self._decision_rule(options.threshold, options.raw, options.abstain)
        return self._stream(options, rule)

    def _stream(self, options: StreamOptions, rule: DecisionRule) -> Iterator[Predictions]:
        """Return an iterator over the predictions of each batch; sources without images are an error at once."""
        batches = self._decode(options)
        return (self._predict_batch(batch, rule, options.raw) for batch in batches)

    def _decode(self, options: StreamOptions | EmbedOptions | ExplainOptions) -> Generator[Decoded, None, None]:
        """Return an iterator over the images in the options, decoded in batches; sources are checked at once."""
        batch_size = self._batch_size(options.batch_size)
        return decode(options.images, self.preprocessing, batch_size=batch_size, workers=options.workers)

    @method_keywords_of(EmbedOptions)
    @torch.inference_mode()
    def embed(self, options: EmbedOptions) -> Float[ndarray, "N D"]:
        """Return the encoder's unnormalized features for each image; an unreadable image is an error."""
        features: list[ndarray] = []
        batches = self._decode(options)
        with contextlib.closing(batches):
            for batch in _with_progress(batches, "embedding", options.images, options.console):
                block = self._embed_batch(batch)
                features.append(block)
        return np.concatenate(features)

    def _embed_batch(self, batch: Decoded) -> Float[ndarray, "K D"]:
        """Return the encoder's features of a batch. An unreadable image is an error, and so are NaN and inf."""
        if batch.errors:
            first = batch.errors[0]
            raise ImageError(first.path, f"{first.reason}; repair or remove it")
        images = batch.images.to(self.device, memory_format=torch.channels_last)
        features = self.classifier.encoder(images)
        failed = failed_rows(batch, features)
        if failed:
            raise ImageError(batch.paths[min(failed)], f"{NOT_FINITE}; remove it, or train again")
        return np.asarray(features.float().cpu())

    @method_keywords_of(ExplainOptions)
    def explain(self, options: ExplainOptions) -> Explanations:
        """Return a Grad-CAM heat map for each image and label; unreadable images are in `errors`."""
        columns = label_columns(options.labels, self.names)
        rule = self._decision_rule(options.threshold, raw=False, abstain=None)

        def decide(scores: Float[ndarray, "K C"]) -> tuple[Float[ndarray, "K C"], Bool[ndarray, "K C"]]:
            """Return the probabilities of K images, and whether each class is assigned."""
            probabilities = self._probabilities(scores, raw=False)
            return probabilities, probabilities > rule.yes_above

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
        # Both raise an error for invalid options, before the data are read, which may take minutes.
        self._evaluation_options(options, images=1)
        self._decision_rule(None, options.raw, options.abstain)
        records = self._read_evaluation_data(options)
        return self.evaluate_records(records, options).evaluation

    def _read_evaluation_data(self, options: EvaluateOptions) -> Records:
        """Read the data that the options name; by default, the data of the run."""
        console = options.console or Console.delayed()
        source = self._evaluation_source(options)
        extra_columns = () if options.by is None else (options.by,)
        with console.working("reading the data"):
            if options.data is None:
                return read_recorded(source, console, keep=extra_columns)
            return read_source(source, keep=extra_columns)

    def evaluate_records(
        self, records: Records, options: EvaluateOptions, score: ScoreRecords | None = None
    ) -> ScoredEvaluation:
        """Evaluate the model on one split of records; see `evaluate`.

        `score` computes the raw scores (default: the method `score`); several processes may share the work.
        """
        console = options.console or Console.delayed()
        data_names = records.label_space.names
        renames = read_renames(options.rename, model=self.names, data=data_names)
        mapping = match_classes(self.names, data_names, renames)
        run_splits = read_run_splits(self.folder)
        selected = select_split(records, options.split, run_splits)
        how = self._evaluation_options(options, len(selected))
        how.values(selected)  # a wrong `by` or `aggregate` is an error before the images are scored, which takes long
        trained_on = count_trained_on(selected.paths, run_splits, options.split)
        applied = self._applied_calibration(options, selected.paths, mapping)

        score_records = score or self.score
        readable, scores, bad = score_records(selected, options, console)
        labeled = EvaluatedImages.of_records(readable, mapping, how)
        images = replace(labeled, renames=renames, trained_on=trained_on, skipped=unscored(bad))
        evaluation = self.evaluate_scores(scores, images, applied, how, console)
        return ScoredEvaluation(readable, scores, evaluation)

    def evaluate_scores(
        self,
        scores: Float[ndarray, "N C"],
        images: EvaluatedImages,
        applied: AppliedCalibration,
        how: EvaluationOptions,
        console: Console,
    ) -> ModelEvaluation:
        """Evaluate the raw scores of images."""
        columns = images.mapping.in_model
        probabilities = scores
        thresholds = None
        raw = None  # the scores before calibration; None if they are the probabilities
        calibration = applied.calibration
        if calibration is not None:
            probabilities = calibration.probabilities(scores, self._parents)
            thresholds = calibration.threshold[columns]
            # With the kind "none", only a hierarchy changes scores: the probability of a class is capped by its parent.
            if calibration.kind != "none" or self.hierarchy:
                raw = scores[:, columns]
        rows = ScoredRows(probabilities[:, columns], images.labels, images.known, images.group, raw=raw)
        levels: Sequence[int] = ()
        if self.hierarchy:
            levels = levels_of(self._parents)[columns].tolist()
        described = EvaluatedModel(
            images.mapping.common,
            levels=levels,
            note=self.classifier.note,
            thresholds=thresholds,
            limits=applied.limits,
        )
        evaluation = evaluate_rows(rows, described, how, images.values, console)
        return with_provenance(evaluation, images, applied)

    def _evaluation_options(self, options: EvaluateOptions, images: int) -> EvaluationOptions:
        """Return the options of the evaluation of a number of `images`; invalid values are errors."""
        draws = options.draws
        if draws is None:
            draws = affordable_draws(images, len(self.names))
        return EvaluationOptions(
            split=options.split, by=options.by, aggregate=options.aggregate, draws=draws, seed=options.seed
        )

    def _applied_calibration(
        self, options: EvaluateOptions, paths: Sequence[Path], mapping: ClassMapping
    ) -> AppliedCalibration:
        """Return how raw scores become probabilities and decisions; `paths` are the images of these scores.

        The limits are those of the classes that the model and the data have in common.
        """
        if options.raw or self.calibration is None:
            return AppliedCalibration(None)
        rule = self._decision_rule(None, options.raw, options.abstain)
        limits = None
        if rule.no_up_to is not None:
            columns = mapping.in_model
            limits = (rule.no_up_to[columns], np.asarray(rule.yes_above)[columns])
        calibrated_on = self._count_calibrated_on(paths, self.calibration)
        return AppliedCalibration(self.calibration, calibrated_on, limits)

    @method_keywords_of(CalibrateOptions)
    def calibrate(self, options: CalibrateOptions) -> Calibration:
        """Fit the calibration and the thresholds again, use them from now on, and write them to the run folder.

        Without data, they are fitted to the same held-out scores as before. With data from another site, they are
        fitted to its validation images or, if the data have no splits, to all of its images; classes that the data
        lack keep their calibration. The scores of the run's test images in evaluation.json are updated.
        """
        from probmcl.inference import recalibration

        kinds = get_args(Kind)
        if options.calibration not in (None, *kinds):
            raise OptionError("calibration", options.calibration, f"must be one of {', '.join(kinds)}")
        kind: Kind = "sigmoid"
        thresholds: str | float = "balanced"
        if self.calibration is not None:
            kind = self.calibration.kind
            thresholds = self.calibration.thresholds
        if options.calibration is not None:
            kind = options.calibration
        if options.thresholds is not None:
            thresholds = options.thresholds
        rule = ThresholdRule.parse(thresholds)
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
        """Return the source of the data that the options name; by default, the data of the run.

        For the data of the run, `images` and `read` in the options replace the values that are stored with the run.
        """
        if options.data is not None:
            image_folder = None if options.images is None else Path(options.images)
            return DataSource(Path(options.data), image_folder, options.read)
        if self._source is None:
            raise DataError("the data of this run were not read from a file; specify the data to evaluate on")
        return self._source.with_changes(options.images, options.read)

    def score(
        self, records: Records, options: EvaluateOptions | CalibrateOptions, console: Console
    ) -> tuple[Records, Float[ndarray, "N C"], list[BadImage]]:
        """Score the readable images. If too many are unreadable, the rest are only decoded, to list all bad images."""
        blocks: list[ndarray] = []  # the scores of each batch
        bad: list[BadImage] = []
        allowed_share = options.skip_bad or 0.0
        batch_size = self._batch_size(options.batch_size)
        first_row = 0  # of the batch, in the records
        with console.progress("scoring", len(records)) as bar:
            for batch in decode_files(
                records.paths, self.preprocessing, batch_size=batch_size, workers=options.workers
            ):
                if len(bad) / len(records) <= allowed_share:
                    batch, scores = self._scores(batch)  # leaves out images whose scores are not finite
                    blocks.append(scores)
                for row, error in errors_by_row(batch).items():
                    bad.append(BadImage(first_row + row, error.path, error.reason))
                size = len(batch.paths)
                first_row += size
                bar.advance(size, steps=size)
        readable = without_bad(records, bad, share=options.skip_bad)  # an error if too many are bad
        return readable, np.concatenate(blocks), bad

    def _count_calibrated_on(self, paths: Sequence[Path], calibration: Calibration) -> int | None:
        """Return how many images the calibration was fitted to; None if its images are not stored with the run."""
        file = scores_file(self.folder, calibration.predictions)
        if not file.is_file():
            problem = f"{file} does not exist, so images that the calibration was fitted to cannot be recognized"
            warnings.warn(problem, stacklevel=3)
            return None
        return count_calibrated_on(paths, read_scores(file).paths)

    def _decision_rule(self, threshold: float | None, raw: bool, abstain: float | None) -> DecisionRule:
        """Return the rule for decisions; options that are invalid or cannot be combined are errors.

        Args:
            threshold: the threshold of all classes; None for that of each class in the calibration.
            raw: whether scores are decided as they are, without calibration.
            abstain: the largest error rate if the model may abstain; None if it decides everything.
        """
        if threshold is not None and (not isinstance(threshold, int | float) or not 0 <= threshold <= 1):
            raise OptionError("threshold", threshold, "must be a probability between 0 and 1")
        if abstain is not None:
            if raw or threshold is not None:
                other = "raw" if raw else "threshold"
                raise OptionError("abstain", abstain, f"cannot be combined with `{other}`")
            return self._abstention_rule(abstain)
        if threshold is not None:
            return DecisionRule(threshold)
        if raw or self.calibration is None:
            return DecisionRule(DEFAULT_THRESHOLD)
        return DecisionRule(self.calibration.threshold)

    def _abstention_rule(self, risk: float) -> DecisionRule:
        """Return limits that keep the error rates below `risk` for the images that the calibration was fitted to."""
        if self.calibration is None:
            raise OptionError("abstain", risk, f"needs a calibration; first run {calibrate_call(self.folder)}")
        file = scores_file(self.folder, self.calibration.predictions)
        if not file.is_file():
            raise OptionError("abstain", risk, f"needs the held-out scores of the run, but {file} does not exist")
        held_out = read_scores(file, classes=len(self.names)).rows
        probabilities = self._probabilities(held_out.scores, raw=False)
        limits = abstention_limits(risk, probabilities, held_out.labels, held_out.known)
        return DecisionRule(limits.yes, limits.no)

    def _batch_size(self, requested: int | None) -> int:
        """Return the number of images in a forward pass; by default, as many as the device processes fastest."""
        if requested is not None:
            return requested
        pixels_at_once = CPU_PIXELS if self.device.type == "cpu" else GPU_PIXELS
        return max(1, pixels_at_once // self.preprocessing.size**2)

    def _predict_batch(self, batch: Decoded, rule: DecisionRule, raw: bool) -> Predictions:
        """Return the predictions of all images in a batch, with NaN and a reason for those that cannot be used."""
        # A calibration computes in double precision; raw scores have the precision of the network.
        dtype = np.float32 if self.calibration is None or raw else np.float64
        probabilities = np.full((len(batch.paths), len(self.names)), np.nan, dtype=dtype)
        scored, scores = self._scores(batch)
        if scored.rows:
            probabilities[scored.rows] = self._probabilities(scores, raw)
        reasons: list[str | None] = [None] * len(batch.paths)
        for row, error in errors_by_row(scored).items():
            reasons[row] = error.reason
        paths = tuple(batch.paths)
        return Predictions(self.names, paths, probabilities, rule.yes_above, tuple(reasons), rule.no_up_to)

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
        images = batch.images.to(self.device, memory_format=torch.channels_last)
        logits = self.classifier.logits(images).float()
        scores = np.asarray(logits.sigmoid().cpu())
        failed = failed_rows(batch, logits)
        is_finite = [row not in failed for row in batch.rows]
        if failed:
            batch = batch.without(failed)
        return batch, scores[is_finite]


def _with_progress(
    blocks: Iterator[Block], name: str, images: Source | Sequence[Source], console: Console | None
) -> Iterator[Block]:
    """Yield the blocks of `images`, and show on the console how many of the images they contain so far."""
    console = console or Console.delayed()
    with console.working("listing the images"):
        count = sum(1 for _ in find(images))
    with console.progress(name, count) as bar:
        for block in blocks:
            yield block
            size = len(block.paths)
            bar.advance(size, steps=size)
