"""Whole runs with faults at random: whatever happens, the invariants of an experiment hold.

Every trial ends at most once, an infrastructure failure is never a score, no sandbox outlives its attempt, no
more run than may, every attempt is on record with its number, and what is on disk is what the runner knew.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cloche.core.errors import Domain, EnvironmentUnusable, ImageError, InfraError, SandboxLost
from cloche.core.outcome import TrialOutcome
from cloche.core.retry import RetryPolicy
from cloche.core.schedule import Stop
from cloche.core.verdict import exit_status
from cloche.experiment.attempt import Bench
from cloche.experiment.plan import make_plan
from cloche.experiment.record.attempt import when
from cloche.experiment.record.export import Job
from cloche.experiment.record.folder import JobFolder
from cloche.experiment.runner import Runner, Watch
from cloche.experiment.secrets import Scrubber
from cloche.sandbox.spec import PreparedImage, SandboxSpec
from cloche.tasks import Task, load_task

IMAGE = PreparedImage(name="fake:1", digest="sha256:" + "1" * 64, layers=())
CREATE_FAULTS: list[Exception] = [
    InfraError("no room", code="infra/capacity"),
    SandboxLost("gone"),
    OSError(24, "Too many open files"),
    EnvironmentUnusable("no overlay"),
    RuntimeError("nobody knows"),
]
RUN_FAULTS: list[Exception] = [
    SandboxLost("gone"),
    ConnectionResetError("reset"),
    ValueError("odd"),
    TimeoutError(),
]
REWARDS = ["1", "0", "0.5", "nan", "", "words"]


class World:
    """A fake machine whose faults come from one seed."""

    def __init__(self, driver: Any, seed: int) -> None:
        self.chance = random.Random(seed)
        self.driver = driver
        driver.refuse = self._create
        driver.during_run = self._run

    def _create(self, _number: int, _spec: SandboxSpec) -> None:
        self.driver.reward = self.chance.choice(REWARDS)
        if self.chance.random() < 0.2:
            raise self.chance.choice(CREATE_FAULTS)

    async def _run(self, _sandbox: Any) -> None:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        if self.chance.random() < 0.2:
            raise self.chance.choice(RUN_FAULTS)

    async def prepare(self, _task: Task, _timeout_s: float) -> PreparedImage:
        await asyncio.sleep(0)
        if self.chance.random() < 0.1:
            raise ImageError("building Dockerfile failed")
        return IMAGE


async def _stop_at_random(world: World, runner: Runner, running: asyncio.Task[None]) -> None:
    """Perhaps press Ctrl-C, perhaps more than once, after some turns of the loop."""
    for stop in (Stop.DRAINING, Stop.CANCELLING):
        if world.chance.random() < 0.5:
            return
        for _ in range(world.chance.randrange(400)):
            if running.done():
                return
            await asyncio.sleep(0)
        runner.halt(stop)


def _check(trials: list[TrialOutcome], limit: int, driver: Any, retries: int, runs: int) -> None:
    assert driver.alive == {}
    assert driver.most_alive <= limit
    made = {spec.id: spec for spec in driver.made}
    assert len(made) == len(driver.made)
    for trial in trials:
        numbers = [attempt.number for attempt in trial.attempts]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) <= (retries + 1) * runs
        for attempt in trial.attempts:
            assert (
                (attempt.rewards is None) or attempt.failure is None or attempt.failure.domain is Domain.AGENT
            )
            assert attempt.graded or attempt.failure is not None, "without a verdict there is a reason"
            if attempt.sandbox_id in made:
                labels = made[attempt.sandbox_id].labels
                assert (labels["trial"], labels["attempt"]) == (trial.name, str(attempt.number))
        assert not any(attempt.graded for attempt in trial.attempts[:-1]), "a verdict is never run again"


@pytest.mark.parametrize("seed", range(40))
async def test_invariants(seed: int, tmp_path: Path, make_task: Any, fake_driver: Any) -> None:
    world = World(fake_driver, seed)
    tasks = [load_task(make_task(name, **{"instruction.md": name})) for name in ("a", "b", "c")]
    retries, limit = world.chance.randrange(3), world.chance.randint(1, 4)
    plan = make_plan(
        tasks,
        ["nop", "oracle"],
        [],
        repeats=2,
        concurrency=limit,
        retry=RetryPolicy(retries=retries, first_wait_s=0.001),
        environ={},
    )
    folder = JobFolder(tmp_path / "out")
    record = folder.open(plan, when(0))
    bench = Bench(
        driver=fake_driver,
        job=Job(id=UUID(int=seed), folder=folder.path, plan=plan),
        scrubber=Scrubber({}),
        environ={},
    )
    for run in (1, 2):
        before = {trial.name: trial for trial in folder.outcomes(record)}
        told: list[TrialOutcome] = []
        runner = Runner(bench, world.prepare, before, Watch(trial_done=told.append))
        running = asyncio.create_task(runner.run())
        if run == 1:
            await _stop_at_random(world, runner, running)
        async with asyncio.timeout(60):
            await running
        after = folder.outcomes(record)
        _check(after, limit, fake_driver, retries, run)
        assert max(Counter(trial.name for trial in told).values(), default=1) == 1
        assert not {trial.name for trial in told} & {name for name, old in before.items() if old.graded}
        for trial in after:
            known = runner.outcome(trial.name)
            if known is not None:
                assert [a.number for a in known.attempts] == [a.number for a in trial.attempts]
                assert (known.graded, known.solved) == (trial.graded, trial.solved)
        if runner.stop is Stop.RUNNING:
            assert all(trial.attempts for trial in after)
            assert exit_status(after) in {0, 3, 5}
        else:
            assert exit_status(after, runner.stop) in {0, 130}
