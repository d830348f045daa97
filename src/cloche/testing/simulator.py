"""A seeded world for ``cloche.core.experiment``: a fake clock, driver and models, and faults of every kind.

``simulate(seed)`` drives a whole experiment through it and checks after every event what must always hold.
A failing seed is run again, with every event shown, by ``python -m cloche.testing.simulator SEED``. Must
never use the real clock, nor randomness that the seed does not determine.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from cloche.core.errors import Domain
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
from cloche.core.experiment.instructions import Cancel, Exhausted, Finish, Hold, Instruction, Release, Start
from cloche.core.experiment.machine import Experiment
from cloche.core.experiment.policy import Auto, BreakerRules, Budget, Policy
from cloche.core.experiment.states import TrialState
from cloche.core.failures import Failure, failure
from cloche.core.outcome import Usage
from cloche.core.retry import RetryPolicy
from cloche.core.schedule import Stop

PHASES = (
    TrialState.SETUP,
    TrialState.RUNNING,
    TrialState.COLLECTING,
    TrialState.VERIFYING,
)
MODELS = ("model-a", "model-b", None)
EVENTS_MAX = 200_000


class Fault(StrEnum):
    """What can be injected. A single one breaks an attempt; the others come over the whole world at once."""

    CREATE_REFUSED = "create_refused"
    CREATE_LOST = "create_lost"
    GUEST_DIES = "guest_dies"
    VERIFIER_HANGS = "verifier_hangs"
    MODEL_GARBAGE = "model_garbage"
    AGENT_FAILS = "agent_fails"
    HOST_RESTARTS = "host_restarts"
    STORM_429 = "storm_429"
    MODEL_DOWN = "model_down"
    DISK_FULL = "disk_full"
    INTERRUPTS = "interrupts"
    CLOCK_JUMPS = "clock_jumps"
    RUNNER_KILLED = "runner_killed"


SINGLE: dict[Fault, tuple[TrialState, str]] = {
    Fault.CREATE_REFUSED: (TrialState.STARTING, "infra/capacity"),
    Fault.CREATE_LOST: (TrialState.STARTING, "infra/transport"),
    Fault.GUEST_DIES: (TrialState.RUNNING, "infra/sandbox_lost"),
    Fault.VERIFIER_HANGS: (TrialState.VERIFYING, "verifier/timeout"),
    Fault.MODEL_GARBAGE: (TrialState.RUNNING, "infra/model_response"),
    Fault.AGENT_FAILS: (TrialState.RUNNING, "agent/timeout"),
}


class Broken(AssertionError):
    """Something that must always hold did not."""


@dataclass(frozen=True, slots=True)
class Attempted:
    """One line of the simulated record: an attempt that has ended."""

    name: str
    number: int
    failure: Failure | None
    graded: bool
    usage: Usage | None


@dataclass(slots=True)
class Report:
    """What a simulation came to."""

    seed: int
    attempts: list[Attempted]
    finished: Counter[str]
    planned: int
    events: int
    stop: Stop
    faults: Counter[str]
    end_s: float


@dataclass(slots=True)
class World:
    """Everything outside the core. ``sandboxes`` are alive; ``record`` survives the runner."""

    seed: int
    say: Callable[[str], None] = lambda _line: None
    now_s: float = 1000.0
    record: list[Attempted] = field(default_factory=list)
    finished: Counter[str] = field(default_factory=Counter)
    sandboxes: dict[str, tuple[str, int]] = field(default_factory=dict)
    spent_tokens: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    events: int = 0
    _queue: list[tuple[float, int, Event]] = field(default_factory=list)
    _tie: int = 0
    _until: dict[Fault, float] = field(default_factory=dict)
    _plans: dict[tuple[str, int], list[Event]] = field(default_factory=dict)
    chance: random.Random = field(init=False)
    core: Experiment = field(init=False)
    trials: list[TrialSpec] = field(init=False)
    rates: dict[Fault, float] = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311  # a seeded world
        self.trials = self._make_trials()
        self.rates = {fault: self.chance.choice((0.0, 0.02, 0.2, 0.6)) for fault in SINGLE}
        self.core = Experiment(self._policy())

    # ---- the set-up ----

    def _make_trials(self) -> list[TrialSpec]:
        count = self.chance.choice((1, 3, 12, 40))
        return [
            TrialSpec(
                name=f"t{index}",
                agent=self.chance.choice(("one", "two")),
                model=self.chance.choice(MODELS),
                exclusive=self.chance.random() < 0.05,
            )
            for index in range(count)
        ]

    def _policy(self) -> Policy:
        pick = self.chance.choice
        return Policy(
            concurrency=pick((1, 2, 7, 64)),
            per_model=pick(({}, {"model-a": 1}, {"model-a": 3, "model-b": 2})),
            per_agent=pick(({}, {"one": 2})),
            auto=pick((None, Auto(start=2, ceiling=16))),
            retry=RetryPolicy(retries=pick((0, 1, 5)), first_wait_s=pick((0.0, 1.0, 30.0)), max_wait_s=300.0),
            budget=pick((Budget(), Budget(tokens=2000), Budget(cost_usd=0.5), Budget(wall_s=500.0))),
            breaker=pick((BreakerRules(), BreakerRules(failures=2, trials=1, hold_s=5.0, probes=2))),
            start_interval_s=pick((0.0, 0.0, 0.5)),
            max_unverdicted=pick((None, None, 3)),
            seed=self.seed,
        )

    def _later(self, event: Event) -> Event:
        self._tie += 1
        heapq.heappush(self._queue, (event.at_s, self._tie, event))
        return event

    def plan(self) -> None:
        """Tell the core the trials, with what the record knows of them, and have their images prepared."""
        for spec in self.trials:
            attempts = [line for line in self.record if line.name == spec.name]
            done = bool(attempts) and attempts[-1].graded
            self.feed(Planned(at_s=self.now_s, trial=spec, attempts=len(attempts), done=done))
        rest = [spec.name for spec in self.trials if self.core.trials[spec.name].state is TrialState.PLANNED]
        cut = self.chance.randrange(len(rest) + 1)
        for names in (tuple(rest[:cut]), tuple(rest[cut:])):
            at_s = self.now_s + self.chance.uniform(0, 20)
            if names and self.chance.random() < 0.1:
                self._later(Unready(at_s=at_s, names=names, failure=failure("infra/image_not_found")))
            elif names:
                self._later(Ready(at_s=at_s, names=names))

    def strike(self) -> None:
        """Put the faults that come over the whole world somewhere into its future."""
        for fault in Fault:
            if fault in SINGLE or self.chance.random() > 0.25:
                continue
            at_s = self.now_s + self.chance.uniform(0, 200)
            self._until[fault] = at_s

    # ---- the course of things ----

    def run(self) -> Report:
        """Go on until nothing is left to happen."""
        self.plan()
        self.strike()
        while not (self.core.over and not self._queue):
            self._world_faults()
            due_s = self.core.next_due_s()
            if self._queue and (due_s is None or self._queue[0][0] <= due_s):
                at_s, _, event = heapq.heappop(self._queue)
                self.now_s = max(self.now_s, at_s)
                self._deliver(event)
            elif due_s is not None:
                self.now_s = max(self.now_s, due_s)
                self.feed(Passed(at_s=self.now_s))
            else:
                break
        return self._report()

    def _deliver(self, event: Event) -> None:
        """Hand on an event, unless what it tells of was cut off meanwhile."""
        if isinstance(event, Reached | Ended):
            plan = self._plans.get((event.name, event.number))
            if plan is None or event not in plan:
                return
            if isinstance(event, Ended):
                self._end(event)
        elif isinstance(event, Ready | Unready) and self.core.stop is not Stop.RUNNING:
            return  # the shell stops preparing when it drains
        self.feed(event)

    def feed(self, event: Event) -> None:
        """Give the core an event, carry out what it asks, and check what must always hold."""
        self.events += 1
        if self.events > EVENTS_MAX:
            raise Broken("it does not come to an end")
        self.say(f"{self.now_s:10.3f} {event}")
        for instruction in self.core.handle(event):
            self.say(f"           → {instruction}")
            self._carry_out(instruction)
        self._check()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Start(name=name, number=number):
                self._attempt(name, number)
            case Cancel(name=name, number=number):
                self._cut(name, number, "user/interrupted", self.chance.uniform(0, 2))
            case Finish(name=name, unrun=unrun):
                self.finished[name] += 1
                if unrun is not None:
                    number = sum(line.name == name for line in self.record) + 1
                    self.record.append(Attempted(name, number, unrun, graded=False, usage=None))
            case Hold() | Release() | Exhausted():
                pass

    def _attempt(self, name: str, number: int) -> None:
        """Lay out what will become of an attempt."""
        if any(line.name == name and line.number == number for line in self.record):
            raise Broken(f"attempt {number} of {name} is made twice")
        if (name, number) in self._plans:
            raise Broken(f"attempt {number} of {name} is already on")
        plan = self._plans[name, number] = []
        fault, at, wait_s = self._fate(name), TrialState.STARTING, 0.0
        spec = self.core.trials[name].spec
        if fault is None or SINGLE[fault][0] is not TrialState.STARTING or fault is Fault.CREATE_LOST:
            self.sandboxes[f"sb-{name}-{number}"] = (name, number)
        for phase in (TrialState.STARTING, *PHASES):
            at = phase
            if fault is not None and SINGLE[fault][0] is at:
                self.faults[fault] += 1
                break
            wait_s += self.chance.uniform(0, 30)
            if phase is not PHASES[-1]:
                state = PHASES[(TrialState.STARTING, *PHASES).index(phase)]
                reached = Reached(at_s=self.now_s + wait_s, name=name, number=number, state=state)
                plan.append(self._later(reached))
        code = SINGLE[fault][1] if fault else self._weather(spec)
        self._end_later(plan, name, number, code, wait_s + self.chance.uniform(0, 5))

    def _end_later(self, plan: list[Event], name: str, number: int, code: str | None, wait_s: float) -> None:
        found = failure(code) if code else None
        graded = found is None or found.domain is Domain.AGENT
        model = self.core.trials[name].spec.model
        tokens = self.chance.randrange(100) if model else 0
        usage = Usage(input_tokens=tokens, output_tokens=1, cost_usd=tokens / 1000) if model else None
        ended = Ended(
            at_s=self.now_s + wait_s, name=name, number=number, failure=found, graded=graded, usage=usage
        )
        plan.append(self._later(ended))

    def _fate(self, name: str) -> Fault | None:
        for fault, rate in self.rates.items():
            if fault is Fault.MODEL_GARBAGE and self.core.trials[name].spec.model is None:
                continue
            if self.chance.random() < rate:
                return fault
        return None

    def _weather(self, spec: TrialSpec) -> str | None:
        """Return the code of what the whole world suffers from now, as far as it meets this trial."""
        storms = {
            Fault.DISK_FULL: "infra/disk_full",
            Fault.STORM_429: "infra/model_rate_limit",
            Fault.MODEL_DOWN: "infra/model_unavailable",
        }
        for fault, code in storms.items():
            begins_s = self._until.get(fault)
            if begins_s is None or not begins_s <= self.now_s < begins_s + 120:
                continue
            if fault is Fault.DISK_FULL or spec.model == MODELS[0]:
                self.faults[fault] += 1
                return code
        return None

    def _end(self, event: Ended) -> None:
        """Nothing of an attempt is left, and it is on record, before the core is told."""
        del self._plans[event.name, event.number]
        self.sandboxes.pop(f"sb-{event.name}-{event.number}", None)
        self.record.append(Attempted(event.name, event.number, event.failure, event.graded, event.usage))
        if event.usage is not None:
            self.spent_tokens += (event.usage.input_tokens or 0) + (event.usage.output_tokens or 0)

    def _cut(self, name: str, number: int, code: str, wait_s: float) -> None:
        """Let an attempt end otherwise than it was laid out."""
        plan = self._plans[name, number]
        plan.clear()
        self._end_later(plan, name, number, code, wait_s)

    # ---- what comes over the whole world ----

    def _due_fault(self, fault: Fault) -> bool:
        at_s = self._until.get(fault)
        if at_s is None or self.now_s < at_s:
            return False
        del self._until[fault]
        self.faults[fault] += 1
        return True

    def _world_faults(self) -> None:
        if self._due_fault(Fault.HOST_RESTARTS):
            self.sandboxes.clear()
            for name, number in list(self._plans):
                self._cut(name, number, "infra/sandbox_lost", self.chance.uniform(0, 3))
        if self._due_fault(Fault.CLOCK_JUMPS):
            self.now_s += 3600.0
            self.feed(Passed(at_s=self.now_s))
            self.feed(Resized(at_s=self.now_s, concurrency=self.chance.choice((1, 9))))
        if self._due_fault(Fault.RUNNER_KILLED):
            self._restart()
        if self._due_fault(Fault.INTERRUPTS):
            self.feed(Halted(at_s=self.now_s, stop=Stop.DRAINING))
            if self.chance.random() < 0.5:
                self.feed(Halted(at_s=self.now_s, stop=Stop.CANCELLING))

    def _restart(self) -> None:
        """The runner dies, with its queue; the next one knows the record and what is alive, and no more."""
        for name, number in list(self._plans):
            self.record.append(
                Attempted(name, number, failure("infra/runner_lost"), graded=False, usage=None)
            )
        self._plans.clear()
        self._queue.clear()
        self.sandboxes.clear()  # what a killed runner has left is removed before anything is started
        self.finished.clear()
        self.core = Experiment(self.core.policy)
        self.plan()

    # ---- what must always hold ----

    def _check(self) -> None:
        self.core.check()
        if self.core.active > max(self.core.policy.concurrency, 9, 1):
            raise Broken(f"{self.core.active} attempts at once")
        for model, most in self.core.policy.per_model.items():
            running = sum(self.core.trials[name].spec.model == model for name, _ in self._plans)
            if running > most:
                raise Broken(f"{running} attempts ask {model} at once, {most} may")
        for sandbox, owner in self.sandboxes.items():
            if owner not in self._plans:
                raise Broken(f"{sandbox} has outlived its attempt")
        twice = [name for name, times in self.finished.items() if times > 1]
        if twice:
            raise Broken(f"{twice[0]} has ended twice")

    def _report(self) -> Report:
        for line in self.record:
            infra = line.failure is not None and line.failure.domain is not Domain.AGENT
            if line.graded and infra:
                raise Broken(f"{line.failure} of {line.name} is a score")
        numbers = Counter((line.name, line.number) for line in self.record)
        if numbers and max(numbers.values()) > 1:
            raise Broken("an attempt is on record twice")
        if self.sandboxes or self._plans:
            raise Broken(f"left behind: {sorted(self.sandboxes)} {sorted(self._plans)}")
        known = sum((line.usage.input_tokens or 0) + 1 for line in self.record if line.usage is not None)
        if known != self.spent_tokens:
            raise Broken(f"{self.spent_tokens} tokens were spent, {known} are on record")
        done = self.core.count(TrialState.DONE)
        if self.core.stop is Stop.RUNNING and done != len(self.trials):
            raise Broken(f"{len(self.trials) - done} trials never ended")
        return Report(
            seed=self.seed,
            attempts=self.record,
            finished=self.finished,
            planned=len(self.trials),
            events=self.events,
            stop=self.core.stop,
            faults=self.faults,
            end_s=self.now_s,
        )


def simulate(seed: int, say: Callable[[str], None] = lambda _line: None) -> Report:
    """Run the world of this seed. Raises AssertionError, with the command that shows it again."""
    try:
        return World(seed, say).run()
    except Exception as error:
        error.add_note(f"seed {seed}; see it again with: python -m cloche.testing.simulator {seed}")
        raise


def _lines(report: Report) -> Iterator[str]:
    yield f"seed {report.seed}: {report.planned} trials, {len(report.attempts)} attempts"
    yield f"stop {report.stop.name.lower()}, faults {dict(report.faults)}"


if __name__ == "__main__":
    for line in _lines(simulate(int(sys.argv[1]), print)):
        print(line)  # noqa: T201
