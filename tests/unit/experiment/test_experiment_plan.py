"""From tasks, agents, models and repeats to trials."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cloche.agents.base import ModelEndpoint
from cloche.core.errors import Domain, InvalidInput
from cloche.core.outcome import Usage
from cloche.experiment.limits import timeouts
from cloche.experiment.plan import ModelChoice, Price, labels, make_plan
from cloche.tasks import BrokenTask, Task, find_tasks, load_task

MakeTask = Callable[..., Path]


def _model(name: str) -> ModelChoice:
    return ModelChoice(ModelEndpoint(base_url="http://127.0.0.1:1/v1", model=name))


def test_repeats_are_outermost_then_tasks_then_agents_with_their_models(make_task: MakeTask) -> None:
    tasks = [load_task(make_task(name)) for name in ("a", "b")]
    plan = make_plan(tasks, ["oracle", "nop", "loop"], [_model("x"), _model("y")], repeats=2)
    assert len(plan.trials) == 2 * 2 * 4
    first = [(t.repeat, t.label, t.agent.name, t.model_name) for t in plan.trials[:5]]
    assert first == [
        (1, "a", "oracle", None),
        (1, "a", "nop", None),
        (1, "a", "loop", "x"),
        (1, "a", "loop", "y"),
        (1, "b", "oracle", None),
    ]
    assert len({trial.name for trial in plan.trials}) == len(plan.trials)


def test_the_same_plan_has_the_same_names(make_task: MakeTask) -> None:
    task = load_task(make_task())
    first, second = (make_plan([task], ["nop"], [], repeats=3) for _ in range(2))
    assert [trial.name for trial in first.trials] == [trial.name for trial in second.trials]
    more = make_plan([task], ["oracle", "nop"], [], repeats=5)
    assert {trial.name for trial in first.trials} < {trial.name for trial in more.trials}


def test_an_agent_named_twice_runs_once(make_task: MakeTask) -> None:
    assert len(make_plan([load_task(make_task())], ["nop", "nop"], []).trials) == 1


def test_an_unknown_agent_and_a_missing_model_are_said(make_task: MakeTask) -> None:
    task = load_task(make_task())
    with pytest.raises(InvalidInput, match="there is no agent `orcale`") as unknown:
        make_plan([task], ["orcale"], [])
    assert unknown.value.hint == "did you mean `oracle`?"
    with pytest.raises(InvalidInput, match="`loop` needs a model"):
        make_plan([task], ["loop"], [])


def test_a_broken_task_is_a_row_and_the_others_run(make_task: MakeTask) -> None:
    make_task("good")
    make_task("broken", toml="[environment\n")
    make_task("gpu", toml='[environment]\ndocker_image = "x:1"\ngpus = 1\n')
    plan = make_plan(find_tasks([make_task("zebra").parent]), ["nop"], [])
    assert [trial.label for trial in plan.trials] == ["broken", "good", "gpu", "zebra"]
    reasons = {trial.label: trial.refusal.code for trial in plan.trials if trial.refusal}
    assert reasons == {"broken": "task/toml", "gpu": "plan/gpu"}
    assert all(trial.refusal.domain is Domain.USER for trial in plan.refused if trial.refusal)


def test_the_oracle_is_refused_where_there_is_no_solution(make_task: MakeTask) -> None:
    folder = make_task()
    shutil.rmtree(folder / "solution")
    plan = make_plan([load_task(folder)], ["oracle", "nop"], [])
    assert [trial.refusal.code if trial.refusal else None for trial in plan.trials] == [
        "plan/no_solution",
        None,
    ]


def test_a_variable_of_the_host_that_is_missing_refuses_the_task(make_task: MakeTask) -> None:
    toml = '[environment]\ndocker_image = "x:1"\n[environment.env]\nTOKEN = "${NEEDED}"\n'
    task = load_task(make_task(toml=toml))
    assert make_plan([task], ["nop"], [], environ={}).refused
    assert not make_plan([task], ["nop"], [], environ={"NEEDED": "x"}).refused


def test_tasks_of_one_name_get_longer_ones(make_task: MakeTask) -> None:
    def named(folder: str, name: str) -> Task:
        return load_task(
            make_task(folder, toml=f'[task]\nname = "{name}"\n[environment]\ndocker_image="x:1"\n')
        )

    one, two = named("1", "acme/csv"), named("2", "corp/csv")
    assert labels([one, two]) == ["acme/csv", "corp/csv"]
    twin = load_task(shutil.copytree(one.path, one.path.with_name("3")))
    assert labels([one, twin]) == [str(one.path), str(twin.path)]
    broken = BrokenTask(name="x", path=Path("x"), findings=())
    assert labels([one, broken]) == ["csv", "x"]
    plan = make_plan([one, twin], ["nop"], [])
    assert len({trial.name for trial in plan.trials}) == 2


def test_time_limits_are_multiplied(task: Task) -> None:
    limits = timeouts(task, 2.0)
    assert (limits.agent_s, limits.verifier_s, limits.setup_s) == (60.0, 40.0, 720.0)
    assert limits.total_s == 60.0 + 40.0 + 720.0 + limits.start_s


def test_an_agent_without_limit_has_none(make_task: MakeTask) -> None:
    task = load_task(make_task(toml='[environment]\ndocker_image = "x:1"\n'))
    assert timeouts(task, 3.0).agent_s is None
    assert timeouts(task, 3.0).total_s is None


def test_price() -> None:
    price = Price(0.15, 0.60)
    assert price.cost_usd(Usage(input_tokens=1_000_000, output_tokens=500_000)) == pytest.approx(0.45)
    assert price.cost_usd(Usage(input_tokens=1_000_000)) is None
