"""The demo's scripted models on the shipped tasks, in real sandboxes: what they solve, and what not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from cloche.agents.base import AgentContext, ModelEndpoint, get_agent
from cloche.agents.trajectory import TrajectoryBuilder
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.images import BuildRequest, ImageStore, bootstrap, prepare
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import PreparedImage, Resources, SandboxSpec
from cloche.tasks import Task, find_tasks
from cloche.tasks.refuse import resolve_env
from cloche.tasks.verify import prepare_paths, verify
from cloche.testing.model_server import ScriptedModelServer, load_scripts

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SCRIPTS = load_scripts(EXAMPLES / "scripts")
SCRIPTED = {EXAMPLES / "tasks" / script.name for script in SCRIPTS}
TASKS = {task.path.name: task for task in find_tasks(sorted(SCRIPTED)) if isinstance(task, Task)}
SOLVED = {
    "scripted-a": {
        "big-file",
        "build-from-source",
        "csv-dedupe",
        "fix-off-by-one",
        "flaky-fetch",
        "non-root-notes",
        "package-tools",
        "setuid-sudo",
        "speed-up",
        "utf8-torture",
    },
    "scripted-b": {"csv-dedupe", "log-forensics", "several-rewards"},
}

ImageOf = Callable[[Task], Awaitable[PreparedImage]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest_asyncio.fixture
async def image_of(settings: Settings) -> AsyncIterator[ImageOf]:
    """Return a function that makes a task's image in the session's installation."""
    store = ImageStore(settings)

    async def make(task: Task) -> PreparedImage:
        if store.find("debian:12") is None:
            await bootstrap(store, "debian:12")
        assert task.environment.context is not None
        return await prepare(store, BuildRequest(context=task.environment.context))

    yield make


def new_context(task: Task, model: str, server: ScriptedModelServer, folder: Path) -> AgentContext:
    logs = folder / model
    logs.mkdir()
    return AgentContext(
        logs_dir=logs,
        trajectory=TrajectoryBuilder(agent_name="loop", agent_version="1", session_id=task.name),
        user=task.agent.user,
        model=ModelEndpoint(base_url=server.base_url, model=model),
    )


def model_name(context: AgentContext) -> str:
    assert context.model is not None
    return context.model.model


async def attempt(
    task: Task, server: ScriptedModelServer, driver: LocalDriver, image: PreparedImage, context: AgentContext
) -> float | None:
    environment = task.environment
    # no network even for the task that may have it: what it needs is in its image
    spec = SandboxSpec(
        resources=Resources(cpus=environment.cpus, memory_bytes=environment.memory_bytes),
        env=resolve_env(environment.env, {}),
        workdir=environment.workdir,
    )
    async with await driver.create(spec, image) as sandbox:
        await prepare_paths(sandbox, task)
        await get_agent("loop").run(task.instruction, sandbox, context)
        await sandbox.kill_all()
        result = await verify(task, sandbox, context.logs_dir / "verifier")
    served = server.ledger.by_conversation[f"{model_name(context)}/{task.path.name}"]
    total = context.usage.total()
    assert total is not None
    assert (total.input_tokens, total.output_tokens) == (served.prompt_tokens, served.completion_tokens)
    assert context.trajectory.write(context.logs_dir / "trajectory.json", context.usage)
    return result.reward


def test_all_shipped_tasks_are_tried() -> None:
    assert len(TASKS) >= 6


@pytest.mark.parametrize("name", TASKS)
async def test_a_scripted_model_solves_what_it_is_meant_to(
    name: str,
    driver: LocalDriver,
    image_of: ImageOf,
    tmp_path: Path,
) -> None:
    task = TASKS[name]
    image = await image_of(task)
    async with ScriptedModelServer(load_scripts(EXAMPLES / "scripts")) as server:
        rewards = await asyncio.gather(
            *[
                attempt(task, server, driver, image, new_context(task, model, server, tmp_path))
                for model in SOLVED
            ]
        )
    assert {model: reward == 1.0 for model, reward in zip(SOLVED, rewards, strict=True)} == {
        model: name in solved for model, solved in SOLVED.items()
    }, rewards
