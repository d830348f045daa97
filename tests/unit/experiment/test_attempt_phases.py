"""One attempt, phase by phase: what each failure becomes, what is called when, what is always deleted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cloche.agents.atif import Trajectory
from cloche.agents.base import Agent, AgentContext
from cloche.agents.errors import ContextExceeded, ModelRateLimited, StepLimitReached
from cloche.core.errors import Domain, InfraError, InvalidInput, NotFound, SandboxLost
from cloche.core.outcome import AttemptOutcome
from cloche.experiment import grading as grading_module
from cloche.experiment import services as services_module
from cloche.experiment.attempt import Attempt, Bench
from cloche.experiment.limits import TimeoutRules
from cloche.experiment.plan import Plan, PlannedTrial
from cloche.experiment.record.export import Job
from cloche.experiment.record.files import RecordError
from cloche.experiment.record.trial import TrialFolder
from cloche.experiment.secrets import Scrubber
from cloche.sandbox.spec import PreparedImage
from cloche.tasks import Task

IMAGE = PreparedImage(name="fake:1", digest="sha256:" + "1" * 64, layers=())
Step = Callable[[Any], Awaitable[None]]


async def _nothing(_sandbox: Any) -> None:
    await asyncio.sleep(0)


def _raises(error: BaseException) -> Step:
    async def step(_sandbox: Any) -> None:
        await asyncio.sleep(0)
        raise error

    return step


async def _hangs(_sandbox: Any) -> None:
    await asyncio.Event().wait()


@dataclass
class PuppetAgent:
    """Does what a test tells it."""

    at_setup: Step = _nothing
    at_run: Step = _nothing
    name: str = "puppet"
    version: str = "1"
    needs_model: bool = False
    contexts: list[AgentContext] = field(default_factory=list)

    async def setup(self, sandbox: Any, context: AgentContext) -> None:
        self.contexts.append(context)
        await self.at_setup(sandbox)

    async def run(self, instruction: str, sandbox: Any, context: AgentContext) -> None:
        context.trajectory.add_user(instruction)
        await self.at_run(sandbox)


class Bed:
    """An attempt on a fake sandbox with a puppet for an agent."""

    def __init__(self, folder: Path, driver: Any, task: Task) -> None:
        self.driver = driver
        self.agent = PuppetAgent()
        self.task = task
        self.folder = folder
        self.multiplier = 1.0

    def attempt(self, number: int = 1) -> Attempt:
        agent: Agent = self.agent
        trial = PlannedTrial(
            name="t-k1", label=self.task.name, task=self.task, agent=agent, model=None, repeat=1
        )
        plan = Plan(trials=(trial,), limits=TimeoutRules(multiplier=self.multiplier))
        job = Job(id=UUID(int=3), folder=self.folder, plan=plan)
        bench = Bench(driver=self.driver, job=job, scrubber=Scrubber({"KEY": "canary-canary"}), environ={})
        return Attempt(bench, trial, self.task, IMAGE, number)

    async def run(self) -> AttemptOutcome:
        async with asyncio.timeout(60):
            outcome = await self.attempt().run()
        assert self.driver.alive == {}
        (stored,) = TrialFolder(self.folder / "t-k1").outcomes()
        assert (stored.failure and stored.failure.code) == (outcome.failure and outcome.failure.code)
        assert stored.graded == outcome.graded
        return outcome


@pytest.fixture
def bed(tmp_path: Path, fake_driver: Any, task: Task) -> Bed:
    return Bed(tmp_path / "out", fake_driver, task)


def _code(outcome: AttemptOutcome) -> str | None:
    return outcome.failure.code if outcome.failure else None


async def test_all_phases_in_order_and_the_end_of_the_agent_before_the_verifier(bed: Bed) -> None:
    sandboxes: list[Any] = []

    async def note(sandbox: Any) -> None:
        await asyncio.sleep(0)
        sandboxes.append(sandbox)

    bed.agent.at_run = note
    outcome = await bed.run()
    assert outcome.graded
    assert list(outcome.phases) == [
        "environment_setup",
        "agent_setup",
        "agent_execution",
        "collection",
        "verifier",
        "cleanup",
    ]
    spans = list(outcome.phases.values())
    assert all(a.finished_at <= b.started_at for a, b in itertools.pairwise(spans))
    calls = sandboxes[0].calls
    assert calls.index("kill_all") < calls.index("upload"), "the tests come in once the agent is gone"
    assert calls.index("kill_all") < calls.index("run")
    assert "download /logs/verifier" in calls


@pytest.mark.parametrize(
    ("error", "code", "graded"),
    [
        (StepLimitReached(), "agent/step_limit", True),
        (ContextExceeded(), "agent/context_limit", True),
        (ModelRateLimited(), "infra/model_rate_limit", False),
        (SandboxLost(), "infra/sandbox_lost", False),
        (InfraError("x"), "infra/error", False),
        (TimeoutError(), "infra/request_timeout", False),
        (ConnectionResetError(), "infra/transport", False),
        (KeyError("x"), "infra/unknown", False),
        (InvalidInput("x"), "infra/error", False),
        (NotFound("x"), "infra/error", False),
        (ExceptionGroup("g", [SandboxLost()]), "infra/sandbox_lost", False),
    ],
)
async def test_what_the_agents_run_raises(bed: Bed, error: Exception, code: str, graded: bool) -> None:
    bed.agent.at_run = _raises(error)
    outcome = await bed.run()
    assert (_code(outcome), outcome.graded) == (code, graded)
    assert ("verifier" in outcome.phases) == graded


async def test_the_end_of_the_agents_time_is_a_result(bed: Bed) -> None:
    bed.agent.at_run = _hangs
    bed.multiplier = 0.002
    outcome = await bed.run()
    assert (_code(outcome), outcome.graded) == ("agent/timeout", True)


async def test_a_time_out_from_inside_is_not_the_agents(bed: Bed) -> None:
    async def inner(_sandbox: Any) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    bed.agent.at_run = inner
    outcome = await bed.run()
    assert (_code(outcome), outcome.graded) == ("infra/request_timeout", False)


async def test_without_a_limit_the_agent_may_take_its_time(bed: Bed) -> None:
    bed.task = replace(bed.task, agent=replace(bed.task.agent, timeout_s=None))
    assert (await bed.run()).graded


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InfraError("x"), "infra/error"),
        (InvalidInput("x"), "infra/error"),
        (StepLimitReached(), "agent/step_limit"),
        (ValueError("x"), "infra/unknown"),
    ],
)
async def test_what_the_agents_set_up_raises_is_never_graded(bed: Bed, error: Exception, code: str) -> None:
    bed.agent.at_setup = _raises(error)
    outcome = await bed.run()
    assert (_code(outcome), outcome.graded) == (code, False)
    assert "agent_execution" not in outcome.phases


async def test_a_set_up_that_takes_too_long(bed: Bed) -> None:
    bed.agent.at_setup = _hangs
    bed.multiplier = 0.002
    outcome = await bed.run()
    assert _code(outcome) == "infra/agent_setup_timeout"
    assert outcome.failure is not None
    assert outcome.failure.domain is Domain.INFRA


async def test_a_sandbox_that_does_not_come_up_in_time_is_deleted_by_its_id(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []

    async def create(spec: Any, _image: Any) -> Any:
        bed.driver.alive[spec.id] = spec  # it was made, but the answer never came
        await asyncio.Event().wait()

    delete = bed.driver.delete

    async def noted(sandbox_id: str) -> bool:
        deleted.append(sandbox_id)
        return bool(await delete(sandbox_id))

    monkeypatch.setattr(bed.driver, "create", create)
    monkeypatch.setattr(bed.driver, "delete", noted)
    bed.multiplier = 0.0001
    outcome = await bed.run()
    assert _code(outcome) == "infra/sandbox_start_timeout"
    assert deleted == [outcome.sandbox_id]


async def test_processes_that_cannot_be_ended_keep_the_verifier_from_running(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services_module, "KILL_TIMEOUT_S", 0.02)

    async def immortal(sandbox: Any) -> None:
        await asyncio.sleep(0)
        sandbox.kill_all = asyncio.Event().wait

    bed.agent.at_run = immortal
    outcome = await bed.run()
    assert not outcome.graded
    assert _code(outcome) == "infra/request_timeout"
    assert "verifier" not in outcome.phases


async def test_a_verifier_call_that_does_not_come_back_is_ended(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading_module, "VERIFIER_SLACK_S", 0.0)
    bed.driver.during_run = _hangs
    bed.multiplier = 0.002
    outcome = await bed.run()
    assert (_code(outcome), outcome.graded) == ("verifier/timeout", False)


async def test_a_verifiers_failure_outweighs_the_agents(bed: Bed) -> None:
    bed.agent.at_run = _raises(StepLimitReached())
    bed.driver.reward = "not a number"
    outcome = await bed.run()
    assert (_code(outcome), outcome.graded) == ("verifier/reward_invalid", False)


@pytest.mark.parametrize("where", ["create", "setup", "run", "verifier"])
async def test_cancelled_in_any_phase_it_cleans_up_and_says_so(
    bed: Bed, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def stop_here(*_: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    if where == "create":
        monkeypatch.setattr(bed.driver, "create", stop_here)
    elif where == "setup":
        bed.agent.at_setup = stop_here
    elif where == "run":
        bed.agent.at_run = stop_here
    else:
        bed.driver.during_run = stop_here
    attempt = bed.attempt()
    running = asyncio.create_task(attempt.run())
    async with asyncio.timeout(60):
        await reached.wait()
    running.cancel()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bed.driver.alive == {}
    assert attempt.outcome is not None
    assert _code(attempt.outcome) == "user/interrupted"
    assert (bed.folder / "t-k1" / "result.json").is_file()


async def test_cancelled_while_cleaning_up_it_finishes(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, going = asyncio.Event(), asyncio.Event()
    delete = bed.driver.delete

    async def slow(sandbox_id: str) -> bool:
        reached.set()
        await going.wait()
        return bool(await delete(sandbox_id))

    monkeypatch.setattr(bed.driver, "delete", slow)
    attempt = bed.attempt()
    running = asyncio.create_task(attempt.run())
    async with asyncio.timeout(60):
        await reached.wait()
    running.cancel()
    await asyncio.sleep(0)
    going.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bed.driver.alive == {}
    assert attempt.outcome is not None
    assert attempt.outcome.graded, "it was over when the cancellation came"


async def test_a_record_that_cannot_be_written_is_said_after_the_sandbox_is_gone(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise RecordError("no space", code="infra/disk_full")

    monkeypatch.setattr(TrialFolder, "write_result", full)
    with pytest.raises(RecordError, match="no space"):
        await bed.attempt().run()
    assert bed.driver.alive == {}


async def test_a_folder_that_cannot_be_made_makes_no_sandbox(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise RecordError("no space", code="infra/disk_full")

    monkeypatch.setattr(TrialFolder, "begin", full)
    with pytest.raises(RecordError):
        await bed.attempt().run()
    assert bed.driver.made == []


async def test_the_agent_sees_no_solution_unless_it_is_the_oracle(bed: Bed) -> None:
    await bed.run()
    (context,) = bed.agent.contexts
    assert context.solution_dir is None
    assert context.solution_env == {}
    assert context.logs_dir == bed.folder / "t-k1" / "agent"


async def test_a_failures_message_holds_no_secret(bed: Bed) -> None:
    bed.agent.at_run = _raises(InfraError("the endpoint said: canary-canary is wrong"))
    outcome = await bed.run()
    assert outcome.failure is not None
    assert outcome.failure.message == "the endpoint said: ${KEY} is wrong"
    written = b"".join(path.read_bytes() for path in bed.folder.rglob("*") if path.is_file())
    assert b"canary-canary" not in written


async def test_the_trajectory_of_a_lost_attempt_is_kept(bed: Bed) -> None:
    bed.agent.at_run = _raises(SandboxLost())
    await bed.run()
    text = (bed.folder / "t-k1" / "agent" / "trajectory.json").read_bytes()
    trajectory = Trajectory.model_validate_json(text)
    assert trajectory.session_id == f"{UUID(int=3)}/t-k1/1"
    assert [step.source for step in trajectory.steps] == ["user"]


async def test_the_log_names_the_phases_and_the_reason(bed: Bed) -> None:
    bed.agent.at_run = _raises(StepLimitReached("not done after 3 steps"))
    await bed.run()
    log = (bed.folder / "t-k1" / "trial.log").read_text()
    for phase in ("environment_setup", "agent_setup", "agent_execution", "collection", "verifier", "cleanup"):
        assert f"{phase}: begins" in log
        assert f"{phase}: over after" in log
    assert "not done after 3 steps [agent/step_limit]; graded all the same" in log
    assert "[agent/step_limit]" in (bed.folder / "t-k1" / "exception.txt").read_text()
