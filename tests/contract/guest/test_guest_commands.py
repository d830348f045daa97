"""Starting commands: arguments, environment, folder, user, input, and how each end is told."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput, NotFound
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, EndReason, ImageConfig, Lease, SandboxSpec


async def test_output_and_exit_code(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell="echo out; echo err >&2; exit 7"))
    assert (done.reason, done.exit_code, done.signal) == (EndReason.EXIT, 7, None)
    assert (done.stdout.data, done.stderr.data) == (b"out\n", b"err\n")
    assert not done.ok


async def test_arguments_are_passed_as_they_are(sandbox: Sandbox) -> None:
    arguments = ("a b", "", "$HOME", "é\n", "\udcff")
    done = await sandbox.run(Command(argv=("printf", "%s|", *arguments)))
    assert done.stdout.data == "a b||$HOME|é\n|".encode() + b"\xff|"


async def test_a_signal_is_told(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell="kill -USR1 $$"))
    assert (done.reason, done.exit_code, done.signal) == (EndReason.SIGNAL, None, 10)


async def test_usage_is_told(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(argv=("python3", "-c", "x = bytearray(50_000_000); sum(range(10**6))")))
    assert done.cpu_s > 0
    assert (done.peak_memory_bytes or 0) > 40_000_000
    assert done.duration_s >= done.cpu_s * 0.5


async def test_environment_is_layered(lone, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await lone.sandbox(
        spec=SandboxSpec(env={"B": "spec", "C": "spec"}, lease=Lease(ttl_s=None)),
        config=ImageConfig(env={"A": "image", "B": "image"}),
    )
    done = await sandbox.run(Command(shell="echo $A $B $C $D; echo $PATH; echo $HOME", env={"C": "command"}))
    first, path, home = done.stdout.text.splitlines()
    assert first == "image spec command"
    assert path.startswith("/usr/local/sbin:")
    assert home == "/root"


async def test_the_folder_is_the_images_then_the_specs_then_the_commands(lone, tmp_path: Path) -> None:
    plain = await lone.sandbox(config=ImageConfig(workdir="/usr"))
    assert (await plain.run(Command(argv=("pwd",)))).stdout.data == b"/usr\n"
    own = await lone.sandbox(
        config=ImageConfig(workdir="/usr"), spec=SandboxSpec(workdir="/etc", lease=Lease(ttl_s=None))
    )
    assert (await own.run(Command(argv=("pwd",)))).stdout.data == b"/etc\n"
    done = await own.run(Command(argv=("pwd",), cwd=str(tmp_path)))
    assert done.stdout.text.strip() == str(tmp_path)


@pytest.mark.parametrize(
    ("user", "answer"),
    [
        ("", "0 0 0"),
        ("nobody", "65534 65534 65534"),
        ("65534", "65534 65534 65534"),
        ("nobody:daemon", "65534 1 1"),
        ("12345:54321", "12345 54321 54321"),
        ("12345", "12345 0 0"),
    ],
)
async def test_users(sandbox: Sandbox, user: str, answer: str) -> None:
    done = await sandbox.run(Command(shell="echo $(id -u) $(id -g) $(id -G)", user=user))
    assert done.stdout.text.strip() == answer


async def test_home_is_the_users(sandbox: Sandbox) -> None:
    script = "echo $HOME"
    assert (await sandbox.run(Command(shell=script, user="daemon"))).stdout.data == b"/usr/sbin\n"
    assert (await sandbox.run(Command(shell=script, user="4711"))).stdout.data == b"/\n"
    set_home = Command(shell=script, user="daemon", env={"HOME": "/mine"})
    assert (await sandbox.run(set_home)).stdout.data == b"/mine\n"


async def test_another_user_can_open_its_streams_anew(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell="echo one > /dev/stdout; echo two > /dev/stderr", user="nobody"))
    assert (done.stdout.data, done.stderr.data) == (b"one\n", b"two\n")


@pytest.mark.fault("command-cannot-start")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (Command(argv=("no-such-program",)), "cannot run no-such-program: No such file"),
        (Command(argv=("/etc/passwd",)), "cannot run /etc/passwd: Permission denied"),
        (Command(argv=("true",), cwd="/no/such"), "cannot enter the folder /no/such: No such file"),
        (Command(argv=("true",), user="no-such-user"), "no such user"),
        (Command(argv=("true",), user="root:no-such-group"), "no such group"),
    ],
)
async def test_a_start_that_fails_says_why(sandbox: Sandbox, command: Command, words: str) -> None:
    done = await sandbox.run(command)
    assert done.reason is EndReason.START_FAILED
    assert done.exit_code is None
    assert words in done.message


@pytest.mark.parametrize(
    "command",
    [
        Command(),
        Command(argv=("true",), shell="true"),
        Command(argv=("a\0b",)),
        Command(argv=("true",), env={"A=B": "c"}),
        Command(argv=("true",), id="x" * 129),
        Command(argv=("true",), timeout_s=0),
        Command(argv=("x" * (2 << 20),)),
    ],
)
async def test_what_cannot_be_a_command_is_refused(sandbox: Sandbox, command: Command) -> None:
    with pytest.raises(InvalidInput):
        await sandbox.run(command)
    assert (await sandbox.run(Command(argv=("true",)))).ok


async def test_standard_input_is_given_and_closed(sandbox: Sandbox) -> None:
    data = os.urandom(3_000_000)
    done = await sandbox.run(Command(argv=("cat",), stdin=data, output_cap_bytes=8_000_000))
    assert done.stdout.data == data


async def test_no_input_is_an_empty_one(sandbox: Sandbox) -> None:
    assert (await sandbox.run(Command(argv=("cat",)))).ok
    assert (await sandbox.run(Command(argv=("cat",), stdin=b""))).ok


async def test_a_command_need_not_read_its_input(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(argv=("true",), stdin=bytes(5_000_000)))
    assert done.ok


async def test_interactive_input(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(argv=("cat",), interactive=True))
    output = process.output()
    for word in (b"one", b"two"):
        await process.write(word)
        assert (await anext(output)).data == word
    await process.close_stdin()
    assert (await process.wait()).ok
    with pytest.raises(InvalidInput):
        await process.write(b"three")
    await output.aclose()


async def test_a_second_client_can_write_too(guest) -> None:
    first, second = await guest.sandbox(), await guest.sandbox()
    process = await first.start(Command(argv=("cat",), interactive=True, id="shared"))
    await process.write(b"a")
    await second.process("shared").write(b"b")
    await first.ping()
    await second.ping()
    await second.process("shared").close_stdin()
    assert sorted((await process.wait()).stdout.text) == ["a", "b"]


async def test_the_same_id_attaches(guest, tmp_path: Path) -> None:
    first, second = await guest.sandbox(), await guest.sandbox()
    mark = tmp_path / "ran"
    command = Command(id="once", shell=f"echo x >> {mark}; sleep 0.1; echo done")
    results = await asyncio.gather(first.run(command), second.run(command), first.run(command))
    assert [result.stdout.data for result in results] == [b"done\n"] * 3
    assert (await second.run(command)).stdout.data == b"done\n"
    assert mark.read_text() == "x\n"


async def test_the_end_is_told_to_who_comes_later(guest) -> None:
    first, second = await guest.sandbox(), await guest.sandbox()
    await first.start(Command(id="early", shell="echo hello; exit 3"))
    await first.process("early").wait()
    done = await second.process("early").wait()
    assert (done.exit_code, done.stdout.data) == (3, b"hello\n")


@pytest.mark.parametrize(
    "call",
    [
        lambda process: process.wait(),
        lambda process: process.cancel(),
        lambda process: process.signal(1),
        lambda process: process.write(b"x"),
        lambda process: process.resize(1, 1),
        lambda process: anext(process.output()),
    ],
)
async def test_an_unknown_command(lone, call) -> None:
    sandbox = await lone.sandbox()
    with pytest.raises(NotFound):
        await call(sandbox.process("never-started"))


async def test_the_table_of_commands(sandbox: Sandbox) -> None:
    await sandbox.run(Command(id="over", shell="printf 12345; exit 2"))
    await sandbox.start(Command(id="on", argv=("sleep", "100")))
    table = {status.id: status for status in await sandbox.commands()}
    assert list(table) == ["on", "over"]
    assert table["on"].running
    assert table["on"].end is None
    assert (table["on"].pid or 0) > 1
    over = table["over"]
    assert not over.running
    assert over.stdout_bytes == 5
    assert over.end is not None
    assert (over.end.reason, over.end.exit_code) == (EndReason.EXIT, 2)


async def test_a_thousand_ended_commands_are_remembered_and_no_more(lone) -> None:
    sandbox = await lone.sandbox()
    slots = asyncio.Semaphore(32)

    async def one(number: int) -> None:
        async with slots:
            await sandbox.run(Command(id=f"n{number}", argv=("true",)))

    await asyncio.gather(*(one(number) for number in range(1100)))
    table = await sandbox.commands()
    assert len(table) == 1024
    with pytest.raises(NotFound):
        await sandbox.process("n0").wait()


async def test_many_at_once(sandbox: Sandbox) -> None:
    commands = [Command(shell=f"echo {n}; exit {n % 3}") for n in range(100)]
    results = await asyncio.gather(*(sandbox.run(command) for command in commands))
    assert [(r.stdout.text.strip(), r.exit_code) for r in results] == [(str(n), n % 3) for n in range(100)]


async def test_a_plain_process_that_is_not_pid_1_serves_too(make_guest) -> None:
    guest = make_guest(tree="plain")
    sandbox = await guest.sandbox()
    assert (
        await sandbox.run(Command(shell="sleep 100 & setsid sleep 100 & echo here"))
    ).stdout.data == b"here\n"
    await sandbox.kill_all()
    assert (await sandbox.run(Command(argv=("true",)))).ok
