"""What a comparison found, as plain numbers: the one thing that its tables, its plot and its verdict are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Head = Literal["frozen", "own head", "re-probed"]


@dataclass(frozen=True)
class Row:
    """One classifier of a comparison; every score is a fraction, and of the test split unless it says otherwise.

    Attributes:
        name: what was trained and with which preset: `bce`, `probmcl:paper`, `frozen probe`. Its two rows share it.
        head: what predicts: the probe on the untouched encoder, the method's own head, or a probe on what it trained.
        method: a key of METHODS, or the place of a method from outside; None for the frozen probe.
        seeds: how many runs the numbers are the mean of.
        best_head: whether this row stands for its method, being better on validation than the method's other row.
        validation: mAP on the validation split, which decides everything that has to be decided.
        mAP: mean average precision.
        interval: where mAP is by the bootstrap over test images or groups; None without the predictions.
        over_seeds: standard deviation of mAP over seeds; None for one seed.
        gain: mAP less that of the frozen probe, on the same images and over the seeds that both have; None for the
            frozen probe, and where they share no seed.
        gain_interval: where the gain is by the paired bootstrap.
        gain_p: of the gain, adjusted by Holm over methods; None where `gain` or its interval is, and where `best_head`
            is false.
        behind: mAP of the method that is best on validation less this one, positive where this one is worse, over the
            seeds that both have; None for that one, for the frozen probe, and where they share no seed.
        behind_interval: where that difference is by the paired bootstrap.
        behind_p: of that difference, adjusted by Holm over methods; None where `behind` or its interval is, and where
            `best_head` is false.
        CP: precision, the mean over classes; this and the next five where a probability above 0.5 is a yes.
        CR: recall, the mean over classes.
        CF1: harmonic mean of CP and CR.
        OP: precision over all decisions.
        OR: recall over all decisions.
        OF1: harmonic mean of OP and OR.
        macro_F1: the mean of the classes' F1, each class at the threshold that was best on validation, or at 0.5 where
            it emits a set.
        jaccard_at_10: mean label overlap with the ten nearest test images by the embedding.
        retrieval_mAP: mAP of ranking test images by the embedding; an overlap of at least 0.5 is relevant.
        probability_jaccard_at_10: the same as `jaccard_at_10`, by predicted probabilities.
        probability_mAP: the same as `retrieval_mAP`, by predicted probabilities.
        learning_rate: with which it was trained; None where nothing was.
        weight_decay: with which it was trained; None where nothing was.
        images_seen: in training, each view counted.
        seconds: of training, and of the probe where there is one.
        parameters: of the classifier, encoder included.
        gmac: multiply-adds of one image, in 10⁹.
        training_speed: images a second, each view counted.
        prediction_speed: images a second.
        peak_memory: bytes of a training step.
        fidelity: what it was checked against: "authors' code", "paper", "partly reconstructed", "standard" or "own";
            then ", our settings" where its settings are not the published ones.
        reference: a key of references.bib; empty where there is nothing to cite.
        fingerprint: of the protocol, 12 hexadecimal digits; rows that share it can stand in one table.
        note: what has to be said beside its mAP, see `probmcl.methods.base.Classifier`; empty for most.
        emits_set: whether its decisions know no threshold, see there.
    """

    name: str
    head: Head
    method: str | None
    seeds: int
    best_head: bool
    validation: float
    mAP: float  # noqa: N815  # as everybody writes it
    interval: tuple[float, float] | None
    over_seeds: float | None
    gain: float | None
    gain_interval: tuple[float, float] | None
    gain_p: float | None
    behind: float | None
    behind_interval: tuple[float, float] | None
    behind_p: float | None
    CP: float | None
    CR: float | None
    CF1: float | None
    OP: float | None
    OR: float | None
    OF1: float | None
    macro_F1: float | None  # noqa: N815
    jaccard_at_10: float | None
    retrieval_mAP: float | None  # noqa: N815
    probability_jaccard_at_10: float | None
    probability_mAP: float | None  # noqa: N815
    learning_rate: float | None
    weight_decay: float | None
    images_seen: int
    seconds: float
    parameters: int
    gmac: float | None
    training_speed: float | None
    prediction_speed: float | None
    peak_memory: int | None
    fidelity: str
    reference: str
    fingerprint: str
    note: str
    emits_set: bool

    @property
    def title(self) -> str:
        """Its name and its head, which no two rows of a comparison share."""
        return self.name if self.head == "frozen" else f"{self.name}, {self.head}"


@dataclass(frozen=True)
class Comparison:
    """All rows of a comparison, and what they have in common.

    Attributes:
        rows: in any order; `ordered` is the one to show.
        seeds: how many runs of each method.
        trials: how many learning rates and weight decays were tried for each method; one means untuned.
        images_seen: by each method in training, each view counted.
        test_images: how many images the scores are from.
        groups: how many groups of test images the bootstrap drew from; None where it drew images.
        classes: how many there are.
        encoder: its name in timm.
        data: the name of the data set.
        left_out: sentences on methods that diverged or could not run.
        draws: of the bootstrap.
    """

    rows: tuple[Row, ...]
    seeds: int
    trials: int
    images_seen: int
    test_images: int
    groups: int | None
    classes: int
    encoder: str
    data: str
    left_out: tuple[str, ...]
    draws: int

    @property
    def ordered(self) -> tuple[Row, ...]:
        """The frozen probe first, then by validation mAP; of equals, the one that others are compared with first."""
        return tuple(
            sorted(
                self.rows,
                key=lambda row: (row.head != "frozen", -row.validation, row.behind is not None, row.title),
            )
        )

    @property
    def frozen(self) -> Row:
        """The linear probe on the untouched encoder, which every comparison has."""
        found = [row for row in self.rows if row.head == "frozen"]
        if len(found) != 1:
            raise ValueError(f"a comparison has one frozen probe, and this one has {len(found)}")
        return found[0]

    @property
    def methods(self) -> tuple[Row, ...]:
        """One row for each method, by its better head; the best on validation comes first."""
        return tuple(row for row in self.ordered if row.head != "frozen" and row.best_head)

    @property
    def protocol(self) -> str:
        """What every row has in common, in one line: without it no number of a table means anything."""
        return " · ".join(
            (
                f"{self.data}, test split: {self.test_images:,} images, {self.classes:,} classes",
                self.encoder,
                f"{self.images_seen:,} images seen",
                "1 seed" if self.seeds == 1 else f"{self.seeds:,} seeds",
                "untuned" if self.trials == 1 else f"best of {self.trials:,} trials on validation",
                f"intervals: 95 %, {self.draws:,} draws of "
                + ("images" if self.groups is None else f"{self.groups:,} groups"),
            )
        )
