"""Harbor's files: its field names and nothing else, its figures, no credential."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from pydantic import ValidationError

from cloche.agents.base import ModelEndpoint
from cloche.core.failures import FAILURES, failure
from cloche.core.outcome import AttemptOutcome, Span, TrialOutcome, Usage
from cloche.experiment.plan import ModelChoice, Plan, Price, make_plan
from cloche.experiment.record.attempt import when
from cloche.experiment.record.export import (
    Job,
    dump,
    exception_info,
    job_config,
    job_lock,
    job_result,
    refused_attempt,
    trial_config,
    trial_lock,
    trial_result,
)
from cloche.experiment.record.shapes import TrialConfig, TrialResult
from cloche.tasks import load_task

MakeTask = Callable[..., Path]

# the keys of files that Harbor 0.26 wrote
TRIAL_RESULT = [
    "schema_version",
    "id",
    "task_name",
    "trial_name",
    "trial_uri",
    "task_id",
    "source",
    "task_checksum",
    "config",
    "agent_info",
    "agent_result",
    "verifier_result",
    "verifier_environment_mode",
    "exception_info",
    "started_at",
    "finished_at",
    "environment_setup",
    "agent_setup",
    "agent_execution",
    "verifier",
    "step_results",
    "reward_valid",
]
JOB_RESULT = ["schema_version", "id", "started_at", "updated_at", "finished_at", "n_total_trials", "stats"]
STATS = [
    "n_completed_trials",
    "n_errored_trials",
    "n_running_trials",
    "n_pending_trials",
    "n_cancelled_trials",
    "n_retries",
    "evals",
    "n_input_tokens",
    "n_cache_tokens",
    "n_output_tokens",
    "cost_usd",
]
EVAL = ["n_trials", "n_errors", "metrics", "pass_at_k", "reward_stats", "exception_stats"]
AGENT_RESULT = [
    "n_input_tokens",
    "n_cache_tokens",
    "n_output_tokens",
    "cost_usd",
    "model_usage",
    "rollout_details",
    "metadata",
]
TRIAL_LOCK = [
    "schema_version",
    "task",
    "install_only",
    "timeout_multiplier",
    "agent_timeout_multiplier",
    "verifier_timeout_multiplier",
    "agent_setup_timeout_multiplier",
    "environment_build_timeout_multiplier",
    "extra_instructions",
    "agent",
    "user_agent",
    "user_persona",
    "user_prompt_template",
    "bridge_prompt",
    "bridge_inputs",
    "skills",
    "environment",
    "extra_docker_compose",
    "verifier",
    "artifacts",
    "override_error_policy",
    "source_trial",
]
TASK_LOCK = ["name", "version", "type", "digest", "source", "path", "git_url", "git_commit_id"]


@pytest.fixture
def job(make_task: MakeTask, tmp_path: Path) -> Job:
    endpoint = ModelEndpoint(
        base_url="https://joe:CANARY@host.example/v1?key=CANARY", model="m", api_key_env="KEY"
    )
    plan = make_plan(
        [load_task(make_task())], ["nop", "loop"], [ModelChoice(endpoint, Price(1, 2))], repeats=2
    )
    return Job(id=UUID(int=7), folder=tmp_path / "out", plan=plan)


def _attempt(**more: object) -> AttemptOutcome:
    values = {"number": 1, "started_at": 10.0, "finished_at": 12.0, **more}
    return AttemptOutcome(**values)  # type: ignore[arg-type]


def test_a_trials_result_has_harbors_keys(job: Job) -> None:
    trial = job.plan.trials[1]
    usage = Usage(input_tokens=100, cached_tokens=10, output_tokens=20, cost_usd=0.5, model_calls=2)
    attempt = _attempt(
        rewards={"reward": 1.0},
        usage=usage,
        phases={"verifier": Span(11.0, 12.0), "cleanup": Span(12.0, 12.0)},
    )
    value = json.loads(json.dumps(dump(trial_result(job, trial, attempt))))
    assert list(value) == TRIAL_RESULT
    assert list(value["agent_result"]) == AGENT_RESULT
    assert value["agent_result"]["model_usage"]["m"] == {
        "n_input_tokens": 100,
        "n_cache_tokens": 10,
        "n_output_tokens": 20,
        "cost_usd": 0.5,
    }
    assert value["verifier_result"] == {"rewards": {"reward": 1.0}}
    assert value["agent_info"] == {
        "name": "loop",
        "version": trial.agent.version,
        "model_info": {"name": "m", "provider": None},
    }
    assert value["verifier"] == {"started_at": "1970-01-01T00:00:11Z", "finished_at": "1970-01-01T00:00:12Z"}
    assert value["agent_setup"] is None
    assert value["trial_uri"] == (job.folder / trial.name).as_uri()
    assert value["reward_valid"] is True
    assert value["exception_info"] is None


def test_each_attempt_has_an_id_of_its_own_that_stays(job: Job) -> None:
    trial = job.plan.trials[0]
    first, again, second = (
        trial_result(job, trial, _attempt(number=number, rewards={"reward": 0.0})).id for number in (1, 1, 2)
    )
    assert first == again
    assert first != second


@pytest.mark.parametrize("code", sorted(FAILURES))
def test_a_failure_in_harbors_words(code: str) -> None:
    info = dump(exception_info(failure(code, "why"), 5.0))
    assert list(info) == [
        "exception_type",
        "exception_message",
        "exception_traceback",
        "occurred_at",
        "policy_override",
        "policy",
    ]
    assert info["exception_message"] == f"why [{code}]"
    kind = FAILURES[code]
    assert info["policy"] == {
        "should_retry": kind.retried,
        "should_grade": kind.graded,
        "has_valid_reward": kind.graded,
    }
    assert info["policy"] == info["policy_override"]


def test_an_unknown_cost_is_null_and_no_model_is_no_usage(job: Job) -> None:
    loop = trial_result(job, job.plan.trials[1], _attempt(usage=Usage(input_tokens=1, output_tokens=1)))
    assert loop.agent_result is not None
    assert loop.agent_result.cost_usd is None
    assert trial_result(job, job.plan.trials[0], _attempt()).agent_result is None


def test_a_refused_trial_is_a_result_without_an_attempt(job: Job) -> None:
    value = trial_result(job, job.plan.trials[0], refused_attempt(failure("plan/gpu"), 3.0))
    assert value.exception_info is not None
    assert value.exception_info.exception_type == FAILURES["plan/gpu"].harbor
    assert value.verifier_result is None
    assert not value.reward_valid


def test_locks(job: Job) -> None:
    shape = trial_lock(job, job.plan.trials[0])
    every = shape.model_dump(mode="json")
    assert set(every) == set(TRIAL_LOCK)
    assert list(every["task"]) == TASK_LOCK
    assert every["task"]["digest"].startswith("sha256:")
    lock = dump(shape)
    assert lock.keys() == {key for key, value in every.items() if value is not None}, "as Harbor writes locks"
    assert lock["task"] == {key: value for key, value in every["task"].items() if value is not None}
    whole = dump(job_lock(job, when(0)))
    assert list(whole) == ["schema_version", "created_at", "harbor", "n_concurrent_trials", "retry", "trials"]
    retry = job_lock(job, when(0)).retry.exclude_exceptions
    assert retry is not None, "without a list Harbor would assume its own"
    assert "AgentTimeoutError" in retry
    assert "SandboxUnavailableError" not in retry, (
        "a name for several failures, some of which are tried again"
    )
    trials = whole["trials"]
    assert isinstance(trials, list)
    assert len(trials) == len(job.plan.trials)


def test_no_credential_of_an_endpoint_is_in_any_file(job: Job) -> None:
    trial = job.plan.trials[1]
    everything = [
        job_config(job),
        job_lock(job, when(0)),
        trial_config(job, trial),
        trial_lock(job, trial),
        trial_result(job, trial, _attempt()),
    ]
    text = "".join(shape.model_dump_json() for shape in everything)
    assert "CANARY" not in text
    assert "host.example/v1" in text
    assert '"model_api_key_name":"KEY"' in text


def _outcome(plan: Plan, index: int, *attempts: AttemptOutcome) -> TrialOutcome:
    trial = plan.trials[index]
    return TrialOutcome(
        name=trial.name,
        task=trial.label,
        agent=trial.agent.name,
        model=trial.model_name,
        repeat=trial.repeat,
        attempts=attempts,
    )


def test_a_jobs_figures_are_harbors(job: Job) -> None:
    lost = _attempt(failure=failure("infra/sandbox_lost"), usage=Usage(input_tokens=5, output_tokens=1))
    outcomes = [
        _outcome(job.plan, 0, lost, _attempt(number=2, rewards={"reward": 1.0})),
        _outcome(job.plan, 2, lost),
        _outcome(job.plan, 1, _attempt(rewards={"reward": 0.5})),
        _outcome(job.plan, 3),
    ]
    value = dump(job_result(job, outcomes, started_at=when(0), now=when(9), finished=False, running=1))
    assert list(value) == JOB_RESULT
    stats = value["stats"]
    assert isinstance(stats, dict)
    assert list(stats) == STATS
    assert [stats[f"n_{name}_trials"] for name in ("completed", "errored", "running", "pending")] == [
        3,
        1,
        1,
        0,
    ]
    assert stats["n_retries"] == 1
    assert stats["n_input_tokens"] == 10
    assert stats["cost_usd"] is None
    assert value["finished_at"] is None
    nop = stats["evals"]["nop__adhoc"]
    assert list(nop) == EVAL
    assert nop["metrics"] == [{"mean": 1.0}], "a trial without a reward is not in Harbor's mean"
    assert nop["n_trials"] == 1
    assert nop["reward_stats"] == {"reward": {"1.0": [outcomes[0].name]}}
    assert nop["exception_stats"] == {"SandboxUnavailableError": [outcomes[1].name]}
    assert stats["evals"]["loop__m__adhoc"]["metrics"] == [{"mean": 0.5}]


def test_several_rewards_have_a_mean_each(job: Job) -> None:
    outcomes = [
        _outcome(job.plan, 0, _attempt(rewards={"pass": 1.0, "style": 0.5})),
        _outcome(job.plan, 2, _attempt(rewards={"pass": 0.0})),
    ]
    result = job_result(job, outcomes, started_at=when(0), now=when(1), finished=True)
    assert result.stats.evals["nop__adhoc"].metrics == [{"pass": 0.5, "style": 0.25}]
    assert result.finished_at == when(1)


def test_without_any_reward_there_is_no_mean(job: Job) -> None:
    lost = _outcome(job.plan, 0, _attempt(failure=failure("infra/sandbox_lost")))
    result = job_result(job, [lost], started_at=when(0), now=when(1), finished=True)
    assert result.stats.evals["nop__adhoc"].metrics == []


def test_the_shapes_take_nothing_else(job: Job) -> None:
    value = dump(trial_config(job, job.plan.trials[0]))
    assert TrialConfig.model_validate_json(json.dumps(value)).trial_name == job.plan.trials[0].name
    with pytest.raises(ValidationError, match="Extra inputs"):
        TrialConfig.model_validate({**value, "sandbox": "x"}, strict=False)
    result = trial_result(job, job.plan.trials[0], _attempt(rewards={"reward": 1.0}))
    with pytest.raises(ValidationError):
        TrialResult.model_validate({**result.model_dump(), "reward_valid": "yes"})
