"""What the runner starts, when, and what it makes of ends: over a driver whose sandboxes do nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cloche.core.errors import Domain, EnvironmentUnusable, ImageError, InfraError, InvalidInput, SandboxLost
from cloche.core.failures import Failure
from cloche.core.outcome import TrialOutcome
from cloche.core.retry import RetryPolicy
from cloche.core.schedule import Stop
from cloche.experiment.attempt import HEARTBEAT_S, LEASE_SLACK_S, Bench
from cloche.experiment.plan import Plan, make_plan
from cloche.experiment.record.export import Job
from cloche.experiment.record.trial import TrialFolder
from cloche.experiment.runner import Runner, Watch
from cloche.experiment.secrets import Scrubber
from cloche.report.progress import Progress
from cloche.sandbox.spec import NetworkMode, PreparedImage, SandboxSpec
from cloche.tasks import Task, load_task

MakeTask = Callable[..., Path]
IMAGE = PreparedImage(name="fake:1", digest="sha256:" + "1" * 64, layers=())
AT_ONCE = RetryPolicy(retries=1, first_wait_s=0.0)


class Case:
    """One run over the fake driver, with what it was told."""

    def __init__(self, folder: Path, driver: Any, plan: Plan) -> None:
        self.folder = folder
        self.driver = driver
        self.plan = plan
        self.done: list[TrialOutcome] = []
        self.again: list[tuple[str, Failure, float]] = []
        self.troubles: list[Exception] = []
        self.prepared: list[str] = []
        self.tried_again = asyncio.Event()
        self.most_running = 0
        job = Job(id=UUID(int=1), folder=folder, plan=plan)
        folder.mkdir()
        self.bench = Bench(driver=driver, job=job, scrubber=Scrubber({}), environ={})
        self.runner = self.make()

    def make(self, outcomes: dict[str, TrialOutcome] | None = None) -> Runner:
        known = {trial.name: self._fresh(trial) for trial in self.plan.trials} | (outcomes or {})
        watch = Watch(
            trial_done=self.done.append,
            attempt_failed=self._again,
            trouble=self.troubles.append,
            changed=self._changed,
        )
        return Runner(self.bench, self.prepare, known, watch)

    @staticmethod
    def _fresh(trial: Any) -> TrialOutcome:
        return TrialOutcome(
            name=trial.name,
            task=trial.label,
            agent=trial.agent.name,
            model=trial.model_name,
            repeat=trial.repeat,
            refusal=trial.refusal,
        )

    async def prepare(self, task: Task, _timeout_s: float) -> PreparedImage:
        self.prepared.append(task.name)
        await asyncio.sleep(0)
        return IMAGE

    def _again(self, trial: TrialOutcome, failure: Failure, wait_s: float) -> None:
        self.again.append((trial.name, failure, wait_s))
        self.tried_again.set()

    def _changed(self, runner: Runner) -> None:
        self.most_running = max(self.most_running, runner.running)

    async def run(self) -> None:
        async with asyncio.timeout(60):
            await self.runner.run()
        assert self.driver.alive == {}, "a sandbox outlived its attempt"


@pytest.fixture
def case(tmp_path: Path, task: Task, fake_driver: Any) -> Callable[..., Case]:
    """Return a function that makes a run of one task, or of those given."""

    def make(*tasks: Task, agents: tuple[str, ...] = ("nop",), **more: Any) -> Case:
        plan = make_plan(tasks or (task,), agents, [], **{"retry": AT_ONCE, "concurrency": 2, **more})
        return Case(tmp_path / "out", fake_driver, plan)

    return make


async def test_each_trial_once_each_image_once_and_never_more_than_the_limit(
    case: Callable[..., Case], make_task: MakeTask
) -> None:
    tasks = [load_task(make_task(name, **{"instruction.md": name})) for name in ("a", "b", "c")]
    run = case(*tasks, agents=("nop", "oracle"), repeats=4, concurrency=3)
    await run.run()
    assert len(run.done) == 24
    assert {trial.name for trial in run.done} == {trial.name for trial in run.plan.trials}
    assert [trial.failure for trial in run.done if not trial.solved] == []
    assert sorted(run.prepared) == ["a", "b", "c"]
    assert run.driver.most_alive == run.most_running == 3
    assert len({spec.id for spec in run.driver.made}) == 24


async def test_what_has_a_verdict_is_not_run_again(case: Callable[..., Case]) -> None:
    run = case(repeats=4)
    await run.run()
    first = {trial.name: trial for trial in run.done[:3]}
    run.done.clear()
    run.driver.made.clear()
    run.runner = run.make(first)
    await run.run()
    assert [trial.name for trial in run.done] == [
        trial.name for trial in run.plan.trials if trial.name not in first
    ]


async def test_a_sandbox_is_labelled_limited_and_leased_before_it_is_made(
    case: Callable[..., Case], task: Task
) -> None:
    run = case()
    await run.run()
    (spec,) = run.driver.made
    trial = run.plan.trials[0]
    assert spec.labels == {
        "experiment": str(UUID(int=1)),
        "trial": trial.name,
        "attempt": "1",
        "task": "sample",
        "agent": "nop",
    }
    assert spec.resources.memory_bytes == 64 << 20
    assert spec.network.mode is NetworkMode.NONE
    phases_s = task.environment.build_timeout_s + 360 + 30 + 20
    assert spec.lease.ttl_s == phases_s + LEASE_SLACK_S
    assert spec.lease.heartbeat_s == HEARTBEAT_S


async def test_without_a_limit_of_its_own_a_task_has_two_gibibytes(
    case: Callable[..., Case], make_task: MakeTask
) -> None:
    run = case(load_task(make_task(toml='[environment]\ndocker_image = "fake:1"\n')))
    await run.run()
    assert run.driver.made[0].resources.memory_bytes == 2 << 30
    assert run.driver.made[0].lease.ttl_s is None, "an agent without a limit has a lease without one"


def _first_fails(error: Exception) -> Callable[[int, SandboxSpec], None]:
    def refuse(number: int, _spec: SandboxSpec) -> None:
        if number == 1:
            raise error

    return refuse


async def test_an_infrastructure_failure_is_tried_again_in_a_fresh_sandbox_and_both_are_kept(
    case: Callable[..., Case],
) -> None:
    run = case()
    run.driver.refuse = _first_fails(InfraError("no room", code="infra/capacity"))
    await run.run()
    (trial,) = run.done
    assert [attempt.number for attempt in trial.attempts] == [1, 2]
    assert trial.solved
    first, second = run.driver.made
    assert first.id != second.id
    assert (first.labels["attempt"], second.labels["attempt"]) == ("1", "2")
    assert [(name, failure.code) for name, failure, _ in run.again] == [(trial.name, "infra/capacity")]
    kept = TrialFolder(run.folder / trial.name).outcomes()
    assert [attempt.failure.code if attempt.failure else None for attempt in kept] == ["infra/capacity", None]


async def test_what_no_sandbox_can_be_asked_for_is_the_users_and_not_tried_again(
    case: Callable[..., Case],
) -> None:
    run = case()
    run.driver.refuse = _first_fails(InvalidInput("a memory limit of 1 byte"))
    await run.run()
    (trial,) = run.done
    assert len(trial.attempts) == 1
    assert trial.failure is not None
    assert (trial.failure.code, trial.failure.domain) == ("plan/refused", Domain.USER)
    assert trial.failure.message == "a memory limit of 1 byte"
    assert run.again == []


async def test_attempts_end(case: Callable[..., Case]) -> None:
    run = case(retry=RetryPolicy(retries=2, first_wait_s=0.0))

    def refuse(_number: int, _spec: SandboxSpec) -> None:
        raise SandboxLost("gone")

    run.driver.refuse = refuse
    await run.run()
    (trial,) = run.done
    assert len(trial.attempts) == 3
    assert not trial.graded
    assert trial.failure is not None
    assert trial.failure.code == "infra/sandbox_lost"


async def test_an_error_that_nobody_knows_is_no_score(case: Callable[..., Case]) -> None:
    run = case(retry=RetryPolicy(retries=0))

    async def broken(_sandbox: Any) -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError("in the verifier's run")

    run.driver.during_run = broken
    await run.run()
    assert not run.done[0].graded
    assert run.done[0].failure is not None
    assert run.done[0].failure.code == "infra/unknown"
    assert "ZeroDivisionError" in (run.folder / run.done[0].name / "exception.txt").read_text()


async def test_a_trial_that_waits_leaves_its_place_to_others(case: Callable[..., Case]) -> None:
    run = case(repeats=3, concurrency=1, retry=RetryPolicy(retries=1, first_wait_s=0.2))
    run.driver.refuse = _first_fails(InfraError("no room", code="infra/capacity"))
    await run.run()
    waited, *others = [spec.labels["trial"] for spec in run.driver.made]
    assert others == [*[trial.name for trial in run.plan.trials if trial.name != waited], waited]


async def test_a_task_whose_image_fails_is_said_once_and_the_others_run(
    case: Callable[..., Case], make_task: MakeTask
) -> None:
    tasks = [load_task(make_task(name, **{"instruction.md": name})) for name in ("good", "bad")]
    run = case(*tasks, repeats=3)

    async def prepare(task: Task, _timeout_s: float) -> PreparedImage:
        await asyncio.sleep(0)
        if task.name == "bad":
            raise ImageError("building Dockerfile failed\n  step 2: no such file", hint="look at it")
        return IMAGE

    run.prepare = prepare  # type: ignore[method-assign]
    run.runner = run.make()
    await run.run()
    assert [str(error).splitlines()[0] for error in run.troubles] == ["building Dockerfile failed"]
    bad = [trial for trial in run.done if trial.task == "bad"]
    assert len(bad) == 3
    assert all(trial.failure and trial.failure.code == "infra/image" for trial in bad)
    assert all(len(trial.attempts) == 1 and not trial.attempts[0].sandbox_id for trial in bad)
    assert sum(trial.solved for trial in run.done) == 3
    assert (run.folder / bad[0].name / "result.json").is_file()


async def test_a_machine_that_cannot_is_not_asked_again(case: Callable[..., Case]) -> None:
    run = case(retry=RetryPolicy(retries=5, first_wait_s=0.0))

    def refuse(_number: int, _spec: SandboxSpec) -> None:
        raise EnvironmentUnusable("no user namespaces")

    run.driver.refuse = refuse
    await run.run()
    assert len(run.done[0].attempts) == 1
    assert run.done[0].failure is not None
    assert run.done[0].failure.code == "doctor/unusable"


async def test_a_refused_trial_has_a_folder_with_the_reason(
    case: Callable[..., Case], make_task: MakeTask
) -> None:
    gpu = load_task(make_task("gpu", toml='[environment]\ndocker_image = "fake:1"\ngpus = 2\n'))
    run = case(gpu)
    await run.run()
    (trial,) = run.plan.trials
    assert run.driver.made == []
    names = {path.name for path in (run.folder / trial.name).iterdir()}
    assert names == {"config.json", "lock.json", "result.json", "exception.txt"}
    assert "[plan/gpu]" in (run.folder / trial.name / "exception.txt").read_text()


class Gate:
    """Lets the test decide when commands in sandboxes go on."""

    def __init__(self, case: Case) -> None:
        self.open = asyncio.Event()
        self._places = asyncio.Semaphore(0)
        self._wanted = case.plan.concurrency
        case.driver.during_run = self

    async def __call__(self, _sandbox: Any) -> None:
        self._places.release()
        await self.open.wait()

    async def full(self) -> None:
        """Wait until as many commands run as trials may."""
        async with asyncio.timeout(60):
            for _ in range(self._wanted):
                await self._places.acquire()


async def test_draining_lets_what_runs_finish_and_starts_nothing(case: Callable[..., Case]) -> None:
    run = case(repeats=6)
    gate = Gate(run)
    running = asyncio.create_task(run.run())
    await gate.full()
    run.runner.halt(Stop.DRAINING)
    gate.open.set()
    await running
    assert len(run.done) == 2
    assert all(trial.solved for trial in run.done)
    assert len(run.driver.made) == 2


async def test_cancelling_ends_what_runs_and_deletes_its_sandboxes(case: Callable[..., Case]) -> None:
    run = case(repeats=6)
    gate = Gate(run)
    running = asyncio.create_task(run.run())
    await gate.full()
    run.runner.halt(Stop.CANCELLING)
    await running
    assert run.done == []
    assert len(run.driver.made) == 2
    for spec in run.driver.made:
        (attempt,) = TrialFolder(run.folder / spec.labels["trial"]).outcomes()
        assert attempt.failure is not None
        assert attempt.failure.code == "user/interrupted"
        outcome = run.runner.outcome(spec.labels["trial"])
        assert outcome is not None
        assert outcome.attempts == (attempt,) or len(outcome.attempts) == 1


async def test_a_retry_is_not_started_once_the_run_drains(case: Callable[..., Case]) -> None:
    run = case(retry=RetryPolicy(retries=1, first_wait_s=30.0))
    run.driver.refuse = _first_fails(InfraError("no room", code="infra/capacity"))
    running = asyncio.create_task(run.run())
    async with asyncio.timeout(60):
        await run.tried_again.wait()
    run.runner.halt(Stop.DRAINING)
    await running
    assert len(run.driver.made) == 1


async def test_stopping_while_images_are_made(case: Callable[..., Case]) -> None:
    run = case(repeats=3)

    async def prepare(_task: Task, _timeout_s: float) -> PreparedImage:
        await asyncio.Event().wait()
        raise AssertionError

    run.prepare = prepare  # type: ignore[method-assign]
    run.runner = run.make()
    running = asyncio.create_task(run.run())
    await asyncio.sleep(0.02)
    run.runner.halt(Stop.DRAINING)
    await running
    assert run.driver.made == []


async def test_a_stop_never_goes_back(case: Callable[..., Case]) -> None:
    run = case()
    run.runner.halt(Stop.CANCELLING)
    run.runner.halt(Stop.DRAINING)
    assert run.runner.stop is Stop.CANCELLING
    await run.run()
    assert run.driver.made == []


async def test_a_sandbox_that_cannot_be_deleted_is_on_record(case: Callable[..., Case]) -> None:
    run = case()
    run.driver.undeletable = True
    async with asyncio.timeout(60):
        await run.runner.run()
    run.driver.alive.clear()
    (trial,) = run.done
    assert trial.solved
    record = TrialFolder(run.folder / trial.name).read_attempt()
    assert record is not None
    assert record.sandbox_deleted is False
    assert "could not be deleted" in (run.folder / trial.name / "trial.log").read_text()


async def test_cancelled_from_outside_it_cleans_up_first(case: Callable[..., Case]) -> None:
    run = case(repeats=4)
    gate = Gate(run)
    running = asyncio.create_task(run.run())
    await gate.full()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert run.driver.alive == {}


@pytest.mark.parametrize("fails", [False, True])
async def test_no_trial_is_counted_as_done_and_as_running(case: Callable[..., Case], fails: bool) -> None:
    run = case(repeats=4, concurrency=4)
    if fails:
        run.driver.refuse = _first_fails(InfraError("no room", code="infra/capacity"))
    progress, queued = Progress(total=4), []

    def changed(runner: Runner) -> None:
        progress.running = runner.running
        queued.append(progress.queued)

    def done(trial: TrialOutcome) -> None:
        progress.add(trial)
        queued.append(progress.queued)

    run.runner = Runner(
        run.bench,
        run.prepare,
        {trial.name: run._fresh(trial) for trial in run.plan.trials},
        Watch(trial_done=done, changed=changed),
    )
    await run.run()
    assert progress.done == 4
    assert min(queued) >= 0
    assert queued[-1] == 0
