"""Single rules of the experiment's core; what must always hold is in tests/sim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from cloche.core.experiment.events import (
    Ended,
    Event,
    Halted,
    Passed,
    Planned,
    Reached,
    Ready,
    Resized,
    TrialSpec,
    Unready,
)
from cloche.core.experiment.instructions import (
    Cancel,
    Exhausted,
    Finish,
    Hold,
    Instruction,
    Release,
    Start,
    TryAgain,
)
from cloche.core.experiment.machine import Experiment
from cloche.core.experiment.policy import Auto, BreakerRules, Budget, Policy
from cloche.core.experiment.states import ImpossibleTransition, TrialState
from cloche.core.failures import failure
from cloche.core.outcome import Usage
from cloche.core.retry import RetryPolicy
from cloche.core.schedule import Stop

RETRY = RetryPolicy(retries=5, first_wait_s=10.0, max_wait_s=300.0)


class Run:
    """A core, told of trials that are all ready, with the clock in the test's hand."""

    def __init__(self, trials: Iterable[TrialSpec], **policy: Any) -> None:
        self.core = Experiment(Policy(**{"retry": RETRY, **policy}))
        self.now_s = 0.0
        specs = list(trials)
        for spec in specs:
            self.tell(Planned(at_s=0.0, trial=spec))
        self.first = self.tell(Ready(at_s=0.0, names=tuple(spec.name for spec in specs)))

    def tell(self, event: Event) -> list[Instruction]:
        asked = self.core.handle(event)
        self.core.check()
        return asked

    def end(self, name: str, code: str | None = None, usage: Usage | None = None) -> list[Instruction]:
        trial = self.core.trials[name]
        found = failure(code) if code else None
        return self.tell(
            Ended(
                at_s=self.now_s,
                name=name,
                number=trial.number,
                failure=found,
                graded=found is None or found.domain == "agent",
                usage=usage,
            )
        )

    def at(self, now_s: float) -> list[Instruction]:
        self.now_s = now_s
        return self.tell(Passed(at_s=now_s))


def specs(*names: str, **more: Any) -> list[TrialSpec]:
    return [TrialSpec(name=name, agent="one", **more) for name in names]


def started(asked: Iterable[Instruction]) -> list[str]:
    return [one.name for one in asked if isinstance(one, Start)]


def test_trials_start_in_the_plans_order_up_to_the_limit() -> None:
    run = Run(specs("a", "b", "c"), concurrency=2)
    assert started(run.first) == ["a", "b"]
    assert started(run.end("a")) == ["c"]
    assert not run.core.over
    run.end("b")
    assert Finish("c") in run.end("c")
    assert run.core.over


def test_a_waiting_retry_holds_no_place_and_goes_before_fresh_trials() -> None:
    run = Run(specs("a", "b", "c"), concurrency=1)
    asked = run.end("a", "infra/capacity")
    assert started(asked) == ["b"]
    (again,) = [one for one in asked if isinstance(one, TryAgain)]
    assert 7.5 <= again.wait_s <= 12.5
    assert run.core.next_due_s() == pytest.approx(again.wait_s)
    run.at(again.wait_s)
    assert started(run.end("b")) == ["a"]


def test_waits_double_up_to_the_longest() -> None:
    run = Run(specs("a"), retry=RetryPolicy(retries=5, first_wait_s=30.0, max_wait_s=300.0))
    waits = []
    for _ in range(5):
        (again,) = [one for one in run.end("a", "infra/sandbox_lost") if isinstance(one, TryAgain)]
        waits.append(again.wait_s)
        run.at(run.now_s + again.wait_s)
    for wait_s, nominal_s in zip(waits, (30, 60, 120, 240, 480), strict=True):
        assert min(300.0, 0.75 * nominal_s) <= wait_s <= min(300.0, 1.25 * nominal_s)
    assert run.end("a", "infra/sandbox_lost") == [Finish("a")]
    assert run.core.unverdicted == 1


@pytest.mark.parametrize(
    "code", ["agent/timeout", "agent/malformed_tool_call", "agent/refusal", "verifier/error"]
)
def test_results_and_verifiers_faults_are_not_tried_again(code: str) -> None:
    run = Run(specs("a"))
    assert run.end("a", code) == [Finish("a")]


def test_a_lane_without_permits_holds_up_no_other() -> None:
    trials = [*specs("a", "b", model="slow"), *specs("c", model="fast"), *specs("d")]
    run = Run(trials, concurrency=4, per_model={"slow": 1})
    assert started(run.first) == ["a", "c", "d"]
    assert started(run.end("a")) == ["b"]


def test_an_agents_limit_holds_over_all_its_models() -> None:
    trials = [*specs("a", model="x"), *specs("b", model="y"), TrialSpec(name="c", agent="two")]
    assert started(Run(trials, concurrency=4, per_agent={"one": 1}).first) == ["a", "c"]


def test_a_trial_whose_verdict_is_a_timing_runs_alone() -> None:
    run = Run([*specs("a", exclusive=True), *specs("b", "c", "d")], concurrency=2)
    assert started(run.first) == ["b", "c"]
    assert started(run.end("b")) == ["d"]
    assert started(run.end("d")) == []
    assert started(run.end("c")) == ["a"]
    run.tell(Planned(at_s=0.0, trial=specs("e")[0]))
    assert started(run.tell(Ready(at_s=0.0, names=("e",)))) == []
    assert started(run.end("a")) == ["e"]


def test_auto_grows_by_one_and_is_halved_by_a_rate_limit_once_a_burst() -> None:
    trials = specs(*(f"t{index}" for index in range(60)), model="m")
    run = Run(trials, concurrency=50, auto=Auto(start=8, ceiling=50, settle_s=10.0))
    assert len(started(run.first)) == 8
    running = started(run.first)
    for name in running[:4]:
        run.end(name, "infra/model_rate_limit")
    assert run.core._permits.model_limit("m") == 4
    assert run.core.active == 4
    for name in [name for name, trial in run.core.trials.items() if trial.state.active]:
        run.end(name)
    assert run.core._permits.model_limit("m") == 4  # four good ends: almost one more
    run.end(next(name for name, trial in run.core.trials.items() if trial.state.active))
    assert run.core._permits.model_limit("m") == 5


MANY = BreakerRules(failures=3, trials=2, hold_s=60.0, probes=2)


def test_an_endpoint_that_fails_across_trials_is_held_and_probed() -> None:
    trials = [*specs("a", "b", "c", "d", "e", model="m"), *specs("x", "y")]
    run = Run(trials, concurrency=3, breaker=MANY, retry=RetryPolicy(retries=0))
    assert started(run.first) == ["a", "b", "c"]
    run.end("a", "infra/model_unavailable")
    run.end("b", "infra/model_unavailable")
    asked = run.end("c", "infra/model_unavailable")
    assert [one.resource for one in asked if isinstance(one, Hold)] == ["model m"]
    assert list(run.core.held()) == ["model m"]
    assert started(asked) == ["x"]
    assert started(run.at(59.0)) == []
    assert started(run.at(61.0)) == [], "d and e were running when it was held: the limit is reached"
    run.end("d", "infra/model_unavailable")
    assert started(run.end("e", "infra/model_unavailable")) == []


def test_a_probe_that_works_opens_the_way_and_one_that_fails_doubles_the_wait() -> None:
    trials = specs("a", "b", "c", "d", "e", "f", model="m")
    run = Run(trials, concurrency=3, breaker=MANY, retry=RetryPolicy(retries=0))
    for name in ("a", "b"):
        run.end(name, "infra/model_connection")
    for name in ("c", "d", "e"):
        run.end(name, "infra/model_connection")
    assert started(run.at(59.0)) == []
    assert started(run.at(60.0)) == ["f"]
    assert Release("model m") in run.end("f")
    assert run.core.over


def test_a_resource_that_never_comes_back_ends_its_trials_without_a_score() -> None:
    trials = [*specs(*"abcdefgh", model="m"), *specs("x")]
    run = Run(trials, concurrency=2, breaker=MANY, retry=RetryPolicy(retries=0))
    asked: list[Instruction] = []
    while run.core.count(TrialState.DONE) < 9:
        name = next((n for n, t in run.core.trials.items() if t.state.active), None)
        if name is None:
            due_s = run.core.next_due_s()
            assert due_s is not None
            asked += run.at(due_s)
        else:
            asked += run.end(name, None if name == "x" else "infra/model_connection")
    unrun = [one for one in asked if isinstance(one, Finish) and one.unrun]
    assert unrun
    assert {one.unrun.code for one in unrun if one.unrun} == {"infra/model_connection"}
    assert run.core.unverdicted == 8


def test_a_rate_limit_or_an_agents_failure_holds_nothing() -> None:
    trials = specs(*"abcdef", model="m")
    run = Run(trials, concurrency=6, breaker=MANY, retry=RetryPolicy(retries=0))
    for name, code in zip("abcdef", ["infra/model_rate_limit"] * 3 + ["agent/timeout"] * 3, strict=True):
        run.end(name, code)
    assert run.core.held() == {}


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        (Budget(cost_usd=1.0), "budget/money"),
        (Budget(tokens=100), "budget/tokens"),
        (Budget(wall_s=50.0), "budget/time"),
    ],
)
def test_a_budget_that_is_used_up_starts_nothing_more(budget: Budget, code: str) -> None:
    run = Run(specs("a", "b", "c", model="m"), concurrency=1, budget=budget)
    run.now_s = 60.0 if budget.wall_s else 1.0
    asked = run.end("a", usage=Usage(input_tokens=90, output_tokens=10, cost_usd=1.0))
    (told,) = [one for one in asked if isinstance(one, Exhausted)]
    assert told.failure.code == code
    assert started(asked) == []
    assert run.core.over
    assert run.core.count(TrialState.QUEUED) == 2


def test_the_time_for_the_whole_is_up_without_any_event() -> None:
    run = Run(specs("a", "b"), concurrency=1, budget=Budget(wall_s=50.0))
    assert run.core.next_due_s() == 50.0
    (told,) = run.at(50.0)
    assert isinstance(told, Exhausted)


def test_unknown_cost_is_counted_apart() -> None:
    run = Run(specs("a", "b", model="m"), budget=Budget(cost_usd=1.0))
    run.end("a", usage=Usage(input_tokens=1, output_tokens=1, cost_usd=None))
    assert run.core._spending.unpriced == 1
    assert run.core.exhausted is None


def test_enough_without_a_verdict_ends_it() -> None:
    run = Run(specs("a", "b", "c"), concurrency=1, max_unverdicted=1)
    assert started(run.end("a", "verifier/error")) == []
    assert run.core.over


def test_draining_starts_nothing_and_cancelling_ends_what_runs() -> None:
    run = Run(specs("a", "b", "c"), concurrency=2)
    assert run.tell(Halted(at_s=1.0, stop=Stop.DRAINING)) == []
    assert run.tell(Halted(at_s=2.0, stop=Stop.CANCELLING)) == [Cancel("a", 1), Cancel("b", 1)]
    assert run.tell(Halted(at_s=2.0, stop=Stop.DRAINING)) == []
    assert run.core.stop is Stop.CANCELLING
    run.end("a", "user/interrupted")
    assert not run.core.over
    run.end("b", "user/interrupted")
    assert run.core.over


def test_more_places_start_more_at_once() -> None:
    run = Run(specs("a", "b", "c"), concurrency=1)
    assert started(run.tell(Resized(at_s=0.0, concurrency=3))) == ["b", "c"]


def test_starts_are_spread() -> None:
    run = Run(specs("a", "b"), concurrency=2, start_interval_s=10.0)
    assert started(run.first) == ["a"]
    due_s = run.core.next_due_s()
    assert due_s is not None
    assert 5.0 <= due_s <= 15.0
    assert started(run.at(due_s)) == ["b"]


def test_what_cannot_be_prepared_ends_with_the_reason() -> None:
    core = Experiment(Policy())
    for spec in specs("a", "b"):
        core.handle(Planned(at_s=0.0, trial=spec))
    reason = failure("infra/image")
    assert core.handle(Unready(at_s=1.0, names=("a", "b"), failure=reason)) == [
        Finish("a", reason),
        Finish("b", reason),
    ]
    assert core.over


EVENTS: Mapping[str, Event] = {
    "ended before it began": Ended(at_s=1.0, name="b", number=1),
    "of another attempt": Ended(at_s=1.0, name="a", number=2),
    "back to its start": Reached(at_s=1.0, name="a", number=1, state=TrialState.STARTING),
    "past its set-up": Reached(at_s=1.0, name="a", number=1, state=TrialState.VERIFYING),
    "planned twice": Planned(at_s=1.0, trial=specs("a")[0]),
    "ready twice": Ready(at_s=1.0, names=("a",)),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_an_impossible_transition_tells_the_whole_history(event: Event) -> None:
    run = Run(specs("a", "b"), concurrency=1)
    with pytest.raises(ImpossibleTransition) as caught:
        run.tell(event)
    assert "its history" in str(caught.value)
    if caught.value.name == "a":
        assert "planned → queued: ready" in str(caught.value)
        assert "queued → starting: attempt 1" in str(caught.value)


def test_attempts_go_on_counting_from_those_before() -> None:
    core = Experiment(Policy(retry=RetryPolicy(retries=1, first_wait_s=0.0)))
    core.handle(Planned(at_s=0.0, trial=specs("a")[0], attempts=3))
    assert core.handle(Ready(at_s=0.0, names=("a",))) == [Start("a", 4)]


def test_what_is_done_is_done() -> None:
    core = Experiment(Policy())
    core.handle(Planned(at_s=0.0, trial=specs("a")[0], done=True))
    assert core.over
