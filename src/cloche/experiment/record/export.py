"""From a plan and its outcomes to Harbor's files. Pure: returns what is to be written.

Must never put a figure of ours where Harbor means another: its ``mean`` takes the trials with a reward, by
reward, so it stands in Harbor's file for Harbor's tools, and is not what we print.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid5

from cloche.core.failures import FAILURES, Failure
from cloche.core.outcome import AttemptOutcome, Span, TrialOutcome, Usage, add_usage
from cloche.core.retry import RetryPolicy
from cloche.experiment.plan import ModelChoice, Plan, PlannedTrial
from cloche.experiment.record.attempt import harbor_policy, public_url, when
from cloche.experiment.record.shapes import (
    AgentConfig,
    AgentInfo,
    AgentResult,
    EnvironmentConfig,
    ErrorPolicy,
    EvalStats,
    ExceptionInfo,
    JobConfig,
    JobLock,
    JobResult,
    JobStats,
    LocalTaskId,
    ModelInfo,
    ModelUsage,
    RetryConfig,
    Shape,
    StepResult,
    TaskConfig,
    TaskLock,
    Timing,
    TrialConfig,
    TrialLock,
    TrialResult,
    VerifierConfig,
    VerifierLock,
    VerifierResult,
)

ENVIRONMENT = "cloche.sandbox.drivers.local:LocalDriver"
# without a list Harbor assumes its own; a name that stands for failures of both sorts is tried again for some
_NEVER_RETRIED = sorted(
    {kind.harbor for kind in FAILURES.values()} - {kind.harbor for kind in FAILURES.values() if kind.retried}
)
_PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all files of one record have in common."""

    id: UUID
    folder: Path
    plan: Plan


def dump(shape: Shape) -> dict[str, object]:
    """Return the JSON value of a shape as Harbor writes it: of a lock it leaves out what is not set."""
    return shape.model_dump(mode="json", exclude_none=isinstance(shape, TrialLock | JobLock))


def _agent_config(job: Job, agent: str, model: ModelChoice | None) -> AgentConfig:
    limits = job.plan.limits
    times = AgentConfig(
        name=agent,
        override_timeout_sec=limits.agent.override_s,
        override_setup_timeout_sec=limits.setup.override_s,
        max_timeout_sec=limits.agent.max_s,
    )
    if model is None:
        return times
    return AgentConfig(
        **times.model_dump(exclude_unset=True),
        model_name=model.name,
        base_url=public_url(model.endpoint.base_url),
        model_api_key_name=model.endpoint.api_key_env,
        model_api_format="openai_chat_completions",
    )


def _verifier_config(job: Job) -> VerifierConfig:
    rule = job.plan.limits.verifier
    return VerifierConfig(override_timeout_sec=rule.override_s, max_timeout_sec=rule.max_s)


def _multipliers(job: Job) -> dict[str, Any]:
    limits = job.plan.limits
    return {
        "timeout_multiplier": limits.multiplier,
        "agent_timeout_multiplier": limits.agent.multiplier,
        "verifier_timeout_multiplier": limits.verifier.multiplier,
        "agent_setup_timeout_multiplier": limits.setup.multiplier,
        "environment_build_timeout_multiplier": limits.start.multiplier,
    }


def _environment_config() -> EnvironmentConfig:
    return EnvironmentConfig(import_path=ENVIRONMENT)


def _retry_config(policy: RetryPolicy) -> RetryConfig:
    return RetryConfig(
        max_retries=policy.retries,
        exclude_exceptions=_NEVER_RETRIED,
        wait_multiplier=policy.factor,
        min_wait_sec=policy.first_wait_s,
        max_wait_sec=policy.max_wait_s,
    )


def _task_config(trial: PlannedTrial) -> TaskConfig:
    if trial.task is None:
        return TaskConfig(path=trial.label)
    return TaskConfig(path=str(trial.task.path), source=trial.task.source)


def trial_config(job: Job, trial: PlannedTrial) -> TrialConfig:
    """Return ``<trial>/config.json``."""
    return TrialConfig(
        task=_task_config(trial),
        trial_name=trial.name,
        trials_dir=str(job.folder),
        **_multipliers(job),
        agent=_agent_config(job, trial.agent.name, trial.model),
        environment=_environment_config(),
        verifier=_verifier_config(job),
        job_id=job.id,
    )


def trial_lock(job: Job, trial: PlannedTrial) -> TrialLock:
    """Return ``<trial>/lock.json``."""
    task = trial.task
    return TrialLock(
        task=TaskLock(
            name=task.full_name if task else trial.label,
            digest=trial.digest,
            source=task.source if task else None,
            path=str(task.path) if task else None,
        ),
        **_multipliers(job),
        agent=_agent_config(job, trial.agent.name, trial.model),
        environment=_environment_config(),
        verifier=VerifierLock(**_verifier_config(job).model_dump(), environment_mode=_mode(trial)),
    )


def _mode(trial: PlannedTrial) -> Literal["shared", "separate"] | None:
    """Return where the verifier runs; each step of a task in steps has its own, which Harbor leaves out."""
    if trial.task is None or trial.task.steps:
        return None if trial.task else "shared"
    return "separate" if trial.task.verifier.separate else "shared"


def _step_results(trial: PlannedTrial, attempt: AttemptOutcome) -> list[StepResult] | None:
    if trial.task is None or not trial.task.steps:
        return None
    return [
        StepResult(
            step_name=step.name,
            agent_result=_agent_result(step.usage, trial.model_name),
            verifier_result=None if step.rewards is None else VerifierResult(rewards=dict(step.rewards)),
            exception_info=exception_info(step.failure, attempt.finished_at) if step.failure else None,
            agent_execution=_timing(step.phases.get("agent_execution")),
            verifier=_timing(step.phases.get("verifier")),
        )
        for step in attempt.step_outcomes
    ]


def job_config(job: Job) -> JobConfig:
    """Return the job's ``config.json``."""
    agents = {(trial.agent.name, trial.model_name): trial for trial in job.plan.trials}
    tasks = {trial.label: trial for trial in job.plan.trials}
    return JobConfig(
        job_name=job.folder.name,
        jobs_dir=str(job.folder.parent),
        n_attempts=job.plan.repeats,
        **_multipliers(job),
        n_concurrent_trials=job.plan.concurrency,
        retry=_retry_config(job.plan.retry),
        environment=_environment_config(),
        verifier=_verifier_config(job),
        agents=[_agent_config(job, trial.agent.name, trial.model) for trial in agents.values()],
        tasks=[_task_config(trial) for trial in tasks.values()],
    )


def job_lock(job: Job, created_at: datetime) -> JobLock:
    """Return the job's ``lock.json``; tasks that could not be read have no digest and are not in it."""
    return JobLock(
        created_at=created_at,
        n_concurrent_trials=job.plan.concurrency,
        retry=_retry_config(job.plan.retry),
        trials=[trial_lock(job, trial) for trial in job.plan.trials if trial.task is not None],
    )


def _timing(span: Span | None) -> Timing | None:
    return (
        None if span is None else Timing(started_at=when(span.started_at), finished_at=when(span.finished_at))
    )


def exception_info(failure: Failure, at: float) -> ExceptionInfo:
    """Return a failure as Harbor stores exceptions; our table decides what it means, not the name alone."""
    policy = ErrorPolicy(**harbor_policy(failure))
    return ExceptionInfo(
        exception_type=failure.kind.harbor,
        exception_message=f"{failure.message} [{failure.code}]",
        exception_traceback=failure.detail,
        occurred_at=when(at),
        policy_override=policy,
        policy=policy,
    )


def _agent_result(usage: Usage | None, model: str | None) -> AgentResult | None:
    if usage is None:
        return None
    by_model = None
    if model is not None and usage.input_tokens is not None and usage.output_tokens is not None:
        by_model = {
            model: ModelUsage(
                n_input_tokens=usage.input_tokens,
                n_cache_tokens=usage.cached_tokens or 0,
                n_output_tokens=usage.output_tokens,
                cost_usd=usage.cost_usd,
            )
        }
    return AgentResult(
        n_input_tokens=usage.input_tokens,
        n_cache_tokens=usage.cached_tokens,
        n_output_tokens=usage.output_tokens,
        cost_usd=usage.cost_usd,
        model_usage=by_model,
    )


def trial_result(job: Job, trial: PlannedTrial, attempt: AttemptOutcome) -> TrialResult:
    """Return ``<trial>/result.json`` of one attempt."""
    spans = {name: _timing(attempt.phases.get(name)) for name in _PHASES}
    model = trial.model_name
    return TrialResult(
        id=uuid5(job.id, f"{trial.name}/{attempt.number}"),
        task_name=trial.task.full_name if trial.task else trial.label,
        trial_name=trial.name,
        trial_uri=(job.folder.absolute() / trial.name).as_uri(),
        task_id=LocalTaskId(path=str(trial.task.path) if trial.task else trial.label),
        source=trial.task.source if trial.task else None,
        task_checksum=trial.digest.removeprefix("sha256:"),
        config=trial_config(job, trial),
        agent_info=AgentInfo(
            name=trial.agent.name,
            version=trial.agent.version,
            model_info=ModelInfo(name=model) if model else None,
        ),
        agent_result=_agent_result(attempt.usage, model),
        verifier_result=None if attempt.rewards is None else VerifierResult(rewards=dict(attempt.rewards)),
        verifier_environment_mode=_mode(trial),
        exception_info=exception_info(attempt.failure, attempt.finished_at) if attempt.failure else None,
        started_at=when(attempt.started_at),
        finished_at=when(attempt.finished_at),
        environment_setup=spans["environment_setup"],
        agent_setup=spans["agent_setup"],
        agent_execution=spans["agent_execution"],
        verifier=spans["verifier"],
        step_results=_step_results(trial, attempt),
        reward_valid=attempt.graded,
    )


def refused_attempt(failure: Failure, at: float) -> AttemptOutcome:
    """Return what Harbor's files say of a trial that was refused: it began and failed at once."""
    return AttemptOutcome(number=0, started_at=at, finished_at=at, failure=failure)


def _mean(rewards: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return Harbor's metrics: trials without a reward are left out, one of several that is missing is 0."""
    if not rewards:
        return []
    names = sorted({name for item in rewards for name in item})
    means = {name: sum(item.get(name, 0.0) for item in rewards) / len(rewards) for name in names}
    return [{"mean": means[names[0]]} if len(names) == 1 else means]


def _eval_stats(trials: Sequence[TrialOutcome]) -> EvalStats:
    stats = EvalStats(n_trials=sum(trial.graded for trial in trials))
    for trial in trials:
        if trial.graded and trial.last and trial.last.rewards is not None:
            for key, value in trial.last.rewards.items():
                names = stats.reward_stats.setdefault(key, {})
                names.setdefault(str(value), []).append(trial.name)
        if trial.failure:
            stats.n_errors += 1
            stats.exception_stats.setdefault(trial.failure.kind.harbor, []).append(trial.name)
    rewards = [trial.last.rewards for trial in trials if trial.graded and trial.last and trial.last.rewards]
    return stats.model_copy(update={"metrics": _mean(rewards)})


def _sources(plan: Plan) -> dict[str, str]:
    return {trial.name: (trial.task.source if trial.task else None) or "adhoc" for trial in plan.trials}


def job_result(
    job: Job,
    trials: Iterable[TrialOutcome],
    *,
    started_at: datetime,
    now: datetime,
    finished: bool,
    running: int = 0,
) -> JobResult:
    """Return the job's ``result.json``; a trial counts as completed once it has a result of any kind."""
    every = list(trials)
    done = [trial for trial in every if trial.failure is not None or trial.graded]
    sources = _sources(job.plan)
    groups: dict[str, list[TrialOutcome]] = {}
    for trial in done:
        parts = [trial.agent, *([trial.model] if trial.model else []), sources.get(trial.name, "adhoc")]
        groups.setdefault("__".join(parts), []).append(trial)
    usage = add_usage([found for trial in done if (found := trial.usage) is not None])
    errors = [trial.failure for trial in done if trial.failure is not None]
    stats = JobStats(
        n_completed_trials=len(done),
        n_errored_trials=len(errors),
        n_running_trials=running,
        n_pending_trials=max(0, len(every) - len(done) - running),
        n_cancelled_trials=sum(failure.kind.harbor == "CancelledError" for failure in errors),
        n_retries=sum(max(0, len(trial.attempts) - 1) for trial in every),
        evals={key: _eval_stats(group) for key, group in groups.items()},
        n_input_tokens=usage.input_tokens if usage else None,
        n_cache_tokens=usage.cached_tokens if usage else None,
        n_output_tokens=usage.output_tokens if usage else None,
        cost_usd=usage.cost_usd if usage else None,
    )
    return JobResult(
        id=job.id,
        started_at=started_at,
        updated_at=now,
        finished_at=now if finished else None,
        n_total_trials=len(every),
        stats=stats,
    )
