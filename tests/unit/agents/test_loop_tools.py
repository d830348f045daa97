"""The loop's tools, run by a shell in a folder: what they do, and what the model is told when they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.agents.answer import RequestedCall
from cloche.agents.base import AgentContext, Limits
from cloche.agents.tools import EDIT_LIMIT_BYTES, TOOLS, Toolbox, output_text
from cloche.core.errors import InvalidInput, SandboxLost
from cloche.sandbox.spec import Command, Completed, EndReason, Output

Use = Callable[..., Any]


@pytest.fixture
def use(sandbox: Any, make_context: Callable[..., AgentContext]) -> Use:
    async def call(name: str, *, problem: str = "", limits: Limits | None = None, **arguments: Any) -> str:
        context = make_context(limits=limits or Limits(), user="scribe", workdir="/w", env={"A": "1"})
        return await Toolbox(sandbox, context).call(RequestedCall("c", name, arguments, problem))

    return call


def test_the_definitions_are_whole() -> None:
    for tool in TOOLS:
        function = tool["function"]
        assert set(function["parameters"]["required"]) <= set(function["parameters"]["properties"])
        assert all(item["description"] for item in function["parameters"]["properties"].values())
    assert [tool["function"]["name"] for tool in TOOLS] == ["bash", "read_file", "write_file", "str_replace"]


async def test_bash_gives_both_streams_in_order(use: Use) -> None:
    assert await use("bash", command="echo one; echo two >&2; echo drei: ü") == "one\ntwo\ndrei: ü"


async def test_bash_is_bash_and_takes_a_line_as_it_is(use: Use) -> None:
    line = "x=(a 'b c' \"d\\\"e\"); printf '%s|' \"${x[@]}\" \"$1\" '$HOME'\nprintf 'end'"
    assert await use("bash", command=line) == 'a|b c|d"e||$HOME|end'


async def test_an_exit_status_is_told(use: Use) -> None:
    assert await use("bash", command="echo no; exit 3") == "no\n[exit status 3]"
    assert await use("bash", command="exit 3") == "[exit status 3]"
    assert await use("bash", command="true") == "[no output]"


@pytest.mark.fault("agent-command-too-long")
async def test_a_command_that_takes_too_long_is_ended_and_told(use: Use) -> None:
    limits = Limits(command_s=0.2)
    assert (
        await use("bash", command="sleep 60", limits=limits)
        == "[ended after 0.2 s, with everything it started]"
    )


@pytest.mark.parametrize(
    ("asked", "limit"), [(None, 120.0), (5, 5.0), (0.5, 0.5), (10**400, 120.0), (1e300, 120.0)]
)
async def test_the_model_may_ask_for_less_time_not_for_more(
    asked: float | None, limit: float, use: Use, sandbox: Any
) -> None:
    await use("bash", command="true", **({} if asked is None else {"timeout_s": asked}))
    assert sandbox.commands[0].timeout_s == limit


async def test_a_command_runs_as_the_agents_user(use: Use, sandbox: Any) -> None:
    await use("bash", command="true")
    await use("write_file", path="f", content="x")
    await use("read_file", path="f")
    assert {(c.user, c.cwd, tuple(c.env.items()), c.timeout_s) for c in sandbox.commands} == {
        ("scribe", "/w", (("A", "1"),), 120.0)
    }


@pytest.mark.fault("agent-output-huge")
async def test_output_keeps_beginning_and_end(use: Use) -> None:
    text = await use("bash", command="seq 1 100000", limits=Limits(tool_output_bytes=1000))
    assert text.startswith("1\n2\n3\n")
    assert text.endswith("\n99999\n100000")
    assert "bytes left out ...]" in text
    assert len(text) < 1100


@given(st.text(min_size=1), st.integers(1, 40))
def test_a_cut_never_shows_half_a_character(text: str, half: int) -> None:
    data = text.encode("utf-8", "replace")
    if len(data) <= 2 * half:
        assert output_text(Output(head=data, total_bytes=len(data))) == data.decode()
        return
    shown = output_text(Output(head=data[:half], tail=data[-half:], total_bytes=len(data)))
    head, rest = shown.split("\n[... ", 1)
    missing, tail = rest.split(" bytes left out ...]\n", 1)
    assert data.decode().endswith(tail)
    assert data.decode().startswith(head) or text.startswith("\ufffd")
    assert int(missing) >= len(data) - 2 * half


async def test_files_are_written_read_and_changed(use: Use, sandbox: Any) -> None:
    content = "eins\nzwei ü\n\ndrei'\"$x\n"
    assert (
        await use("write_file", path="a/b/c.txt", content=content) == f"wrote {len(content.encode())} bytes"
    )
    assert (sandbox.folder / "a/b/c.txt").read_text() == content
    assert await use("read_file", path="a/b/c.txt") == content
    assert await use("read_file", path="a/b/c.txt", first_line=2, lines=1) == "zwei ü"
    assert await use("read_file", path="a/b/c.txt", first_line=99) == "[nothing]"
    assert await use("str_replace", path="a/b/c.txt", old="zwei ü\n", new="2\n") == "replaced"
    assert (sandbox.folder / "a/b/c.txt").read_text() == content.replace("zwei ü", "2")


async def test_changing_a_file_keeps_its_mode_and_its_other_bytes(use: Use, sandbox: Any) -> None:
    path = sandbox.folder / "-odd name'"
    path.write_bytes(b"\xff\x00 old \r\n")
    path.chmod(0o755)
    assert await use("str_replace", path="./-odd name'", old="old", new="new") == "replaced"
    assert path.read_bytes() == b"\xff\x00 new \r\n"
    assert path.stat().st_mode & 0o777 == 0o755


async def test_a_path_that_looks_like_an_option(use: Use, sandbox: Any) -> None:
    await use("write_file", path="-p/-x", content="1")
    assert (sandbox.folder / "-p/-x").read_text() == "1"
    assert await use("read_file", path="-p/-x") == "1"


@pytest.mark.parametrize(("old", "times"), [("x", 3), ("y", 0), ("", 0)])
async def test_a_piece_must_occur_once(old: str, times: int, use: Use, sandbox: Any) -> None:
    (sandbox.folder / "f").write_text("x x x")
    told = await use("str_replace", path="f", old=old, new="z")
    assert told == f"error: `old` occurs {times} times in f, not once; the file is as it was"
    assert (sandbox.folder / "f").read_text() == "x x x"


async def test_a_file_that_is_not_there(use: Use) -> None:
    assert "No such file" in await use("read_file", path="nope")
    assert (await use("str_replace", path="nope", old="a", new="b")).startswith("error: ")
    assert (await use("write_file", path="/proc/nope/x", content="")).startswith("error: ")


async def test_a_file_too_large_to_edit(use: Use, sandbox: Any) -> None:
    (sandbox.folder / "big").write_bytes(b"x" * (EDIT_LIMIT_BYTES + 1))
    assert "is larger than" in await use("str_replace", path="big", old="x", new="y")


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("rm", {}, "error: there is no tool 'rm'; there are bash, read_file, write_file, str_replace"),
        ("bash", {}, "error: `command` is missing or is not text"),
        ("bash", {"command": 3}, "error: `command` is missing or is not text"),
        ("bash", {"command": "echo \0"}, "error: `command` holds a NUL character"),
        ("bash", {"command": "true", "timeout_s": 0}, "error: `timeout_s` is not a number above 0"),
        ("bash", {"command": "true", "timeout_s": True}, "error: `timeout_s` is not a number above 0"),
        ("bash", {"command": "true", "timeout_s": "9"}, "error: `timeout_s` is not a number above 0"),
        ("read_file", {"path": "f", "lines": -1}, "error: cat: f: No such file or directory"),
        ("write_file", {"path": "f"}, "error: `content` is missing or is not text"),
        ("str_replace", {"path": "f", "old": "x"}, "error: `new` is missing or is not text"),
    ],
)
@pytest.mark.fault("agent-tool-misused")
async def test_what_the_model_got_wrong_is_told(
    name: str, arguments: dict[str, Any], told: str, use: Use
) -> None:
    assert await use(name, **arguments) == told


async def test_arguments_that_could_not_be_read_run_nothing(use: Use, sandbox: Any) -> None:
    assert (
        await use("bash", problem="the arguments are not valid JSON")
        == "error: the arguments are not valid JSON"
    )
    assert sandbox.commands == []


@pytest.mark.parametrize(
    ("reason", "more", "told"),
    [
        (EndReason.OUT_OF_MEMORY, {}, "[ended: out of memory]"),
        (EndReason.SIGNAL, {"signal": 9}, "[ended by signal 9]"),
        (EndReason.START_FAILED, {"message": "no such user"}, "[start_failed: no such user]"),
        (EndReason.CANCELLED, {"message": "by a client"}, "[cancelled: by a client]"),
    ],
)
async def test_every_ending_is_told(
    reason: EndReason, more: dict[str, Any], told: str, use: Use, sandbox: Any
) -> None:
    sandbox.answer = lambda command: Completed(id=command.id, reason=reason, **more)
    assert await use("bash", command="x") == told
    assert await use("write_file", path="f", content="x") == f"error: {told}"


async def test_a_lost_sandbox_is_not_the_models_business(use: Use, sandbox: Any) -> None:
    sandbox.answer = lambda command: Completed(
        id=command.id, reason=EndReason.SANDBOX_LOST, message="it is gone"
    )
    with pytest.raises(SandboxLost, match="it is gone"):
        await use("bash", command="x")
    with pytest.raises(SandboxLost):
        await use("write_file", path="f", content="x")


async def test_a_command_that_the_sandbox_refuses_is_told(use: Use, sandbox: Any) -> None:
    def refuse(command: Command) -> Completed:
        raise InvalidInput("the command is too long")

    sandbox.answer = refuse
    assert await use("bash", command="x") == "error: the command is too long"
