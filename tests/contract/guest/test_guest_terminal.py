"""Terminals: size, resize, ^C, ^D, job control, hang-up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.handle import Chunk, Sandbox
from cloche.sandbox.spec import Command, EndReason, Terminal


async def _until(output: AsyncIterator[Chunk], words: bytes) -> bytes:
    """Read until ``words`` were seen; the test's time limit is the bound."""
    got = b""
    while words not in got:
        got += (await anext(output)).data
    return got


async def test_it_is_a_terminal_of_that_size(sandbox: Sandbox) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM && tty"
    done = await sandbox.run(Command(shell=script, terminal=Terminal(columns=123, rows=45)))
    size, term, name = done.stdout.text.splitlines()
    assert (size, term) == ("45 123", "xterm")
    assert name.startswith("/dev/pts/")
    assert done.stderr.total_bytes == 0


async def test_another_user_owns_it(sandbox: Sandbox) -> None:
    done = await sandbox.run(
        Command(shell="echo x > $(tty) && stat -c %U $(tty)", user="nobody", terminal=Terminal())
    )
    assert done.stdout.text.split() == ["x", "nobody"]


async def test_resize_is_told_by_sigwinch(sandbox: Sandbox) -> None:
    script = "trap 'stty size; exit 0' WINCH; echo on; while :; do sleep 0.01; done"
    process = await sandbox.start(Command(shell=script, terminal=Terminal()))
    output = process.output()
    await _until(output, b"on")
    await process.resize(99, 33)
    await _until(output, b"33 99")
    assert (await process.wait()).exit_code == 0
    with pytest.raises(InvalidInput):
        await process.resize(1, 1)


async def test_control_c_interrupts_the_foreground(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(shell="echo on; exec sleep 100", terminal=Terminal()))
    output = process.output()
    await _until(output, b"on")
    await process.write(b"\x03")
    done = await process.wait()
    assert (done.reason, done.signal) == (EndReason.SIGNAL, 2)


async def test_closing_the_input_is_control_d(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(argv=("cat",), terminal=Terminal()))
    output = process.output()
    await process.write(b"line\n")
    await _until(output, b"line\r\nline")
    await process.close_stdin()
    assert (await process.wait()).ok


async def test_a_program_may_close_the_terminal_and_open_it_again(sandbox: Sandbox) -> None:
    script = "echo one; exec 0<&- 1>&- 2>&-; sleep 0.3; exec >/dev/tty; echo two; sleep 0.2; exit 6"
    done = await sandbox.run(Command(shell=script, terminal=Terminal()))
    assert (done.reason, done.exit_code) == (EndReason.EXIT, 6)
    assert done.stdout.text.split() == ["one", "two"]


async def test_an_interactive_shell(sandbox: Sandbox) -> None:
    process = await sandbox.start(
        Command(argv=("bash", "--norc", "-i"), terminal=Terminal(), env={"PS1": "> "})
    )
    output = process.output()
    await process.write(b"sh -c 'echo $((6*7)); exec sleep 100'\n")
    await _until(output, b"42")
    await process.write(b"\x1a")  # job control works: the shell has the terminal
    await _until(output, b"Stopped")
    await process.write(b"kill -9 %1\nexit 3\nexit 3\n")
    assert (await process.wait()).exit_code == 3


async def test_cancelling_an_interactive_shell_hangs_up(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(argv=("bash", "--norc", "-i"), terminal=Terminal(), grace_s=60))
    await anext(process.output())
    done = await process.cancel()
    assert done.reason is EndReason.CANCELLED
    assert done.signal != 9  # it was hung up on, long before its grace time was over


async def test_a_large_paste(sandbox: Sandbox) -> None:
    script = "stty raw -echo; echo on; head -c 200000 | sha256sum"
    process = await sandbox.start(Command(shell=script, terminal=Terminal()))
    output = process.output()
    await _until(output, b"on")
    await process.write(b"x" * 200_000)
    await _until(output, b"  -")
    assert (await process.wait()).ok


async def test_resizing_what_has_no_terminal(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(argv=("sleep", "100")))
    with pytest.raises(InvalidInput, match="no terminal"):
        await process.resize(1, 1)
