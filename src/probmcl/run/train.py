"""One training run, from prepared data to a finished run folder."""

import functools
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from msgspec import structs

from probmcl.audit.prepare import PreparedData, refuse_empty_splits
from probmcl.calibration import Calibration
from probmcl.calibration.maps import CALIBRATION_FILE
from probmcl.console import Console
from probmcl.data.image_files import accepted_changes, signature_rows
from probmcl.data.images import PREPROCESSING_FILE
from probmcl.data.records import Records
from probmcl.encoders import Encoder
from probmcl.errors import ProbmclError, RunError, RunWarning
from probmcl.evaluation.evaluate import chance_warning, evaluate_split, headline
from probmcl.run.budget import Costs, EpochPlan, Planner, measure_costs, plan_epochs
from probmcl.run.candidates import candidate_ids, evaluate_on_test, fit_frozen_probe, train_job, training_images
from probmcl.run.final_test import calibrate_candidate, evaluate_loaded_model
from probmcl.run.results import FROZEN_PROBE, Candidate, CandidateId, Run
from probmcl.run.run_files import create_run, records_digest, views_sheet, write_split_scores
from probmcl.run.state import (
    MODEL_TEST_FORMAT,
    NEIGHBORS_FORMAT,
    TEST_FORMAT,
    RunState,
    json_format,
    load_candidate,
    print_notes,
    tidy_up,
)
from probmcl.run.workspace import Workspace, build_encoder, refuse_unbuildable
from probmcl.runtime.distributed import barrier, broadcast, is_main_process
from probmcl.runtime.files import atomic_write
from probmcl.runtime.folders import locked
from probmcl.runtime.machine import find_device
from probmcl.settings import Settings, read_settings
from probmcl.store import files
from probmcl.store.decoding import encoded_rows
from probmcl.store.evaluation import ModelEvaluation
from probmcl.store.run_folder import RunFolder, delete_cache
from probmcl.tables import percent, rough_duration

CandidateFilter = Callable[[Mapping[CandidateId, Candidate]], Iterable[CandidateId]]
"""Returns the candidates to test in addition to the kept one and the frozen probe."""


def all_candidates(candidates: Mapping[CandidateId, Candidate]) -> Iterable[CandidateId]:
    """Return all candidates so that all of them are tested."""
    return candidates


def no_candidates(candidates: Mapping[CandidateId, Candidate]) -> Iterable[CandidateId]:
    """Return no candidates so that only the kept one and the frozen probe are tested."""
    return ()


@dataclass(frozen=True)
class RunControl:
    """How a run is resumed, planned and tested. Unlike the settings, it is not stored with the run.

    Attributes:
        accept_data_change: resume an interrupted run even if image files have changed.
        test: returns candidates to test in addition to the kept one and the frozen probe.
        planner: sets the epochs of each method (default: `plan_epochs` with the budget in the settings).
    """

    accept_data_change: bool = False
    test: CandidateFilter = no_candidates
    planner: Planner | None = None


def train_run(
    data: PreparedData,
    settings: Settings,
    folder: Path,
    console: Console | None = None,
    control: RunControl = RunControl(),
) -> Run:
    """Train every method within the budget, keep the best candidate on validation, and test it.

    A linear probe on the frozen encoder comes first. Once it is fitted, the run can be used for prediction, and a
    method is kept only if it beats the probe on validation. Test scores do not affect any choice. Calling the function
    again with the folder of an interrupted run resumes it and gives the same scores as an uninterrupted run.

    Args:
        data: images with labels and splits; for records made in Python, `PreparedData.of(records)`.
        settings: settings of the run.
        folder: a new or empty folder, or an interrupted run with the same records and settings.
        console: for messages and progress (default: stdout).
        control: how the run is resumed, planned and tested.
    """
    console = console or Console()
    settings = replace(settings, device=find_device(settings.device))
    run = RunFolder(folder)
    if run.has(files.METADATA):
        with _locked(run):
            return _resume(RunFolder.existing(folder), data, settings, console, control)
    return _start(run, data, settings, console, control)


def _start(run: RunFolder, data: PreparedData, settings: Settings, console: Console, control: RunControl) -> Run:
    """Create the folder of a run and complete the run."""
    refuse_empty_splits(data.records)
    encoder = build_encoder(settings, console)  # before anything is written: its weights may be missing
    refuse_unbuildable(settings, encoder, data.records.label_space)
    with _locked(run):
        with _interrupt_noted(run):
            on_main_process(lambda: create_run(run, data, settings, console))
        with _recorded_status(run, data.records, settings, console) as state:
            return _run_phases(state, encoder, control)


def _resume(run: RunFolder, data: PreparedData, settings: Settings, console: Console, control: RunControl) -> Run:
    """Complete an interrupted run, or return a finished one."""
    records = data.records
    _refuse_other_run(run, records, settings)
    if run.read(files.METADATA).status == "finished":
        tidy_up(run)
        on_main_process(run.complete_manifest)
        console.print(f"{run.path} is already finished")
        return read_run(run)
    on_main_process(lambda: _check_images(run, records, console, control.accept_data_change))
    # A run that was killed just before its end has a manifest with its results. They are written again, so until then
    # the manifest lists only the inputs.
    on_main_process(run.seal_inputs)
    encoder = build_encoder(settings, console)
    with _recorded_status(run, records, settings, console) as state:
        return _run_phases(state, encoder, control)


@contextmanager
def _locked(run: RunFolder) -> Iterator[None]:
    """Hold the lock of the run on rank 0, so that no other command changes the folder."""
    with ExitStack() as stack:
        on_main_process(lambda: stack.enter_context(locked(run.path)))
        yield


def _run_phases(state: RunState, encoder: Encoder, control: RunControl) -> Run:
    """Go through the phases of a run. Phases that an interrupted run has already completed are skipped."""
    folder = state.folder
    workspace = Workspace.open(state.records, state.settings, encoder, folder.checkpoints, state.console)
    workspace.describe()
    _write_preprocessing(state, workspace)
    state.console.print(f"run folder: {folder.path}")

    frozen = state.candidate(FROZEN_PROBE, lambda: fit_frozen_probe(state, workspace))
    planner = control.planner or functools.partial(plan_epochs, budget=state.settings.budget)
    plan = state.once("plan", lambda: _make_plan(state, workspace, frozen, planner), json_format(EpochPlan))
    _print_plan(plan, state.console)
    for job in plan.jobs(state.settings.jobs):
        train_job(state, workspace, job)

    compared = _compared(state, control)
    _test_candidates(state, workspace, compared)
    best = state.candidates.best()  # with its test scores, if it has been tested
    calibration = state.once(
        "calibration", lambda: calibrate_candidate(workspace, best, folder.path), json_format(Calibration)
    )
    kept = _test_kept(state, best, calibration)
    if state.settings.neighbors:
        state.once("neighbors", lambda: training_images(workspace, kept), NEIGHBORS_FORMAT)

    _write_results(state, compared, kept)
    _finish(state)
    _print_summary(state, kept, calibration)
    return Run(folder.path, state.candidates, kept, state.run_record.log.warnings, state.run_record.seconds())


# Opening and closing a run.


def _refuse_other_run(run: RunFolder, records: Records, settings: Settings) -> None:
    """Raise an error if the folder has a run with other records, or with settings that change its result."""
    if records_digest(records) != run.read(files.METADATA).records:
        problem = "the images, labels or splits have changed since the run started; restore them or start a new run"
        raise RunError(f"{run.path}: {problem}")
    stored = read_settings(run)
    # These three settings may differ, since they do not change the result.
    comparable = replace(stored, device=settings.device, workers=settings.workers, cache=settings.cache)
    if comparable != settings:
        raise RunError(f"{run.path} is a run with different settings; choose another folder")


def _check_images(run: RunFolder, records: Records, console: Console, accept: bool) -> None:
    """Refuse changed images, or accept them and delete the activations and features cached from the old ones."""
    changes = accepted_changes(run.path, records.paths, console, accept=accept)
    if changes is None:
        return
    if changes.changed:
        for path in run.checkpoints.iterdir():
            if path.is_dir():
                delete_cache(path)
        warning = changes.warning()
        metadata = run.read(files.METADATA)
        if warning not in metadata.warnings:
            warned = structs.replace(metadata, warnings=(*metadata.warnings, warning))
            run.write(files.METADATA, warned)
        console.print(f"warning: {warning.message}")
    # The signatures are written last, so that a run that is interrupted here finds the changes again.
    rows = signature_rows(records.paths, changes.signatures)
    run.update({files.IMAGES: encoded_rows(files.IMAGES, rows)})


def on_main_process(work: Callable[[], None]) -> None:
    """Call a function on rank 0 while the other processes wait. If it fails, every process raises the error."""
    failure: Exception | None = None
    if is_main_process():
        try:
            work()
        except (OSError, ProbmclError) as error:
            failure = error
    message = broadcast(None if failure is None else str(failure))
    if failure is not None:
        raise failure
    if message is not None:  # on the other processes, which have only the text of the error
        raise RunError(message)


@contextmanager
def _interrupt_noted(run: RunFolder) -> Iterator[None]:
    """Record an interrupt that arrives before the state of the run is open."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if is_main_process():
            run.note_interrupt()
        raise


@contextmanager
def _recorded_status(run: RunFolder, records: Records, settings: Settings, console: Console) -> Iterator[RunState]:
    """Open the state of a run. If an exception is raised before the run is finished, the status records it."""
    with _interrupt_noted(run):
        state = RunState(run, records, settings, console)
    try:
        with torch.random.fork_rng(devices=[]), _warnings_printed_as_notes(console):
            state.restore(_possible_candidates(settings))
            state.record("running")
            yield state
    except BaseException as error:
        was_interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        with suppress(OSError):  # the disk may be full, and a second error must not hide the first
            if run.read(files.METADATA).status != "finished":
                state.record("interrupted" if was_interrupted else "failed")
        raise


def _possible_candidates(settings: Settings) -> list[CandidateId]:
    """Return the candidates that a run can have, in the order in which it computes them."""
    identities = [FROZEN_PROBE]
    for job in settings.jobs:
        identities += candidate_ids(job)
    return identities


@contextmanager
def _warnings_printed_as_notes(console: Console) -> Iterator[None]:
    """Print Python warnings as notes of the run."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: console.print(f"note: {message}")
        yield


def read_run(folder: RunFolder) -> Run:
    """Read a finished run from its folder, with the metrics of the tested candidates."""
    metadata = folder.read(files.METADATA)
    candidates: dict[CandidateId, Candidate] = {}
    kept: Candidate | None = None
    for entry in metadata.candidates:
        identity = CandidateId(entry.method, entry.head, entry.trial)
        candidate = load_candidate(folder, identity)
        metrics = files.candidate_evaluation(identity.key)
        if folder.has(metrics):
            candidate = replace(candidate, test=folder.read(metrics))
        if entry.name == metadata.kept:
            # Its metrics are those of the calibrated model, which may differ from those compared with other candidates.
            kept = replace(candidate, test=folder.read(files.EVALUATION))
            if candidate.test is None:
                candidate = kept
        candidates[identity] = candidate
    assert kept is not None
    return Run(folder.path, candidates, kept, list(metadata.warnings), metadata.seconds)


# Phases other than training.


def _write_preprocessing(state: RunState, workspace: Workspace) -> None:
    """Write the preprocessing of images, and a picture of augmented images."""
    if not is_main_process():
        return
    state.folder.write(PREPROCESSING_FILE, workspace.images.preprocessing)
    sheet = views_sheet(workspace.images)
    picture = io.BytesIO()
    sheet.save(picture, format="PNG")
    atomic_write(state.folder.path / files.VIEWS, picture.getvalue())


def _measure_costs(state: RunState, workspace: Workspace, frozen: Candidate) -> Costs:
    """Estimate how long each job takes, and note how long the run has taken so far."""
    with state.console.progress("timing a few steps", 1):
        costs = measure_costs(workspace, frozen.fit_seconds)
    return replace(costs, spent=state.run_record.seconds())


def _make_plan(state: RunState, workspace: Workspace, frozen: Candidate, planner: Planner) -> EpochPlan:
    """Plan the epochs of each job."""
    # The costs are a phase of their own, so that a plan that is made again is the same.
    costs = state.once("costs", lambda: _measure_costs(state, workspace, frozen), json_format(Costs))
    return planner(costs, costs.spent)


def _print_plan(plan: EpochPlan, console: Console) -> None:
    """Print the plan, and the words for the two candidates of each method that is trained."""
    for message in plan.messages:
        console.print(message)
    if plan.epochs:
        console.print("own head: its own classifier; re-probed: a new probe; +/−: over the frozen probe")


def _compared(state: RunState, control: RunControl) -> list[CandidateId]:
    """Return the candidates whose raw test scores are compared: the frozen probe, and those that the caller names."""
    identities = [FROZEN_PROBE, *control.test(state.candidates)]
    return list(dict.fromkeys(identities))


def _test_candidates(state: RunState, workspace: Workspace, compared: Sequence[CandidateId]) -> None:
    """Test the compared candidates and, if it is a probe, the best one, whose features are evaluated by retrieval.

    A best candidate of another kind is tested later, as the model that users load.
    """
    best = state.candidates.best()
    tested = list(compared)
    if best.method == "probe":
        tested.insert(0, best.id)
    for identity in dict.fromkeys(tested):  # the best one may also be compared
        _test_candidate(state, workspace, identity)


def _test_candidate(state: RunState, workspace: Workspace, identity: CandidateId) -> None:
    """Add the test scores of a candidate. Like its validation scores, they may come from cached activations."""
    candidate = state.candidates[identity]
    result = state.once(identity.key, lambda: evaluate_on_test(workspace, candidate), TEST_FORMAT)
    scores = {**candidate.scores, "test": result.scores}
    tested = replace(candidate, scores=scores, test=result.evaluation, retrieval=result.retrieval)
    state.candidates.add(tested)


def _test_kept(state: RunState, best: Candidate, calibration: Calibration) -> Candidate:
    """Score the best candidate on test with the model that users load, and return it with these scores."""
    on_main_process(lambda: state.folder.write(CALIBRATION_FILE, calibration))  # the model needs it
    result = state.once("model", lambda: evaluate_loaded_model(state), MODEL_TEST_FORMAT)
    state.run_record.replace_warning(RunWarning("calibration", calibration.warning))
    state.run_record.replace_warning(RunWarning("chance", chance_warning(result.evaluation)))
    scores = {**best.scores, "test": result.scores}
    if best.test is None:  # otherwise it keeps the scores that are compared with those of the other candidates
        raw = evaluate_split(state.records, "test", result.scores, best.note)
        state.candidates.add(replace(best, scores=scores, test=raw))
    return replace(best, scores=scores, test=result.evaluation)


def _write_results(state: RunState, compared: Sequence[CandidateId], kept: Candidate) -> None:
    """Write the predictions and metrics of the kept candidate and of all compared ones."""
    test_scores: dict[str, float | None] = {}
    for candidate in state.candidates.values():
        if candidate.test is not None:
            test_scores[candidate.name] = candidate.test.mAP
    state.run_record.add_test_scores(test_scores)
    if not is_main_process():
        return
    assert isinstance(kept.test, ModelEvaluation)
    for identity in compared:
        _write_candidate_results(state, state.candidates[identity])
    write_split_scores(state.folder, state.folder.path, state.records, "test", kept.scores["test"])
    state.folder.write(files.EVALUATION, kept.test)
    if kept.retrieval is not None:
        state.folder.write(files.RETRIEVAL, kept.retrieval)


def _write_candidate_results(state: RunState, candidate: Candidate) -> None:
    """Write the predictions and metrics of a tested candidate to its folder."""
    folder = state.folder
    results = files.candidate_folder(candidate.id.key)
    assert candidate.test is not None
    for split, scores in candidate.scores.items():
        write_split_scores(folder, folder.path / results, state.records, split, scores)
    folder.write(files.candidate_evaluation(candidate.id.key), candidate.test)
    if candidate.retrieval is not None:
        folder.write(files.RETRIEVAL.inside(results), candidate.retrieval)


def _finish(state: RunState) -> None:
    """Write the manifest, and run.json after everything that it describes; then delete what is no longer needed."""
    on_main_process(state.folder.seal_results)
    state.record("finished")
    on_main_process(state.folder.seal)
    barrier()
    tidy_up(state.folder)


def _print_summary(state: RunState, kept: Candidate, calibration: Calibration) -> None:
    """Print the scores of the kept candidate, the notes of all candidates, and the calibration."""
    console = state.console
    assert isinstance(kept.test, ModelEvaluation)
    scores = headline(structs.replace(kept.test, macro_auroc_interval=None))  # one interval fits on a terminal
    gain = state.candidates.gain(kept)
    noise = ""
    if gain is not None and gain.is_noise:
        noise = f" (its gain of {gain} on validation may be noise)"
    test_map_of = state.run_record.metadata.test_mAP or {}
    frozen = test_map_of[FROZEN_PROBE.name]
    reference = ""
    if gain is not None and frozen is not None:
        reference = f"; frozen probe: mAP {percent(frozen)}"
    console.print(f"kept: {kept.name}{noise}; test {scores}{reference}")
    others = [candidate for candidate in state.candidates.values() if candidate.id != kept.id]
    others.sort(key=lambda candidate: -candidate.validation_map)
    print_notes(console, [kept, *others])
    for line in calibration.summary():
        console.print(line)
    console.print(f"finished in {rough_duration(state.run_record.seconds())}")
