"""The loop's tools: what the model is told of them, and what becomes of a call.

Every tool is a command inside the sandbox, run as the agent's user, so that a tool can do what that user
can and nothing more. Must never raise for what the model got wrong: it is told, as the call's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloche.agents.answer import RequestedCall
from cloche.agents.base import AgentContext
from cloche.core.errors import SandboxLost, UsageError
from cloche.sandbox.spec import Command, Completed, EndReason, Output

if TYPE_CHECKING:
    from cloche.sandbox.handle import Sandbox

EDIT_LIMIT_BYTES = 4 << 20
NUMBER_LIMIT = 1_000_000_000

# bash where the image has it, with both streams in one so that they stay in order; "$1" is the model's line
_SHELL = 'if command -v bash >/dev/null; then exec bash -c "$1" 2>&1; else exec sh -c "$1" 2>&1; fi'
# writes through the file as it is, so that its owner and mode stay
_WRITE = 'case "$1" in */*) mkdir -p -- "${1%/*}/" || exit;; esac; exec cat > "$1"'


class ToolProblem(Exception):
    """Something to tell the model; the run goes on."""


def _tool(name: str, description: str, required: Mapping[str, str], **optional: str) -> dict[str, Any]:
    types = {"timeout_s": "number", "first_line": "integer", "lines": "integer"}
    fields = {
        key: {"type": types.get(key, "string"), "description": text}
        for key, text in {**required, **optional}.items()
    }
    parameters = {"type": "object", "properties": fields, "required": list(required)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


_PATH = "absolute, or relative to the working directory"
TOOLS = (
    _tool(
        "bash",
        "Run a command line with bash and get its output. Only files are kept from one call to the next.",
        {"command": "the command line, of one or more lines"},
        timeout_s="seconds after which it is ended",
    ),
    _tool(
        "read_file",
        "Read a text file.",
        {"path": _PATH},
        first_line="where to begin, from 1",
        lines="how many lines at most",
    ),
    _tool("write_file", "Create a file, or replace all of it.", {"path": _PATH, "content": "all of it"}),
    _tool(
        "str_replace",
        "Replace a piece of a file that occurs exactly once.",
        {"path": _PATH, "old": "the piece, exactly as it stands in the file", "new": "what to put there"},
    ),
)


def output_text(output: Output) -> str:
    """Return a stream as text, with a line in the middle that says how much is missing.

    Half a character at the cut is left out, not shown as a replacement character.
    """
    if not output.truncated:
        return (output.head + output.tail).decode("utf-8", "replace")
    tail = output.tail
    while tail and tail[0] & 0xC0 == 0x80 and len(output.tail) - len(tail) < 3:
        tail = tail[1:]
    head = output.head.decode("utf-8", "replace").removesuffix("\ufffd")
    missing = output.total_bytes - len(output.head) - len(tail)
    return f"{head}\n[... {missing} bytes left out ...]\n{tail.decode('utf-8', 'replace')}"


def _ending(completed: Completed, limit_s: float) -> str:
    match completed.reason:
        case EndReason.EXIT:
            return f"[exit status {completed.exit_code}]" if completed.exit_code else ""
        case EndReason.TIMEOUT:
            return f"[ended after {limit_s:g} s, with everything it started]"
        case EndReason.SIGNAL:
            return f"[ended by signal {completed.signal}]"
        case EndReason.OUT_OF_MEMORY:
            return "[ended: out of memory]"
        case EndReason.SANDBOX_LOST:
            raise SandboxLost(completed.message or None)
        case _:
            return f"[{completed.reason.value}: {completed.message}]"


class Toolbox:
    """The tools over one sandbox, for one attempt."""

    def __init__(self, sandbox: Sandbox, context: AgentContext) -> None:
        self._sandbox = sandbox
        self._context = context

    async def call(self, call: RequestedCall) -> str:
        """Carry out one call and return what the model is told. Raises SandboxLost and other InfraErrors."""
        tools = {
            "bash": self._bash,
            "read_file": self._read_file,
            "write_file": self._write_file,
            "str_replace": self._str_replace,
        }
        try:
            if call.problem:
                raise ToolProblem(call.problem)
            if call.name not in tools:
                raise ToolProblem(f"there is no tool {call.name!r}; there are {', '.join(tools)}")
            return await tools[call.name](call.arguments)
        except (ToolProblem, UsageError) as problem:
            return f"error: {problem}"

    async def _bash(self, given: Mapping[str, Any]) -> str:
        limit_s = min(
            _number(given, "timeout_s", self._context.limits.command_s), self._context.limits.command_s
        )
        cap_bytes = self._context.limits.tool_output_bytes
        argv = ("/bin/sh", "-c", _SHELL, "sh", _text(given, "command"))
        completed = await self._run(argv, timeout_s=limit_s, output_cap_bytes=cap_bytes)
        parts = [output_text(completed.stdout), output_text(completed.stderr), _ending(completed, limit_s)]
        return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"

    async def _read_file(self, given: Mapping[str, Any]) -> str:
        data = await self._read(_text(given, "path"))
        first = max(1, int(_number(given, "first_line", 1)))
        lines = data.split(b"\n")[first - 1 :]
        if "lines" in given:
            lines = lines[: max(0, int(_number(given, "lines", 0)))]
        data = b"\n".join(lines)
        half = self._context.limits.tool_output_bytes // 2
        cut = len(data) > 2 * half
        head, tail = (data[:half], data[-half:]) if cut else (data, b"")
        return output_text(Output(head=head, tail=tail, total_bytes=len(data))) or "[nothing]"

    async def _write_file(self, given: Mapping[str, Any]) -> str:
        data = _text(given, "content").encode()
        await self._write(_text(given, "path"), data)
        return f"wrote {len(data)} bytes"

    async def _str_replace(self, given: Mapping[str, Any]) -> str:
        path, old, new = _text(given, "path"), _text(given, "old").encode(), _text(given, "new").encode()
        data = await self._read(path)
        found = data.count(old) if old else 0
        if found != 1:
            raise ToolProblem(f"`old` occurs {found} times in {path}, not once; the file is as it was")
        await self._write(path, data.replace(old, new))
        return "replaced"

    async def _read(self, path: str) -> bytes:
        completed = await self._run(("cat", "--", path), output_cap_bytes=EDIT_LIMIT_BYTES)
        if completed.stdout.truncated:
            raise ToolProblem(f"{path} is larger than {EDIT_LIMIT_BYTES} bytes; use bash for a part of it")
        self._expect(completed)
        return completed.stdout.data

    async def _write(self, path: str, data: bytes) -> None:
        self._expect(await self._run(("/bin/sh", "-c", _WRITE, "sh", path), stdin=data))

    def _expect(self, completed: Completed) -> None:
        if not completed.ok:
            said = output_text(completed.stderr).strip()
            raise ToolProblem(said or _ending(completed, self._context.limits.command_s))

    async def _run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None = None,
        timeout_s: float | None = None,
        output_cap_bytes: int = 1 << 16,
    ) -> Completed:
        context = self._context
        return await self._sandbox.run(
            Command(
                argv=argv,
                env=context.env,
                cwd=context.workdir,
                user=context.user,
                stdin=stdin,
                timeout_s=timeout_s or context.limits.command_s,
                output_cap_bytes=output_cap_bytes,
            )
        )


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise ToolProblem(f"`{name}` is missing or is not text")
    if "\0" in value and name != "content":
        raise ToolProblem(f"`{name}` holds a NUL character")
    return value


def _number(given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ToolProblem(f"`{name}` is not a number above 0")
    return float(min(value, NUMBER_LIMIT))
