"""Records of trials that never got a sandbox: refused when planned, or without an image. All block.

Must never look like an attempt of the agent: there is a reason, no reward and no sandbox.
"""

from __future__ import annotations

from cloche.core.failures import Failure
from cloche.core.outcome import AttemptOutcome
from cloche.experiment.bench import Bench
from cloche.experiment.plan import PlannedTrial
from cloche.experiment.record.attempt import AttemptRecord, fill, when
from cloche.experiment.record.export import dump, refused_attempt, trial_config, trial_lock, trial_result
from cloche.experiment.record.files import make_folder, write_json, write_text
from cloche.experiment.record.trial import TrialFolder


def _plan_files(bench: Bench, trial: PlannedTrial) -> dict[str, object]:
    return {
        "config.json": dump(trial_config(bench.job, trial)),
        "lock.json": dump(trial_lock(bench.job, trial)),
    }


def _write_reason(bench: Bench, trial: PlannedTrial, folder: TrialFolder, attempt: AttemptOutcome) -> None:
    if attempt.failure is not None:
        text = bench.scrubber.text(f"{attempt.failure.message} [{attempt.failure.code}]\n")
        write_text(folder.path / "exception.txt", text)
    folder.write_result(dump(trial_result(bench.job, trial, attempt)))


def write_refused(bench: Bench, trial: PlannedTrial) -> None:
    """Write a refused trial's folder: Harbor's files and the reason, no attempt."""
    folder = TrialFolder(bench.job.folder / trial.name)
    folder.clear_unfinished()
    folder.put_away()
    make_folder(folder.path)
    for name, value in _plan_files(bench, trial).items():
        write_json(folder.path / name, value)
    if trial.refusal is not None:
        _write_reason(bench, trial, folder, refused_attempt(trial.refusal, bench.now()))


def write_stillborn(bench: Bench, trial: PlannedTrial, number: int, reason: Failure) -> AttemptOutcome:
    """Write an attempt that failed before it had a sandbox, and return what it came to."""
    now = bench.now()
    folder = TrialFolder(bench.job.folder / trial.name)
    folder.clear_unfinished()
    folder.put_away()
    outcome = AttemptOutcome(number=number, started_at=now, finished_at=now, failure=reason)
    record = AttemptRecord(
        trial=trial.name,
        task=trial.label,
        agent=trial.agent.name,
        agent_version=trial.agent.version,
        model=trial.model_name,
        repeat=trial.repeat,
        number=number,
        started_at=when(now),
    )
    folder.begin(fill(record, outcome), _plan_files(bench, trial))
    _write_reason(bench, trial, folder, outcome)
    return outcome
