"""The experiment: ``handle`` takes an event and returns what is to be done. Nothing else changes it.

Must never start more than the permits allow, nor end a trial twice, nor make a score of a failure that is not
the agent's: retries and ends are decided by ``cloche.core.retry`` from the failure's domain alone.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from cloche.core.errors import Domain
from cloche.core.experiment.breaker import DRIVER, Breaker, Circuit, blamed, resources
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
from cloche.core.experiment.lanes import Lanes
from cloche.core.experiment.permits import Permits
from cloche.core.experiment.policy import Policy
from cloche.core.experiment.spending import Spending
from cloche.core.experiment.states import ALLOWED, ImpossibleTransition, Step, TrialState
from cloche.core.failures import Failure
from cloche.core.retry import GiveUp, RetryAfter, decide
from cloche.core.schedule import Stop


@dataclass(slots=True)
class Trial:
    """One trial on its way. ``made`` counts the attempts of this run, ``number`` all attempts there were."""

    spec: TrialSpec
    place: int
    state: TrialState = TrialState.PLANNED
    number: int = 0
    made: int = 0
    history: tuple[Step, ...] = ()


@dataclass(slots=True)
class Experiment:
    """All trials of an experiment and what holds them up. See ``handle``."""

    policy: Policy
    stop: Stop = Stop.RUNNING
    trials: dict[str, Trial] = field(default_factory=dict)
    unverdicted: int = 0
    exhausted: Failure | None = None
    _counts: Counter[TrialState] = field(default_factory=Counter)
    _lanes: Lanes = field(default_factory=Lanes)
    _due: list[tuple[float, int, str]] = field(default_factory=list)
    _breakers: dict[str, Breaker] = field(default_factory=dict)
    _next_start_s: float = -float("inf")
    _now_s: float = -float("inf")
    _active: dict[str, None] = field(default_factory=dict)
    _permits: Permits = field(init=False)
    _spending: Spending = field(init=False)
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._permits = Permits(self.policy, self.policy.concurrency)
        self._spending = Spending(self.policy.budget)
        self._chance = random.Random(self.policy.seed)  # noqa: S311  # spreads waits, guards nothing

    # ---- what can be asked ----

    def count(self, *states: TrialState) -> int:
        """Return how many trials are in these states."""
        return sum(self._counts[state] for state in states)

    @property
    def active(self) -> int:
        """How many attempts are on."""
        return len(self._active)

    @property
    def over(self) -> bool:
        """Whether nothing is on and nothing will be started."""
        if self._active:
            return False
        return self.stop is not Stop.RUNNING or self.count(TrialState.DONE) == len(self.trials)

    def next_due_s(self) -> float | None:
        """Return when ``Passed`` is wanted, if anything waits for a time."""
        if self.stop is not Stop.RUNNING:
            return None
        times = [self._due[0][0]] if self._due else []
        if len(self._lanes):
            times += [b.until_s for b in self._breakers.values() if b.state is Circuit.OPEN]
            times.append(self._next_start_s)
        deadline_s = self._spending.deadline_s
        if deadline_s is not None and not self.over:
            times.append(deadline_s)
        later = [time for time in times if time > self._now_s]
        return min(later, default=None)

    def held(self) -> dict[str, Failure]:
        """Return what is held at the moment, and why."""
        return {
            name: breaker.failure
            for name, breaker in self._breakers.items()
            if breaker.state is not Circuit.CLOSED and breaker.failure is not None
        }

    # ---- the one way in ----

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event and return what is to be done, in order.

        Raises ImpossibleTransition, with the trial's history, for an event that cannot be.
        """
        self._now_s = max(self._now_s, event.at_s)
        return [*self._take_in(event), *self._abandoned(), *self._spent(), *self._start_due()]

    def _take_in(self, event: Event) -> Iterator[Instruction]:
        match event:
            case Planned():
                self._plan(event)
            case Ready():
                self._queue(event.names, "ready")
            case Unready():
                yield from self._give_up(event.names, event.failure)
            case Reached():
                self._go(self._on(event.name, event.number, event.state), event.state, "reached")
            case Ended():
                yield from self._ended(event)
            case Halted():
                yield from self._halt(event.stop)
            case Resized():
                self._permits.concurrency = event.concurrency
            case Passed():
                pass
            case _:
                raise TypeError(f"{event!r} is no event of an experiment")

    # ---- single events ----

    def _plan(self, event: Planned) -> None:
        name = event.trial.name
        if name in self.trials:
            raise ImpossibleTransition(name, "planned", "planned twice", self.trials[name].history)
        trial = Trial(event.trial, place=len(self.trials), number=event.attempts)
        self.trials[name] = trial
        self._counts[trial.state] += 1
        self._spending.began(event.at_s)
        if event.done:
            self._go(trial, TrialState.DONE, "done before")

    def _queue(self, names: tuple[str, ...], cause: str, *, again: bool = False) -> None:
        for name in names:
            trial = self.trials[name]
            self._go(trial, TrialState.QUEUED, cause)
            self._lanes.add(trial.spec, trial.place, again=again)

    def _give_up(self, names: tuple[str, ...], failure: Failure) -> Iterator[Instruction]:
        for name in names:
            trial = self.trials[name]
            self._go(trial, TrialState.DONE, failure.code)
            self.unverdicted += 1
            yield Finish(name, failure)

    def _on(self, name: str, number: int, wanted: str) -> Trial:
        trial = self.trials[name]
        if not trial.state.active or trial.number != number:
            cause = f"attempt {number} is not the one that is on"
            raise ImpossibleTransition(name, wanted, cause, trial.history)
        return trial

    def _ended(self, event: Ended) -> Iterator[Instruction]:
        trial = self._on(event.name, event.number, "ended")
        del self._active[event.name]
        self._permits.give_back(trial.spec)
        self._spending.add(event.usage)
        yield from self._learn(trial.spec, event.failure)
        decision = self._decision(trial, event)
        if event.failure is not None and isinstance(decision, RetryAfter):
            self._go(trial, TrialState.WAITING, event.failure.code)
            heapq.heappush(self._due, (self._now_s + decision.wait_s, trial.place, event.name))
            yield TryAgain(event.name, event.failure, decision.wait_s)
            return
        self._go(trial, TrialState.DONE, event.failure.code if event.failure else "verdict")
        self.unverdicted += not event.graded
        yield Finish(event.name)

    def _decision(self, trial: Trial, event: Ended) -> RetryAfter | GiveUp:
        if event.graded or event.failure is None:
            return GiveUp("it has a verdict")
        if self.stop is not Stop.RUNNING:
            return GiveUp("nothing more is started")
        if any(self._breaker(resource).state is Circuit.GONE for resource in resources(trial.spec)):
            return GiveUp("what it needs is given up")
        return decide(trial.made, event.failure, self.policy.retry, jitter=self._chance.random())

    def _learn(self, spec: TrialSpec, failure: Failure | None) -> Iterator[Instruction]:
        """Tell breakers and adaptive limits how the attempt ended."""
        if spec.model is not None:
            limited = failure is not None and failure.code == "infra/model_rate_limit"
            self._permits.learn(spec.model, limited=limited, at_s=self._now_s)
        guilty = blamed(spec, failure)
        for resource in resources(spec):
            breaker = self._breaker(resource)
            if resource == guilty and failure is not None:
                if breaker.bad(spec.name, failure, self._now_s):
                    yield Hold(resource, breaker.until_s, failure)
            elif not _shows_health(resource, guilty, failure):
                breaker.neutral(spec.name)
            elif breaker.good():
                yield Release(resource)

    def _abandoned(self) -> Iterator[Instruction]:
        for resource, breaker in self._breakers.items():
            if breaker.state is Circuit.GONE and breaker.failure is not None:
                yield from self._abandon(resource, breaker.failure)

    def _abandon(self, resource: str, failure: Failure) -> Iterator[Instruction]:
        """End all trials that wait for a resource that is given up."""

        def needs(spec: TrialSpec) -> bool:
            return resource in resources(spec)

        names = self._lanes.drop(needs, lambda name: self.trials[name].spec)
        waiting = [item for item in self._due if needs(self.trials[item[2]].spec)]
        self._due = [item for item in self._due if item not in set(waiting)]
        heapq.heapify(self._due)
        yield from self._give_up((*names, *(name for _, _, name in sorted(waiting))), failure)

    def _halt(self, stop: Stop) -> Iterator[Instruction]:
        before, self.stop = self.stop, max(self.stop, stop)
        if before < Stop.CANCELLING <= self.stop:
            for name in self._active:
                yield Cancel(name, self.trials[name].number)

    def _spent(self) -> Iterator[Instruction]:
        """Stop starting anything once a budget is used up, or too much went without a verdict."""
        if self.exhausted is not None or self.stop is not Stop.RUNNING or self.over:
            return
        most = self.policy.max_unverdicted
        failure = self._spending.exhausted(self._now_s)
        if failure is not None:
            self.exhausted = failure
            self.stop = Stop.DRAINING
            yield Exhausted(failure)
        elif most is not None and self.unverdicted >= most:
            self.stop = Stop.DRAINING

    # ---- starting ----

    def _start_due(self) -> Iterator[Instruction]:
        if self.stop is not Stop.RUNNING:
            return
        while self._due and self._due[0][0] <= self._now_s:
            self._queue((heapq.heappop(self._due)[2],), "its wait is over", again=True)
        while self._now_s >= self._next_start_s:
            name = self._lanes.take(self._free)
            if name is None:
                return
            yield self._start(self.trials[name])

    def _free(self, name: str) -> bool:
        spec = self.trials[name].spec
        return self._permits.free(spec) and all(
            self._breaker(resource).free(self._now_s) for resource in resources(spec)
        )

    def _start(self, trial: Trial) -> Start:
        self._permits.take(trial.spec)
        for resource in resources(trial.spec):
            self._breaker(resource).started(trial.spec.name)
        trial.number += 1
        trial.made += 1
        self._active[trial.spec.name] = None
        self._go(trial, TrialState.STARTING, f"attempt {trial.number}")
        interval_s = self.policy.start_interval_s
        if interval_s:
            self._next_start_s = self._now_s + interval_s * (0.5 + self._chance.random())
        return Start(trial.spec.name, trial.number)

    def _breaker(self, resource: str) -> Breaker:
        if resource not in self._breakers:
            self._breakers[resource] = Breaker(self.policy.breaker)
        return self._breakers[resource]

    def _go(self, trial: Trial, after: TrialState, cause: str) -> None:
        before = trial.state
        if after not in ALLOWED[before]:
            raise ImpossibleTransition(trial.spec.name, after, cause, trial.history)
        trial.history = (*trial.history, Step(self._now_s, before, after, cause))
        trial.state = after
        self._counts[before] -= 1
        self._counts[after] += 1

    def check(self) -> None:
        """Raise AssertionError where the books do not balance; for tests and the simulator."""
        active = {name for name, trial in self.trials.items() if trial.state.active}
        facts = {
            "active": active == set(self._active),
            "permits": self._permits.taken == len(active) >= 0,
            "by_model": self._permits.by_model
            == Counter(t.spec.model for n, t in self.trials.items() if n in active and t.spec.model),
            "counts": self._counts.total() == len(self.trials),
            "queued": set(self._lanes.names())
            == {name for name, trial in self.trials.items() if trial.state is TrialState.QUEUED},
            "waiting": {name for _, _, name in self._due}
            == {name for name, trial in self.trials.items() if trial.state is TrialState.WAITING},
        }
        wrong = [name for name, holds in facts.items() if not holds]
        if wrong:
            raise AssertionError(f"the experiment's books do not balance: {', '.join(wrong)}")


def _shows_health(resource: str, guilty: str | None, failure: Failure | None) -> bool:
    """Whether an attempt that ended so has shown that the resource works; not if it never got that far."""
    if failure is None or failure.domain not in {Domain.INFRA, Domain.USER}:
        return True
    return resource == DRIVER and guilty is not None
