"""The shell of ``cloche.core.experiment``: carries out what the core asks, and tells it what came of it.

One task per running attempt, all of one group. A signal only changes how far the run is being stopped. Must
never decide anything itself, and never return while an attempt still has a sandbox.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from cloche.core.errors import ClocheError, UsageError
from cloche.core.experiment import instructions as do
from cloche.core.experiment.events import (
    Ended,
    Event,
    Halted,
    Passed,
    Planned,
    Reached,
    Ready,
    TrialSpec,
    Unready,
)
from cloche.core.experiment.machine import Experiment
from cloche.core.experiment.states import TrialState
from cloche.core.failures import Failure, classify, failure, first_cause
from cloche.core.outcome import AttemptOutcome, TrialOutcome
from cloche.core.schedule import Stop
from cloche.experiment.attempt import INTERRUPTED, Attempt
from cloche.experiment.bench import Bench
from cloche.experiment.images import Prepare
from cloche.experiment.limits import timeouts
from cloche.experiment.plan import PlannedTrial
from cloche.experiment.record.trial import TrialFolder
from cloche.experiment.shield import thread_to_the_end, to_the_end
from cloche.experiment.stillborn import write_refused, write_stillborn
from cloche.sandbox.spec import PreparedImage
from cloche.tasks.model import Task

_STATES = {
    "agent_setup": TrialState.SETUP,
    "agent_execution": TrialState.RUNNING,
    "collection": TrialState.COLLECTING,
    "verifier": TrialState.VERIFYING,
}


@dataclass(slots=True, kw_only=True)
class State:
    """One trial on its way: its attempts so far, and what it needs."""

    plan: PlannedTrial
    outcome: TrialOutcome
    image: PreparedImage | None = None
    verifier_images: Mapping[str, PreparedImage] = field(default_factory=dict)
    service_images: Mapping[str, PreparedImage] = field(default_factory=dict)

    @property
    def attempts(self) -> int:
        """The number of the last attempt there was; 0 for none."""
        return self.outcome.attempts[-1].number if self.outcome.attempts else 0

    @property
    def spec(self) -> TrialSpec:
        """What the core must know of it."""
        return TrialSpec(name=self.plan.name, agent=self.plan.agent.name, model=self.plan.model_name)

    def add(self, attempt: AttemptOutcome) -> None:
        """Note one more attempt."""
        self.outcome = replace(self.outcome, attempts=(*self.outcome.attempts, attempt))


@dataclass(slots=True, kw_only=True)
class Watch:
    """What a run tells while it goes on; every call returns at once."""

    trial_done: Callable[[TrialOutcome], None] = lambda _trial: None
    attempt_failed: Callable[[TrialOutcome, Failure, float], None] = lambda _trial, _failure, _wait_s: None
    trouble: Callable[[ClocheError], None] = lambda _error: None
    changed: Callable[[Runner], None] = lambda _runner: None
    said: Callable[[str], None] = lambda _line: None


class Runner:
    """Runs what has no verdict. ``outcomes`` holds what each trial has come to before this run."""

    def __init__(
        self,
        bench: Bench,
        prepare: Prepare,
        outcomes: dict[str, TrialOutcome],
        watch: Watch | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` gives seconds for waits."""
        plan = bench.job.plan
        self._bench = bench
        self._prepare = prepare
        self._watch = watch or Watch()
        self._clock = clock
        self._core = Experiment(plan.policy)
        self._states = {
            trial.name: State(plan=trial, outcome=outcomes[trial.name])
            for trial in plan.trials
            if trial.problem is None and not outcomes[trial.name].graded
        }
        self._wake = asyncio.Event()
        self._preparing: set[asyncio.Task[None]] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        for state in self._states.values():
            self._tell(Planned(at_s=clock(), trial=state.spec, attempts=state.attempts))

    # --- what can be asked and said from outside ---

    @property
    def stop(self) -> Stop:
        """How far the run is being stopped."""
        return self._core.stop

    @property
    def exhausted(self) -> Failure | None:
        """Which budget is used up, if one is."""
        return self._core.exhausted

    @property
    def running(self) -> int:
        """How many trials are running."""
        return self._core.active

    @property
    def waiting(self) -> int:
        """How many trials wait for another attempt."""
        return self._core.count(TrialState.WAITING)

    @property
    def held(self) -> Mapping[str, Failure]:
        """What nothing is started on at the moment, because it failed across trials."""
        return self._core.held()

    @property
    def preparing(self) -> int:
        """How many tasks wait for their image."""
        return len(self._preparing)

    def halt(self, stop: Stop) -> None:
        """Stop the run so far; it never goes back."""
        if stop <= self._core.stop:
            return
        self._tell(Halted(at_s=self._clock(), stop=stop))
        self._stop_preparing()
        self._wake.set()

    def outcome(self, name: str) -> TrialOutcome | None:
        """Return what a trial of this run has come to so far."""
        state = self._states.get(name)
        return state.outcome if state else None

    # --- the run ---

    async def run(self) -> None:
        """Run until nothing is left to start and nothing runs.

        Raises RecordError when the record cannot be written; everything is ended before.
        """
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for trial in self._bench.job.plan.refused:
                    await thread_to_the_end(write_refused, self._bench, trial)
                self._start_preparing(group)
                while not (self._core.over and not self._preparing):
                    self._tell(Passed(at_s=self._clock()))
                    self._wake.clear()
                    self._watch.changed(self)
                    if not (self._core.over and not self._preparing):
                        await self._something_happens()
        except BaseExceptionGroup as errors:
            raise first_cause(errors) from errors

    async def _something_happens(self) -> None:
        due_s = self._core.next_due_s()
        try:
            async with asyncio.timeout(None if due_s is None else max(0.0, due_s - self._clock())):
                await self._wake.wait()
        except TimeoutError:
            return  # something is due

    # --- the core's orders ---

    def _tell(self, event: Event) -> None:
        for instruction in self._core.handle(event):
            self._carry_out(instruction)
        self._wake.set()

    def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.Start(name=name, number=number):
                self._start(name, number)
            case do.Cancel(name=name):
                self._running[name].cancel()
            case do.TryAgain(name=name, failure=found, wait_s=wait_s):
                self._watch.attempt_failed(self._states[name].outcome, found, wait_s)
            case do.Finish(name=name, unrun=None):
                self._finish(self._states[name])
            case do.Finish(name=name, unrun=found) if found is not None:
                self._go_without(name, found)
            case do.Hold(resource=resource, until_s=until_s, failure=found):
                wait_s = max(0.0, until_s - self._clock())
                self._watch.said(f"{resource}: {found.message} [{found.code}]; held for {wait_s:.0f} s")
            case do.Release(resource=resource):
                self._watch.said(f"{resource}: works again")
            case do.Exhausted(failure=found):
                self._stop_preparing()
                self._watch.trouble(BudgetSpent(found.message, code=found.code))

    def _start(self, name: str, number: int) -> None:
        if self._group is None:
            raise AssertionError(f"{name} was started before the run")
        task = self._group.create_task(self._one(self._states[name], number))
        self._running[name] = task
        task.add_done_callback(partial(self._over, name))

    def _over(self, name: str, _task: asyncio.Task[None]) -> None:
        del self._running[name]

    def _finish(self, state: State) -> None:
        self._watch.changed(self)
        found = state.outcome.failure
        if found is None or found.code != INTERRUPTED:
            self._watch.trial_done(state.outcome)

    def _stop_preparing(self) -> None:
        for task in self._preparing:
            task.cancel()

    # --- images ---

    def _start_preparing(self, group: asyncio.TaskGroup) -> None:
        by_task: dict[str, list[State]] = {}
        for state in self._states.values():
            by_task.setdefault(state.plan.digest, []).append(state)
        for states in by_task.values():
            task = states[0].plan.task
            if task is None:
                continue
            job = group.create_task(self._ready(task, states))
            self._preparing.add(job)
            job.add_done_callback(self._prepared)
        if self._core.stop is not Stop.RUNNING:
            self._stop_preparing()

    def _prepared(self, task: asyncio.Task[None]) -> None:
        self._preparing.discard(task)
        self._wake.set()

    async def _ready(self, task: Task, states: list[State]) -> None:
        """Prepare a task's image once, then have its trials queued, or fail them all with the reason."""
        limit_s = timeouts(task, self._bench.job.plan.limits).start_s
        names = tuple(state.plan.name for state in states)
        try:
            image = await self._prepare(task, limit_s)
            verifier_images = await self._verifier_images(task, limit_s)
            service_images = {
                service.name: await self._prepare(replace(task, environment=service.environment), limit_s)
                for service in task.environment.services
            }
        except Exception as error:  # noqa: BLE001  # boundary: image
            if isinstance(error, ClocheError):
                self._watch.trouble(error)
            reason = classify(error)
            await to_the_end(self._record_unrun(states, reason))
            self._tell(Unready(at_s=self._clock(), names=names, failure=reason))
            return
        for state in states:
            state.image = image
            state.verifier_images = verifier_images
            state.service_images = service_images
        self._tell(Ready(at_s=self._clock(), names=names))

    async def _verifier_images(self, task: Task, limit_s: float) -> dict[str, PreparedImage]:
        """Prepare the images of verifiers that have sandboxes of their own, by the name of the step."""
        images: dict[str, PreparedImage] = {}
        for stage in task.stages:
            environment = stage.verifier.environment
            if environment is not None:
                images[stage.name] = await self._prepare(replace(task, environment=environment), limit_s)
        return images

    # --- trials that end without an attempt ---

    async def _record_unrun(self, states: list[State], reason: Failure) -> None:
        for state in states:
            attempt = await asyncio.to_thread(
                write_stillborn, self._bench, state.plan, state.attempts + 1, reason
            )
            state.add(attempt)

    def _go_without(self, name: str, reason: Failure) -> None:
        """Record a trial that was given up, if that is not done yet, and tell its end."""
        state = self._states[name]
        if state.outcome.failure is reason:
            self._finish(state)
        elif self._group is not None:
            self._group.create_task(self._give_up(state, reason))

    async def _give_up(self, state: State, reason: Failure) -> None:
        await to_the_end(self._record_unrun([state], reason))
        self._finish(state)

    # --- attempts ---

    async def _one(self, state: State, number: int) -> None:
        """Make one attempt at a trial, and tell the core how it ended."""
        plan, task, image = state.plan, state.plan.task, state.image
        if task is None or image is None:
            raise AssertionError(f"{plan.name} was started before it was ready")
        folder = TrialFolder(self._bench.job.folder / plan.name)
        ended = Ended(at_s=0.0, name=plan.name, number=number, failure=failure(INTERRUPTED))
        try:
            await thread_to_the_end(_make_room, folder)
            attempt = Attempt(
                self._bench,
                plan,
                task,
                image,
                number,
                verifier_images=state.verifier_images,
                service_images=state.service_images,
                on_phase=partial(self._reached, plan.name, number),
            )
            try:
                await attempt.run()
            finally:
                if attempt.outcome is not None:
                    state.add(attempt.outcome)
                    ended = _ended(plan.name, attempt.outcome)
        except asyncio.CancelledError:
            if self._core.stop < Stop.CANCELLING:
                raise  # it was not the core that asked for it: the whole run goes down
            asyncio.current_task().uncancel()  # type: ignore[union-attr]  # this is a task
        self._tell(replace(ended, at_s=self._clock()))

    def _reached(self, name: str, number: int, phase: str) -> None:
        state = _STATES.get(phase)
        if state is not None:
            self._tell(Reached(at_s=self._clock(), name=name, number=number, state=state))


class BudgetSpent(UsageError):
    """A budget of the experiment is used up; nothing more is started."""

    code = "budget/money"
    exit_code = 4


def _ended(name: str, outcome: AttemptOutcome) -> Ended:
    return Ended(
        at_s=0.0,
        name=name,
        number=outcome.number,
        failure=outcome.failure,
        graded=outcome.graded,
        usage=outcome.usage,
    )


def _make_room(folder: TrialFolder) -> None:
    folder.clear_unfinished()
    folder.put_away()
