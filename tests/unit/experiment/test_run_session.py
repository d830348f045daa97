"""A run on a folder: survivors of an earlier one, what is known, what is counted, signals."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloche.core.errors import InfraError, InvalidInput
from cloche.core.outcome import TrialOutcome
from cloche.core.retry import RetryPolicy
from cloche.core.schedule import Stop
from cloche.experiment import session as session_module
from cloche.experiment import signals as signals_module
from cloche.experiment.plan import make_plan
from cloche.experiment.record.files import locked
from cloche.experiment.record.folder import JobFolder
from cloche.experiment.runner import Watch
from cloche.experiment.session import Ending, Session
from cloche.experiment.signals import Killed, RunFailed, run_under_signals
from cloche.sandbox.spec import PreparedImage, SandboxSpec
from cloche.tasks import Task
from cloche.tasks.model import TaskNetwork

IMAGE = PreparedImage(name="fake:1", digest="sha256:" + "1" * 64, layers=())


async def _prepare(_task: Task, _timeout_s: float) -> PreparedImage:
    await asyncio.sleep(0)
    return IMAGE


class Desk:
    """Makes sessions on one folder and keeps what they told."""

    def __init__(self, folder: Path, driver: Any, task: Task) -> None:
        self.folder = folder
        self.driver = driver
        self.task = task
        self.known: list[TrialOutcome] = []
        self.done: list[TrialOutcome] = []
        self.said: list[str] = []

    def session(self, repeats: int = 2, **more: Any) -> Session:
        plan = make_plan(
            [self.task],
            ["nop"],
            [],
            repeats=repeats,
            concurrency=2,
            retry=RetryPolicy(retries=0),
            environ={},
        )
        return Session(plan, self.folder, self.driver, more.get("prepare", _prepare), environ={})

    async def run(self, **more: Any) -> Ending:
        async with asyncio.timeout(60):
            return await self.session(**more).run(Watch(trial_done=self.done.append), self.known.append)

    async def under_signals(self, session: Session) -> Ending:
        async with asyncio.timeout(60):
            watch = Watch(trial_done=self.done.append)
            return await run_under_signals(session, watch, self.known.append, self.said.append)


@pytest.fixture
def desk(tmp_path: Path, fake_driver: Any, task: Task) -> Desk:
    return Desk(tmp_path / "out", fake_driver, task)


async def test_a_run_from_nothing(desk: Desk) -> None:
    ending = await desk.run()
    assert (ending.status, ending.sandboxes_left, ending.unusable) == (0, 0, None)
    assert [trial.solved for trial in ending.outcomes] == [True, True]
    result = json.loads((desk.folder / "job-result.json").read_text())
    assert (result["trials"], result["graded"], result["solved"], result["attempts"]) == (2, 2, 2, 2)
    assert result["solved_interval_95"][1] == 1.0
    assert result["without_verdict"] == {}
    assert result["columns"][0]["agent"] == "nop"
    job = json.loads((desk.folder / "result.json").read_text())
    assert job["finished_at"] is not None
    log = (desk.folder / "job.log").read_text().splitlines()
    assert "run: 2 trials, 2 without a verdict" in log[0]
    assert "over: 2/2 graded, 2 attempts, status 0" in log[1]


async def test_again_it_runs_nothing_and_tells_what_is_known(desk: Desk) -> None:
    await desk.run()
    desk.driver.made.clear()
    ending = await desk.run()
    assert ending.status == 0
    assert len(desk.known) == 2
    assert desk.driver.made == []


async def test_more_repeats_run_only_the_new_ones(desk: Desk) -> None:
    await desk.run()
    desk.driver.made.clear()
    ending = await desk.run(repeats=5)
    assert len(desk.driver.made) == 3
    assert len(ending.outcomes) == 5


async def test_survivors_of_this_experiment_are_deleted_and_no_others(desk: Desk) -> None:
    await desk.run()
    mine = str(JobFolder(desk.folder).read().id)
    for name, owner in (("sb-mine", mine), ("sb-other", "someone-else"), ("sb-hand", "")):
        labels = {"experiment": owner} if owner else {}
        desk.driver.alive[name] = SandboxSpec(id=name, labels=labels)
    ending = await desk.run()
    assert set(desk.driver.alive) == {"sb-other", "sb-hand"}
    assert ending.sandboxes_left == 0
    desk.driver.alive.clear()


async def test_sandboxes_left_are_counted_not_assumed(desk: Desk) -> None:
    await desk.run()
    desk.driver.undeletable = True
    ending = await desk.run(repeats=3)
    assert ending.sandboxes_left == 1
    assert json.loads((desk.folder / "job-result.json").read_text())["sandboxes_left"] == 1
    desk.driver.alive.clear()


async def test_what_cannot_be_counted_is_not_said_to_be_none(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "COUNT_TIMEOUT_S", 0.01)
    calls = 0
    listing = desk.driver.list

    async def stuck() -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            await asyncio.Event().wait()
        return await listing()

    monkeypatch.setattr(desk.driver, "list", stuck)
    assert (await desk.run()).sandboxes_left is None


async def test_a_folder_in_use_is_refused(desk: Desk) -> None:
    desk.folder.mkdir()
    with locked(desk.folder), pytest.raises(InvalidInput, match="another run"):
        await desk.run()
    assert list(desk.folder.iterdir()) == []


async def test_stopped_before_it_began(desk: Desk) -> None:
    session = desk.session()
    session.halt(Stop.CANCELLING)
    assert session.stop is Stop.CANCELLING
    ending = await session.run(Watch(), lambda _trial: None)
    assert ending.status == 130
    assert desk.driver.made == []


async def test_a_machine_that_cannot_is_told(desk: Desk) -> None:
    def refuse(_number: int, _spec: SandboxSpec) -> None:
        raise InfraError("no user namespaces", code="doctor/unusable")

    desk.driver.refuse = refuse
    ending = await desk.run()
    assert ending.status == 5
    assert ending.unusable is not None
    assert ending.unusable.message == "no user namespaces"


def _hold(desk: Desk) -> tuple[asyncio.Event, asyncio.Event]:
    """Make commands wait; the first event says that one does, the second lets them go on."""
    reached, going = asyncio.Event(), asyncio.Event()

    async def wait(_sandbox: Any) -> None:
        reached.set()
        await going.wait()

    desk.driver.during_run = wait
    return reached, going


def _press(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


async def _after(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.005)


async def test_ctrl_c_once_and_twice(desk: Desk) -> None:
    reached, going = _hold(desk)
    session = desk.session(repeats=6)
    running = asyncio.create_task(desk.under_signals(session))
    await reached.wait()
    _press()
    await _after(lambda: session.stop is Stop.DRAINING)
    _press()
    ending = await running
    going.set()
    assert ending.status == 130
    assert [line.partition(":")[0] for line in desk.said] == ["draining", "cancelling"]
    assert desk.driver.alive == {}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def test_ctrl_c_three_times_deletes_without_waiting(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, going = _hold(desk)
    deleted = asyncio.Event()
    delete = desk.driver.delete
    slow = True

    async def stuck(sandbox_id: str) -> bool:
        # the trial's own deletion hangs; the last resort's does not
        if slow:
            await going.wait()
        deleted.set()
        return bool(await delete(sandbox_id))

    monkeypatch.setattr(desk.driver, "delete", stuck)
    session = desk.session(repeats=1)
    running = asyncio.create_task(desk.under_signals(session))
    await reached.wait()
    _press()
    _press(signal.SIGTERM)
    await _after(lambda: session.stop is Stop.CANCELLING)
    slow = False
    _press()
    with pytest.raises(Killed) as killed:
        await running
    assert killed.value.exit_code == 130
    assert deleted.is_set()
    assert desk.driver.alive == {}
    going.set()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)


async def test_what_cannot_be_deleted_when_killing_is_said(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals_module, "KILL_TIMEOUT_S", 0.05)
    reached, going = _hold(desk)
    hang = asyncio.Event()
    session = desk.session(repeats=1)
    running = asyncio.create_task(desk.under_signals(session))
    await reached.wait()

    async def never(_sandbox_id: str) -> bool:
        await hang.wait()
        return True

    monkeypatch.setattr(desk.driver, "delete", never)
    for _ in range(3):
        _press()
        await asyncio.sleep(0.02)
    with pytest.raises(Killed):
        await running
    assert any("not every sandbox could be deleted" in line for line in desk.said)
    going.set()
    hang.set()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
    desk.driver.alive.clear()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotADirectoryError(20, "Not a directory"), "the run cannot go on: .*Not a directory"),
        (KeyError("x"), "KeyError"),
    ],
)
async def test_an_error_of_the_run_itself_is_typed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    async def broken() -> Any:
        await asyncio.sleep(0)
        raise error

    monkeypatch.setattr(desk.driver, "list", broken)
    with pytest.raises(RunFailed, match=said) as caught:
        await desk.under_signals(desk.session())
    assert caught.value.exit_code == 5


async def test_what_the_driver_cannot_do_is_refused_when_the_run_is_planned(desk: Desk) -> None:
    desk.driver.able = frozenset()
    environment = dataclasses.replace(desk.task.environment, network=TaskNetwork.PUBLIC)
    desk.task = dataclasses.replace(desk.task, environment=environment)
    ending = await desk.run(repeats=1)
    (refused,) = ending.outcomes
    assert refused.refusal is not None
    assert refused.refusal.code == "plan/capability_missing"
    assert "needs `public`, which the fake driver cannot do" in refused.refusal.message
    assert desk.driver.made == []
