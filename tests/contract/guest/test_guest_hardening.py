"""What a command may do, and what it may not do to the guest."""

# ruff: noqa: ASYNC220, ASYNC240  # a test may block its own loop

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest

from cloche.sandbox.guest.frames import PROTOCOL_VERSION, FrameReader, Tag, Type, encode, encode_fields
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, EndReason

DOCKER_CAPS = "a80425fb"
ATTEMPT = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, number, *arguments):
    result = libc.syscall(number, *arguments)
    print(name, "allowed" if result >= 0 else os.strerror(ctypes.get_errno()))
machine = os.uname().machine
keyctl, setns = {"x86_64": (250, 308), "aarch64": (219, 268)}[machine]
attempt("keyctl", keyctl, 0, -3, 1)
attempt("setns", setns, os.open("/proc/self/ns/uts", os.O_RDONLY), 0)
attempt("fsopen", 430, b"tmpfs", 0)
attempt("io_uring", 425, 1, 0)
attempt("clone3", 435, 0, 0)
attempt("pidfd_getfd", 438, 0, 0, 0)
"""


async def test_commands_have_these_capabilities_and_no_more(sandbox: Sandbox) -> None:
    for user, effective in (("root", DOCKER_CAPS), ("nobody", "0")):
        done = await sandbox.run(Command(shell="grep Cap /proc/self/status", user=user))
        caps = dict(re.findall(r"Cap(\w+):\s+0*([0-9a-f]+)", done.stdout.text))
        assert caps == {"Inh": "0", "Prm": effective, "Eff": effective, "Bnd": DOCKER_CAPS, "Amb": "0"}


async def test_no_new_user_namespace_and_no_mount(sandbox: Sandbox) -> None:
    for argv in (("unshare", "-U", "true"), ("unshare", "-m", "true"), ("mount", "-t", "tmpfs", "x", "/mnt")):
        done = await sandbox.run(Command(argv=argv))
        assert done.exit_code not in {0, None}, argv
    done = await sandbox.run(Command(argv=("unshare", "-U", "true"), user="nobody"))
    assert "Operation not permitted" in done.stderr.text


async def test_system_calls_that_are_refused(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(argv=("python3", "-c", ATTEMPT)))
    answers = dict(line.split(" ", 1) for line in done.stdout.text.splitlines())
    refused = "Operation not permitted"
    assert answers.pop("clone3") == "Function not implemented"
    assert answers == dict.fromkeys(("keyctl", "setns", "fsopen", "io_uring", "pidfd_getfd"), refused)


async def test_without_hardening_a_namespace_can_be_had(lone) -> None:
    sandbox = await lone.sandbox()
    assert (await sandbox.run(Command(argv=("unshare", "-U", "true")))).ok


async def test_threads_and_forks_work_under_the_filter(sandbox: Sandbox) -> None:
    script = "import threading; t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()"
    done = await sandbox.run(Command(argv=("python3", "-c", script)))
    assert done.stdout.data == b"thread\n"


async def test_nothing_of_the_guest_is_inherited(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell="ls /proc/$$/fd"))
    assert set(done.stdout.text.split()) <= {"0", "1", "2"}


async def test_the_guest_cannot_be_looked_into(sandbox: Sandbox) -> None:
    for path in ("fd/3", "environ", "mem", "maps"):
        done = await sandbox.run(Command(shell=f"head -c1 /proc/1/{path}"))
        assert not done.ok, path
        assert re.search("Permission denied|cannot open|Operation not permitted", done.stderr.text), path


async def test_commands_are_killed_before_the_guest_when_memory_is_short(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell="cat /proc/self/oom_score_adj /proc/1/oom_score_adj"))
    assert done.stdout.text.split() == ["500", "0"]


async def test_signal_masks_and_dispositions_are_fresh(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell="grep -E 'Sig(Blk|Ign)' /proc/self/status"))
    assert {line.split()[1].strip("0") for line in done.stdout.text.splitlines()} == {""}


async def test_no_new_privileges_is_an_option(make_guest) -> None:
    for options, value in (((), "0"), (("--no-new-privs",), "1")):
        sandbox = await make_guest(*options).sandbox()
        done = await sandbox.run(Command(shell="grep NoNewPrivs /proc/self/status"))
        assert done.stdout.text.split()[1] == value


async def test_limits_of_resources_are_left_alone(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell="cat /proc/self/limits"))
    own = Path("/proc/self/limits").read_text()
    assert done.stdout.text == own


@pytest.mark.fault("sigterm-to-the-guest")
async def test_signals_from_outside_do_not_end_the_guest(make_guest) -> None:
    guest = make_guest(tree="plain")
    sandbox = await guest.sandbox()
    for number in (1, 2, 3, 13, 15):
        guest.process.send_signal(number)
    assert (await sandbox.run(Command(argv=("true",)))).ok


async def test_idle_memory_is_small(make_guest) -> None:
    guest = make_guest(tree="plain")
    connection = await guest.connect()
    rollup = Path(f"/proc/{guest.process.pid}/smaps_rollup").read_text()
    dirty_kib = int(rollup.split("Private_Dirty:")[1].split()[0])
    mapped = Path(f"/proc/{guest.process.pid}/exe").readlink()
    assert connection.tree == "keeper"
    if "asan" not in mapped.name:
        assert dirty_kib <= 64


def test_the_command_line_is_checked(guest_program: str) -> None:
    for options in ([], ["--listen-fd=x"], ["--ttl-ms=-1", "--stdio"], ["--what"]):
        done = subprocess.run(
            [guest_program, *options], capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 2
        assert done.stderr.startswith(b"cloche-guest: ")
    done = subprocess.run([guest_program, "--protocol-version"], capture_output=True, check=True)
    assert done.stdout == b"1\n"


async def test_a_cgroup_that_cannot_be_had_is_no_obstacle(make_guest) -> None:
    """``--cgroup`` in the host's own root cgroup: the guest must not touch what is not its own."""
    guest = make_guest("--cgroup", tree="plain")
    connection = await guest.connect()
    sandbox = await guest.sandbox()
    done = await sandbox.run(Command(argv=("sleep", "100"), timeout_s=0.1, grace_s=0.1))
    assert done.reason is EndReason.TIMEOUT
    assert connection.tree in {"keeper", "cgroup"}


async def test_the_protocol_over_standard_streams(guest_program: str) -> None:
    """The second transport: one connection on 0 and 1, which no command gets."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen([guest_program, "--stdio"], stdin=theirs, stdout=theirs)
    theirs.close()
    ours.sendall(
        encode(Type.HELLO, 1, encode_fields([(Tag.VERSION, PROTOCOL_VERSION)]))
        + encode(Type.START, 2, encode_fields([(Tag.COMMAND, "c"), (Tag.SHELL, "echo over")]))
        + encode(Type.OUTPUT, 3, encode_fields([(Tag.COMMAND, "c"), (Tag.CREDIT, 1000)]))
        + encode(Type.WAIT, 4, encode_fields([(Tag.COMMAND, "c")]))
    )
    reader, frames = FrameReader(), []
    ours.settimeout(20)
    while not any(request_id == 4 for _, request_id, _ in frames):
        frames += reader.feed(ours.recv(65536))
    ours.close()
    process.kill()
    process.wait()
    assert (Type.DATA, 3, bytes(8) + b"over\n") in frames
    assert [request_id for kind, request_id, _ in frames if kind == Type.REPLY] in (
        [1, 2, 3, 4],
        [1, 2, 4, 3],
    )
