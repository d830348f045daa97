"""The shipped tasks in real sandboxes: the reference solution scores 1.0, doing nothing scores 0.0."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, PreparedImage
from cloche.tasks import Task, find_tasks
from cloche.tasks.verify import SOLUTION, verify

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "tasks"
TASKS = {task.name: task for task in find_tasks([EXAMPLES]) if isinstance(task, Task)}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MakeSandbox = Callable[[Task, PreparedImage], AbstractAsyncContextManager[Sandbox]]
Build = Callable[[Task], AbstractAsyncContextManager[PreparedImage]]


def test_all_shipped_tasks_are_tried() -> None:
    assert len(TASKS) >= 13


async def solve(task: Task, sandbox: Sandbox) -> None:
    assert task.solution.solution_dir is not None
    await sandbox.upload(task.solution.solution_dir, SOLUTION)
    done = await sandbox.run(Command(argv=(f"{SOLUTION}/solve.sh",), user=task.agent.user, timeout_s=60.0))
    assert done.ok, done.stderr.text


@pytest.mark.usefixtures("forwarding")
@pytest.mark.parametrize("name", TASKS)
async def test_the_reference_solution_scores_one_and_doing_nothing_zero(
    name: str, built: Build, sandbox_for: MakeSandbox, tmp_path: Path
) -> None:
    task = TASKS[name]
    async with built(task) as image:
        for agent, reward in (("nop", 0.0), ("oracle", 1.0)):
            async with sandbox_for(task, image) as sandbox:
                if agent == "oracle":
                    await solve(task, sandbox)
                await sandbox.kill_all()
                result = await verify(task, sandbox, tmp_path / agent)
            said = (tmp_path / agent / "test-stdout.txt").read_text()
            assert set(result.rewards.values()) == {reward}, said
