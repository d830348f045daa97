"""``attempt.json``: what is ours about one attempt, and the way between it and ``AttemptOutcome``.

Written when the attempt begins, so that a sandbox is on record before it exists, and again when it has
ended. Must never hold a credential: an endpoint is recorded without user, password and query.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from cloche.core.errors import Domain
from cloche.core.failures import FAILURES, UNKNOWN, Failure
from cloche.core.outcome import AttemptOutcome, Span, StepOutcome, Usage


class _Ours(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())


class FailureRecord(_Ours):
    """Why; ``code`` is the stable one of docs/failures.md."""

    domain: str
    code: str
    message: str
    retry_after_s: float | None = None


class UsageRecord(_Ours):
    """What the models took; absent figures are unknown."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    model_calls: int = 0


class SpanRecord(_Ours):
    """When a phase began and ended."""

    started_at: AwareDatetime
    finished_at: AwareDatetime


class StepRecord(_Ours):
    """What one step came to; the fields mean what they mean in ``AttemptRecord``."""

    name: str
    failure: FailureRecord | None = None
    rewards: dict[str, float] | None = None
    usage: UsageRecord | None = None
    steps: int | None = None
    phases: dict[str, SpanRecord] = Field(default_factory=dict)


class NetworkRecord(_Ours):
    """What a sandbox could reach in one phase."""

    mode: str
    allowed_hosts: list[str] = Field(default_factory=list)


class SettingRecord(_Ours):
    """What the attempt ran in: limits are those that were asked of the driver, ``None`` is no limit.

    ``network_stated`` is false where the task says nothing about its network and the default holds.
    ``networks`` says what held in each phase that was reached: ``environment``, ``agent``, ``verifier``, with
    ``STEP/`` in front for a task in steps. ``services`` has the image digest of each service beside the
    agent's sandbox.
    """

    driver: str = ""
    isolation: str = ""
    image: str = ""
    image_digest: str = ""
    network: str = ""
    network_stated: bool | None = None
    networks: dict[str, NetworkRecord] = Field(default_factory=dict)
    services: dict[str, str] = Field(default_factory=dict)
    cpus: float | None = None
    disk_bytes: int | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    agent_timeout_s: float | None = None
    verifier_timeout_s: float | None = None
    endpoint: str | None = None
    not_enforced: list[str] = Field(default_factory=list)


class AttemptRecord(_Ours):
    """The whole file. Without ``finished_at`` the attempt is running, or its runner is gone.

    ``command_ends`` counts the commands of the sandbox by the reason why they ended.
    """

    schema_version: Literal[1] = 1
    trial: str
    task: str
    agent: str
    agent_version: str = ""
    model: str | None = None
    repeat: int
    number: int
    sandbox_id: str = ""
    started_at: AwareDatetime
    finished_at: AwareDatetime | None = None
    failure: FailureRecord | None = None
    rewards: dict[str, float] | None = None
    usage: UsageRecord | None = None
    steps: int | None = None
    phases: dict[str, SpanRecord] = Field(default_factory=dict)
    step_outcomes: list[StepRecord] = Field(default_factory=list)
    setting: SettingRecord = Field(default_factory=SettingRecord)
    command_ends: dict[str, int] = Field(default_factory=dict)
    sandbox_deleted: bool | None = None


def when(seconds: float) -> datetime:
    """Return a time in seconds since 1970 as a date in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def public_url(url: str) -> str:
    """Return an endpoint's address without what may be a credential: user, password, query, fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def failure_record(failure: Failure) -> FailureRecord:
    """Return what is stored of a failure; its traceback goes to ``exception.txt``."""
    return FailureRecord(
        domain=failure.domain.value,
        code=failure.code,
        message=failure.message,
        retry_after_s=failure.retry_after_s,
    )


def stored_failure(record: FailureRecord | None) -> Failure | None:
    """Return the failure again; a code that this version does not know is unknown, and thus no score."""
    if record is None:
        return None
    kind = FAILURES.get(record.code, UNKNOWN)
    return Failure(kind=kind, message=record.message, retry_after_s=record.retry_after_s)


def _usage_record(usage: Usage | None) -> UsageRecord | None:
    if usage is None:
        return None
    return UsageRecord(
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=usage.cost_usd,
        model_calls=usage.model_calls,
    )


def _phase_records(phases: Mapping[str, Span]) -> dict[str, SpanRecord]:
    return {
        name: SpanRecord(started_at=when(span.started_at), finished_at=when(span.finished_at))
        for name, span in phases.items()
    }


def _phases(records: Mapping[str, SpanRecord]) -> dict[str, Span]:
    return {
        name: Span(span.started_at.timestamp(), span.finished_at.timestamp())
        for name, span in records.items()
    }


def _step_record(step: StepOutcome) -> StepRecord:
    return StepRecord(
        name=step.name,
        failure=failure_record(step.failure) if step.failure else None,
        rewards=dict(step.rewards) if step.rewards is not None else None,
        usage=_usage_record(step.usage),
        steps=step.steps,
        phases=_phase_records(step.phases),
    )


def _step_outcome(record: StepRecord) -> StepOutcome:
    return StepOutcome(
        name=record.name,
        failure=stored_failure(record.failure),
        rewards=record.rewards,
        usage=Usage(**record.usage.model_dump()) if record.usage else None,
        steps=record.steps,
        phases=_phases(record.phases),
    )


def fill(record: AttemptRecord, outcome: AttemptOutcome) -> AttemptRecord:
    """Return the record of an attempt that has ended."""
    changes: dict[str, Any] = {
        "finished_at": when(outcome.finished_at),
        "sandbox_id": outcome.sandbox_id,
        "failure": failure_record(outcome.failure) if outcome.failure else None,
        "rewards": dict(outcome.rewards) if outcome.rewards is not None else None,
        "steps": outcome.steps,
        "usage": _usage_record(outcome.usage),
        "phases": _phase_records(outcome.phases),
        "step_outcomes": [_step_record(step) for step in outcome.step_outcomes],
    }
    return record.model_copy(update=changes)


def outcome_of(record: AttemptRecord) -> AttemptOutcome:
    """Return what an attempt came to; one that never ended is the runner's loss."""
    failure = stored_failure(record.failure)
    if record.finished_at is None:
        failure = Failure(kind=FAILURES["infra/runner_lost"], message="the runner ended in the middle of it")
    started_at = record.started_at.timestamp()
    return AttemptOutcome(
        number=record.number,
        started_at=started_at,
        finished_at=record.finished_at.timestamp() if record.finished_at else started_at,
        sandbox_id=record.sandbox_id,
        failure=failure,
        rewards=record.rewards if record.finished_at else None,
        usage=Usage(**record.usage.model_dump()) if record.usage else None,
        steps=record.steps,
        phases=_phases(record.phases),
        step_outcomes=tuple(_step_outcome(step) for step in record.step_outcomes),
    )


def harbor_policy(failure: Failure) -> dict[str, bool]:
    """Return what Harbor calls a failure's policy, from our table."""
    counts = failure.domain is Domain.AGENT
    return {
        "should_retry": failure.kind.retried,
        "should_grade": failure.kind.graded,
        "has_valid_reward": counts,
    }
