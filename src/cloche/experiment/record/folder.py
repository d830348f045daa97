"""The folder of an experiment: made, recognised as ours, opened again, read.

Must never write into a folder that is not ours, and never trust a trial's folder that cannot be read: it
says which file is wrong. All methods block.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from cloche import __version__
from cloche.core.errors import InvalidInput, NotFound
from cloche.core.outcome import TrialOutcome
from cloche.experiment.plan import Plan, PlannedTrial, Price
from cloche.experiment.record.attempt import FailureRecord, failure_record, public_url, stored_failure
from cloche.experiment.record.files import append_line, make_folder, read_json, write_json
from cloche.experiment.record.trial import TrialFolder

EXPERIMENT = "experiment.json"
JOB_RESULT = "job-result.json"


class _Ours(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())


class ModelRecord(_Ours):
    """A model of the plan; the key is named, never held."""

    name: str
    endpoint: str
    api_key_env: str | None = None
    input_usd: float | None = None
    output_usd: float | None = None


class TrialRecord(_Ours):
    """A trial of the plan, by the name of its folder."""

    name: str
    task: str
    digest: str
    agent: str
    model: str | None = None
    repeat: int
    refusal: FailureRecord | None = None


class ExperimentRecord(_Ours):
    """``experiment.json``: what was planned, over all runs on this folder."""

    format: Literal["cloche-experiment/1"] = "cloche-experiment/1"
    id: UUID
    created_at: AwareDatetime
    cloche_version: str
    timeout_multiplier: float = 1.0
    models: list[ModelRecord]
    trials: list[TrialRecord]


class LastRun(BaseModel):
    """What ``job-result.json`` says of the run that wrote it."""

    model_config = ConfigDict(extra="ignore")

    status: int
    sandboxes_left: int | None
    seconds: float


def _trial_record(trial: PlannedTrial) -> TrialRecord:
    return TrialRecord(
        name=trial.name,
        task=trial.label,
        digest=trial.digest,
        agent=trial.agent.name,
        model=trial.model_name,
        repeat=trial.repeat,
        refusal=failure_record(trial.refusal) if trial.refusal else None,
    )


def _model_records(plan: Plan) -> list[ModelRecord]:
    found = {}
    for trial in plan.trials:
        if trial.model is not None:
            price: Price | None = trial.model.price
            found[trial.model.name] = ModelRecord(
                name=trial.model.name,
                endpoint=public_url(trial.model.endpoint.base_url),
                api_key_env=trial.model.endpoint.api_key_env,
                input_usd=price.input_usd if price else None,
                output_usd=price.output_usd if price else None,
            )
    return list(found.values())


def merged(old: ExperimentRecord, plan: Plan) -> ExperimentRecord:
    """Return the record with the plan's trials added.

    Raises InvalidInput for a task whose files have changed since: its trials could not be compared.
    """
    known = {trial.name: trial for trial in old.trials}
    for trial in plan.trials:
        before = known.get(trial.name)
        if before is not None and before.digest != trial.digest and before.refusal is None:
            raise InvalidInput(
                f"task `{trial.label}` has changed since this record was begun",
                hint="use a new folder, so that no rate mixes two versions of a task",
            )
        known[trial.name] = _trial_record(trial)
    models = {model.name: model for model in [*old.models, *_model_records(plan)]}
    return old.model_copy(update={"trials": list(known.values()), "models": list(models.values())})


class JobFolder:
    """One experiment's folder. ``path`` is absolute."""

    def __init__(self, path: Path) -> None:
        """Touch nothing yet."""
        self.path = path.absolute()

    def trial(self, name: str) -> TrialFolder:
        """Return a trial's folder."""
        return TrialFolder(self.path / name)

    def log(self, line: str) -> None:
        """Add a line to ``job.log``."""
        append_line(self.path / "job.log", line)

    def read(self) -> ExperimentRecord:
        """Return the plan on record.

        Raises NotFound if there is no folder, InvalidInput if it is no record of ours.
        """
        if not self.path.is_dir():
            raise NotFound(
                f"there is no record at {self.path}", hint="`cloche run` prints where it wrote one"
            )
        value = read_json(self.path / EXPERIMENT)
        if value is None:
            raise InvalidInput(f"{self.path} holds no {EXPERIMENT}, so it is not a record of cloche")
        return _validated(self.path / EXPERIMENT, value)

    def check(self) -> None:
        """Raise InvalidInput unless the folder is absent, empty or ours. Writes nothing."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise InvalidInput(f"{self.path} is not a folder", hint="choose another with -o")
        if not self.path.exists() or not any(self.path.iterdir()):
            return
        if not (self.path / EXPERIMENT).is_file():
            raise InvalidInput(
                f"{self.path} is not empty and is no record of cloche",
                hint="choose another folder with -o; nothing has been written",
            )
        self.read()

    def open(self, plan: Plan, now: datetime) -> ExperimentRecord:
        """Make the folder, or add the plan to what is there. Raises InvalidInput as ``check`` does."""
        self.check()
        make_folder(self.path)
        if (self.path / EXPERIMENT).exists():
            record = merged(self.read(), plan)
        else:
            record = ExperimentRecord(
                id=uuid4(),
                created_at=now,
                cloche_version=__version__,
                timeout_multiplier=plan.timeout_multiplier,
                models=_model_records(plan),
                trials=[_trial_record(trial) for trial in plan.trials],
            )
        write_json(self.path / EXPERIMENT, record.model_dump(mode="json"), durable=True)
        return record

    def last_run(self) -> LastRun | None:
        """Return how the last run ended; ``None`` while the first one goes on, or if it was killed."""
        value = read_json(self.path / JOB_RESULT)
        if value is None:
            return None
        try:
            return LastRun.model_validate(value)
        except ValidationError as error:
            raise InvalidInput(f"{self.path / JOB_RESULT} is not what we write: {error}") from error

    def outcomes(self, record: ExperimentRecord | None = None) -> list[TrialOutcome]:
        """Return what every trial on record has come to, in the plan's order."""
        record = record or self.read()
        return [self.outcome(trial) for trial in record.trials]

    def outcome(self, trial: TrialRecord) -> TrialOutcome:
        """Return what one trial has come to so far."""
        return TrialOutcome(
            name=trial.name,
            task=trial.task,
            agent=trial.agent,
            model=trial.model,
            repeat=trial.repeat,
            attempts=self.trial(trial.name).outcomes() if trial.refusal is None else (),
            refusal=stored_failure(trial.refusal),
        )


def _validated(path: Path, value: Any) -> ExperimentRecord:
    try:
        return ExperimentRecord.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"{path}: `{field}`: {first['msg']}", where=str(path)) from error


def counts_by_code(trials: Iterable[TrialOutcome]) -> dict[str, int]:
    """Return how many trials without a verdict there are by code; ``not_run`` for those without a reason."""
    counts: dict[str, int] = {}
    for trial in trials:
        if not trial.graded:
            code = trial.failure.code if trial.failure else "not_run"
            counts[code] = counts.get(code, 0) + 1
    return counts
