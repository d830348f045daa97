"""The agent that knows the answer: it runs the task's reference solution, and so shows that it can be solved.

Must never run anything else, and must never call the solution's exit status a failure: the verifier decides.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cloche.agents.atif import ToolCall
from cloche.agents.base import AgentContext
from cloche.core.errors import InfraError, InvalidInput
from cloche.sandbox.spec import Command, Completed, EndReason

if TYPE_CHECKING:
    from cloche.sandbox.handle import Chunk, Sandbox

SOLUTION_FOLDER = "/solution"
LOG_NAME = "oracle.txt"
LOG_LIMIT_BYTES = 4 << 20
_SCRIPT = f"{SOLUTION_FOLDER}/solve.sh"
_LOOK_BYTES = 16_384


class _Log:
    """The first ``LOG_LIMIT_BYTES`` of what the solution said, both streams in the order they came."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = bytearray()
        self._total = 0

    def add(self, chunk: Chunk) -> None:
        self._total += len(chunk.data)
        self._data += chunk.data[: max(0, LOG_LIMIT_BYTES - len(self._data))]

    def look(self) -> str:
        """Return the end of it as text."""
        return bytes(self._data[-_LOOK_BYTES:]).decode("utf-8", "replace")

    def save(self) -> None:
        if (missing := self._total - len(self._data)) > 0:
            self._data += f"\n[... {missing} bytes left out ...]\n".encode()
        self._path.write_bytes(self._data)


class OracleAgent:
    """Uploads ``solution/`` to ``/solution`` and runs its ``solve.sh``."""

    name = "oracle"
    version = "1"
    needs_model = False

    async def setup(self, sandbox: Sandbox, context: AgentContext) -> None:
        """Put the solution into the sandbox. Raises InvalidInput if the task has none."""
        folder = context.solution_dir
        if folder is None or not (folder / "solve.sh").is_file():
            raise InvalidInput("the task has no solution/solve.sh, which the oracle needs")
        await sandbox.upload(folder, SOLUTION_FOLDER)
        # readable for whoever runs it, whatever modes the folder has on this machine
        opened = await sandbox.run(
            Command(argv=("chmod", "-R", "a+rX", SOLUTION_FOLDER), user="0", cwd="/", timeout_s=60.0)
        )
        marked = await sandbox.run(Command(argv=("chmod", "a+x", _SCRIPT), user="0", cwd="/", timeout_s=60.0))
        if not (opened.ok and marked.ok):
            raise InfraError(f"the solution could not be made executable: {_said(opened)}{_said(marked)}")

    async def run(self, instruction: str, sandbox: Sandbox, context: AgentContext) -> None:
        """Run the solution as the agent's user; its output goes to ``oracle.txt``, also if it is stopped."""
        context.trajectory.add_user(instruction)
        call = ToolCall(tool_call_id="solve", function_name="run", arguments={"command": _SCRIPT})
        step = context.trajectory.add_agent("", calls=[call], model_calls=0)
        log = _Log(context.logs_dir / LOG_NAME)
        command = Command(
            shell=_SCRIPT,
            env={**context.env, **context.solution_env},
            cwd=context.workdir,
            user=context.user,
        )
        try:
            completed = await sandbox.run(command, on_output=log.add)
        finally:
            log.save()
        if completed.reason is EndReason.START_FAILED:
            raise InfraError(f"the solution could not be started: {completed.message}")
        context.trajectory.add_results(step, {"solve": f"{log.look()}\n[exit status {completed.exit_code}]"})
        (context.logs_dir / "exit-code.txt").write_text(f"{completed.exit_code}\n")


def _said(completed: Completed) -> str:
    return (completed.message or completed.stderr.text).strip()
