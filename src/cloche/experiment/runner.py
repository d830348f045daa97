"""The scheduler's shell: asks ``cloche.core.schedule`` what to start, starts it, and tells what came of it.

One task per running trial, all of one group. A signal only changes how far the run is being stopped. Must
never start more than the limit, and never return while an attempt still has a sandbox.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from cloche.core.errors import ClocheError
from cloche.core.failures import Failure, classify, first_cause
from cloche.core.outcome import AttemptOutcome, TrialOutcome
from cloche.core.retry import GiveUp, decide
from cloche.core.schedule import Queue, Stop
from cloche.experiment.attempt import Attempt
from cloche.experiment.bench import Bench
from cloche.experiment.images import Prepare
from cloche.experiment.limits import timeouts
from cloche.experiment.plan import PlannedTrial
from cloche.experiment.record.trial import TrialFolder
from cloche.experiment.shield import thread_to_the_end, to_the_end
from cloche.experiment.stillborn import write_refused, write_stillborn
from cloche.sandbox.spec import PreparedImage
from cloche.tasks.model import Task


@dataclass(slots=True, kw_only=True)
class State:
    """One trial on its way: its attempts so far, and how many of them this run has made."""

    plan: PlannedTrial
    outcome: TrialOutcome
    image: PreparedImage | None = None
    verifier_images: Mapping[str, PreparedImage] = field(default_factory=dict)
    made: int = 0

    @property
    def next_number(self) -> int:
        """The number of the attempt that comes next."""
        return self.outcome.attempts[-1].number + 1 if self.outcome.attempts else 1

    def add(self, attempt: AttemptOutcome) -> None:
        """Note one more attempt."""
        self.outcome = replace(self.outcome, attempts=(*self.outcome.attempts, attempt))
        self.made += 1


@dataclass(slots=True, kw_only=True)
class Watch:
    """What a run tells while it goes on; every call returns at once."""

    trial_done: Callable[[TrialOutcome], None] = lambda _trial: None
    attempt_failed: Callable[[TrialOutcome, Failure, float], None] = lambda _trial, _failure, _wait_s: None
    trouble: Callable[[ClocheError], None] = lambda _error: None
    changed: Callable[[Runner], None] = lambda _runner: None


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
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``clock`` gives seconds for waits, ``chance`` a number in 0..1 for spreading them."""
        plan = bench.job.plan
        self._bench = bench
        self._prepare = prepare
        self._watch = watch or Watch()
        self._clock = clock
        self._chance = chance
        self._queue = Queue(limit=plan.concurrency)
        self._states = {
            trial.name: State(plan=trial, outcome=outcomes[trial.name])
            for trial in plan.trials
            if trial.problem is None and not outcomes[trial.name].graded
        }
        self._wake = asyncio.Event()
        self._preparing: set[asyncio.Task[None]] = set()
        self._running: dict[str, asyncio.Task[None]] = {}

    # --- what can be asked and said from outside ---

    @property
    def stop(self) -> Stop:
        """How far the run is being stopped."""
        return self._queue.stop

    @property
    def running(self) -> int:
        """How many trials are running."""
        return len(self._queue.running)

    @property
    def waiting(self) -> int:
        """How many trials wait for another attempt."""
        return self._queue.waiting

    @property
    def preparing(self) -> int:
        """How many tasks wait for their image."""
        return len(self._preparing)

    def halt(self, stop: Stop) -> None:
        """Stop the run so far; it never goes back."""
        if stop <= self._queue.stop:
            return
        self._queue.stop = stop
        if stop >= Stop.DRAINING:
            for task in self._preparing:
                task.cancel()
        if stop >= Stop.CANCELLING:
            for running in self._running.values():
                running.cancel()
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
                for trial in self._bench.job.plan.refused:
                    await thread_to_the_end(write_refused, self._bench, trial)
                self._start_preparing(group)
                while not (self._queue.over and not self._preparing):
                    self._wake.clear()
                    self._start_due(group)
                    self._watch.changed(self)
                    await self._something_happens()
        except BaseExceptionGroup as errors:
            raise first_cause(errors) from errors

    async def _something_happens(self) -> None:
        due_s = self._queue.next_due_s()
        try:
            async with asyncio.timeout(None if due_s is None else max(0.0, due_s - self._clock())):
                await self._wake.wait()
        except TimeoutError:
            return  # a retry is due

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

    def _prepared(self, task: asyncio.Task[None]) -> None:
        self._preparing.discard(task)
        self._wake.set()

    async def _ready(self, task: Task, states: list[State]) -> None:
        """Prepare a task's image once, then queue its trials, or fail them all with the reason."""
        limit_s = timeouts(task, self._bench.job.plan.limits).start_s
        try:
            image = await self._prepare(task, limit_s)
            verifier_images = await self._verifier_images(task, limit_s)
        except Exception as error:  # noqa: BLE001  # boundary: image
            if isinstance(error, ClocheError):
                self._watch.trouble(error)
            await to_the_end(self._fail_before_start(states, classify(error)))
            return
        for state in states:
            state.image = image
            state.verifier_images = verifier_images
            self._queue.add(state.plan.name)
        self._wake.set()

    async def _verifier_images(self, task: Task, limit_s: float) -> dict[str, PreparedImage]:
        """Prepare the images of verifiers that have sandboxes of their own, by the name of the step."""
        images: dict[str, PreparedImage] = {}
        for stage in task.stages:
            environment = stage.verifier.environment
            if environment is not None:
                images[stage.name] = await self._prepare(replace(task, environment=environment), limit_s)
        return images

    async def _fail_before_start(self, states: list[State], reason: Failure) -> None:
        for state in states:
            number = state.next_number
            attempt = await asyncio.to_thread(write_stillborn, self._bench, state.plan, number, reason)
            state.add(attempt)
            self._watch.trial_done(state.outcome)

    def _start_due(self, group: asyncio.TaskGroup) -> None:
        for name in self._queue.take(self._clock()):
            task = group.create_task(self._one(self._states[name]))
            self._running[name] = task
            task.add_done_callback(partial(self._over, name))

    def _over(self, name: str, _task: asyncio.Task[None]) -> None:
        del self._running[name]
        if name in self._queue.running:
            self._queue.done(name)
        self._wake.set()

    async def _one(self, state: State) -> None:
        """Make one attempt at a trial, and decide what follows."""
        plan, task, image = state.plan, state.plan.task, state.image
        if task is None or image is None:
            raise AssertionError(f"{plan.name} was started before it was ready")
        folder = TrialFolder(self._bench.job.folder / plan.name)
        await thread_to_the_end(_make_room, folder)
        attempt = Attempt(
            self._bench, plan, task, image, state.next_number, verifier_images=state.verifier_images
        )
        try:
            outcome = await attempt.run()
        except asyncio.CancelledError:
            if attempt.outcome is not None:
                state.add(attempt.outcome)
            raise
        state.add(outcome)
        self._decide(state)

    def _decide(self, state: State) -> None:
        failure = state.outcome.failure
        if failure is None or state.outcome.graded:
            self._tell_done(state)
            return
        decision = decide(state.made, failure, self._bench.job.plan.retry, jitter=self._chance())
        if isinstance(decision, GiveUp) or self._queue.stop is not Stop.RUNNING:
            self._tell_done(state)
            return
        self._watch.attempt_failed(state.outcome, failure, decision.wait_s)
        self._queue.wait(state.plan.name, self._clock() + decision.wait_s)

    def _tell_done(self, state: State) -> None:
        """Tell that a trial is over, after it has ceased to run: at no time is it counted as both."""
        self._queue.done(state.plan.name)
        self._watch.changed(self)
        self._watch.trial_done(state.outcome)


def _make_room(folder: TrialFolder) -> None:
    folder.clear_unfinished()
    folder.put_away()
