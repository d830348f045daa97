"""Ending commands: the whole tree, however it hides; what lives on, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, EndReason

# a leader with a child, a session of its own, a double fork and a process that heeds no TERM
HIDING = r"""
sleep 1001 &
setsid sleep 1002 &
setsid sh -c '(setsid sleep 1003 &) ; exec true' &
(trap '' TERM HUP INT; while :; do sleep 1004; done) &
python3 -c '
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.environ.clear()
        os.closerange(0, 64)
        os.execv("/bin/sleep", ["sleep", "1005"])
    os._exit(0)
os.wait()
'
echo ready
wait
"""


async def _hide(sandbox: Sandbox, **more: object) -> None:
    process = await sandbox.start(Command(id="hiding", shell=HIDING, **more))  # type: ignore[arg-type]
    async for chunk in process.output():
        assert chunk.data == b"ready\n"
        break


def _sleepers(lines: list[str]) -> list[str]:
    return sorted(line for line in lines if re.fullmatch(r"sleep 100\d", line))


@pytest.mark.fault("command-tree-hides")
async def test_a_timeout_ends_the_whole_tree(sandbox: Sandbox, inside) -> None:
    await _hide(sandbox, timeout_s=1.0, grace_s=0.3)
    assert len(_sleepers(await inside(sandbox))) == 5
    done = await sandbox.process("hiding").wait()
    assert done.reason is EndReason.TIMEOUT
    assert _sleepers(await inside(sandbox)) == []


async def test_a_cancel_ends_the_whole_tree(sandbox: Sandbox, inside) -> None:
    await _hide(sandbox, grace_s=0.2)
    done = await sandbox.process("hiding").cancel()
    assert done.reason is EndReason.CANCELLED
    assert _sleepers(await inside(sandbox)) == []


async def test_no_grace_is_a_kill_at_once(sandbox: Sandbox, inside) -> None:
    await _hide(sandbox, grace_s=0)
    done = await sandbox.process("hiding").cancel()
    assert (done.reason, done.signal) == (EndReason.CANCELLED, signal.SIGKILL)
    assert _sleepers(await inside(sandbox)) == []


async def test_the_grace_time_lets_it_clean_up(sandbox: Sandbox) -> None:
    script = "trap 'sleep 0.2; echo cleaned; exit 5' TERM; echo on; while :; do sleep 0.01; done"
    done = await sandbox.run(Command(shell=script, timeout_s=0.3, grace_s=30))
    assert (done.reason, done.exit_code) == (EndReason.TIMEOUT, 5)
    assert done.stdout.data == b"on\ncleaned\n"


async def test_a_child_has_the_grace_time_after_its_leader(sandbox: Sandbox, tmp_path: Path) -> None:
    mark = tmp_path / "cleaned"
    child = f"trap 'sleep 0.3; touch {mark}; exit' TERM; while :; do sleep 0.01; done"
    done = await sandbox.run(Command(shell=f"({child}) & exec sleep 100", timeout_s=0.3, grace_s=30))
    assert (done.reason, done.signal) == (EndReason.TIMEOUT, signal.SIGTERM)
    assert mark.exists()


async def test_a_stopped_tree_is_ended(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell="kill -STOP $$", timeout_s=0.3, grace_s=0.5))
    assert done.reason is EndReason.TIMEOUT


async def test_cancelling_the_task_ends_the_tree_first(sandbox: Sandbox, inside) -> None:
    started = asyncio.Event()
    task = asyncio.create_task(
        sandbox.run(Command(shell=HIDING, grace_s=0.2), on_output=lambda _: started.set())
    )
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert _sleepers(await inside(sandbox)) == []
    assert next(status.running for status in await sandbox.commands()) is False


async def test_a_failing_callback_ends_the_tree_too(sandbox: Sandbox, inside) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await sandbox.run(Command(shell=HIDING, grace_s=0.1), on_output=fail)
    assert _sleepers(await inside(sandbox)) == []


async def test_a_command_is_over_when_its_leader_is(sandbox: Sandbox, inside) -> None:
    done = await sandbox.run(Command(shell="sleep 1001 & echo started"))
    assert (done.reason, done.stdout.data) == (EndReason.EXIT, b"started\n")
    assert _sleepers(await inside(sandbox)) == ["sleep 1001"]


async def test_a_child_that_lives_on_can_go_on_writing(sandbox: Sandbox, tmp_path: Path, until) -> None:
    mark = tmp_path / "wrote"
    child = f"sleep 1.5; head -c 1000000 /dev/zero && touch {mark}"
    done = await sandbox.run(Command(shell=f"({child}) & echo started"))
    assert done.stdout.data == b"started\n"
    assert not mark.exists()

    async def wrote() -> bool:
        return mark.exists()

    await until(wrote)


async def test_what_children_write_soon_is_kept(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell="(sleep 0.05; echo late; sleep 100) & echo early"))
    assert done.stdout.data == b"early\nlate\n"


async def test_a_chattering_child_does_not_hold_the_end_up(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell="(while :; do echo x; sleep 0.01; done) & echo first"))
    assert done.stdout.data.startswith(b"first\n")
    await sandbox.kill_all()


async def test_cancelling_what_is_over_ends_what_lives_on(sandbox: Sandbox, inside, until) -> None:
    await sandbox.run(Command(id="left", shell="setsid sleep 1001 & exit 0"))
    done = await sandbox.process("left").cancel()
    assert done.reason is EndReason.EXIT

    async def gone() -> bool:
        return _sleepers(await inside(sandbox)) == []

    await until(gone)


async def test_kill_all_leaves_nothing_but_the_guest(sandbox: Sandbox, inside) -> None:
    await _hide(sandbox)
    await sandbox.run(Command(shell="setsid sleep 1006 & (setsid sleep 1007 &)"))
    await sandbox.kill_all()
    done = await sandbox.process("hiding").wait()
    assert done.reason is EndReason.CANCELLED
    lines = [line for line in await inside(sandbox) if "keeper" not in line and "/proc/" not in line]
    assert _sleepers(lines) == []
    # pid 1, and what lists: a shell and its helpers
    assert sum("--listen-fd" in line for line in lines) >= 1


async def test_kill_all_with_nothing_there(sandbox: Sandbox) -> None:
    await sandbox.kill_all()
    await sandbox.kill_all()


@pytest.mark.fault("fork-bomb-in-command")
async def test_a_fork_bomb_is_ended(sandbox: Sandbox, inside) -> None:
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    limited = f"ulimit -p 200 && exec python3 -c '{bomb}'"  # as the sandbox's own pids limit would
    done = await sandbox.run(Command(shell=limited, user="4242", timeout_s=0.5, grace_s=0.1))
    assert done.reason is EndReason.TIMEOUT
    assert not [line for line in await inside(sandbox) if "os.fork()" in line]


async def test_orphans_are_reaped(sandbox: Sandbox, until) -> None:
    await sandbox.run(Command(shell="for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.05' &) ; done"))

    async def none() -> bool:
        done = await sandbox.run(Command(shell="cat /proc/[0-9]*/stat 2>/dev/null | grep -c ' Z ' || true"))
        return done.stdout.text.strip() == "0"

    await until(none)


async def test_signals_go_to_the_group(sandbox: Sandbox) -> None:
    script = "trap 'echo got; exit 4' USR1; echo on; while :; do sleep 0.01; done"
    process = await sandbox.start(Command(shell=script))
    output = process.output()
    await anext(output)
    await output.aclose()
    await process.signal(signal.SIGUSR1)
    done = await process.wait()
    assert (done.exit_code, done.stdout.data) == (4, b"on\ngot\n")
    with pytest.raises(InvalidInput):
        await process.signal(signal.SIGUSR1)


async def test_a_kill_that_was_asked_for_is_a_signal(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(argv=("sleep", "100")))
    await process.signal(signal.SIGKILL)
    done = await process.wait()
    assert (done.reason, done.signal) == (EndReason.SIGNAL, signal.SIGKILL)


@pytest.mark.fault("memory-hog-in-command")
@pytest.mark.parametrize(
    ("script", "kills", "reason"),
    [
        ("kill -KILL $$", 1, EndReason.OUT_OF_MEMORY),
        ("sh -c 'kill -KILL $$; true'; exit $?", 1, EndReason.OUT_OF_MEMORY),
        ("kill -KILL $$", 0, EndReason.SIGNAL),
        ("exit 1", 1, EndReason.EXIT),
    ],
)
async def test_the_drivers_memory_events_refine_the_reason(
    lone, script: str, kills: int, reason: EndReason
) -> None:
    count = 0

    async def oom_kills() -> int:
        return count

    sandbox = await lone.sandbox(oom_kills=oom_kills)
    count = kills
    assert (await sandbox.run(Command(shell=script))).reason is reason


async def test_killing_everything_from_inside_leaves_the_guest(sandbox: Sandbox) -> None:
    """The workload's root cannot end pid 1, and a keeper that it killed is no end of the service."""
    done = await sandbox.run(Command(shell="kill -9 1; kill -TERM 1; kill -9 -1; echo alive", timeout_s=20))
    assert done.reason in {EndReason.EXIT, EndReason.SIGNAL}
    assert (await sandbox.run(Command(argv=("true",)))).ok
    with contextlib.suppress(InvalidInput):
        await sandbox.process(done.id).cancel()
