"""The system call filter, run by an interpreter of classic BPF."""

from __future__ import annotations

import errno
import json
import struct
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.sandbox.native import seccomp
from cloche.sandbox.native.seccomp import ALLOW, KILL, REFUSE, UNKNOWN

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
DATA = json.loads(resources.files("cloche.sandbox.native").joinpath("seccomp.json").read_text())
CONDITIONAL = {"clone", "unshare", "socket"}


def run(arch: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """Interpret the program as the kernel would (struct seccomp_data) and return its verdict."""
    fields = [*arguments, *([0] * (6 - len(arguments)))]
    data = struct.pack(
        "<iIQ6Q", number - (1 << 32) if number >> 31 else number, audit or AUDIT[arch], 0, *fields
    )
    program = list(struct.iter_unpack("<HBBI", seccomp.program(arch)))
    accumulator = at = steps = 0
    while True:
        code, if_true, if_false, value = program[at]
        at, steps = at + 1, steps + 1
        assert steps < 64
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x05:
                at += value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case 0x06:
                return value
            case _:
                raise AssertionError(code)


def numbers(kind: str, arch: str) -> list[tuple[str, int]]:
    index = list(AUDIT).index(arch)
    return [(name, pair[index]) for name, pair in DATA[kind].items() if pair[index] is not None]


@pytest.mark.parametrize("arch", AUDIT)
def test_every_named_call_gets_its_verdict(arch: str) -> None:
    for name, number in numbers("allow", arch):
        assert run(arch, number) == ALLOW, name
    for name, number in numbers("refuse", arch):
        assert run(arch, number) == REFUSE, name


@pytest.mark.parametrize("arch", AUDIT)
@given(number=st.integers(0, 0x3FFFFFFF))
def test_a_call_without_a_name_does_not_exist(arch: str, number: int) -> None:
    named = {value for kind in ("allow", "refuse") for _, value in numbers(kind, arch)}
    named.add({"x86_64": 135, "aarch64": 92}[arch])
    if number not in named:
        assert run(arch, number) == UNKNOWN


@pytest.mark.parametrize("arch", AUDIT)
@given(audit=st.integers(1, 0xFFFFFFFF), number=st.integers(0, 500))
def test_a_foreign_architecture_is_killed(arch: str, audit: int, number: int) -> None:
    if audit != AUDIT[arch]:
        assert run(arch, number, audit=audit) == KILL


@given(number=st.integers(0x40000000, 0xFFFFFFFF))
def test_x32_does_not_exist(number: int) -> None:
    assert run("x86_64", number) == UNKNOWN


@pytest.mark.parametrize(
    ("arch", "clone", "unshare", "socket"), [("x86_64", 56, 272, 41), ("aarch64", 220, 97, 198)]
)
def test_some_calls_depend_on_their_arguments(arch: str, clone: int, unshare: int, socket: int) -> None:
    new_user, new_net, vsock = 0x10000000, 0x40000000, 40
    for number in (clone, unshare):
        assert run(arch, number, 17) == ALLOW
        assert run(arch, number, new_net) == ALLOW  # by capability, not by filter
        assert run(arch, number, new_user | 17) == REFUSE
    assert [run(arch, socket, family) for family in (1, 2, 10, 16, vsock)] == [ALLOW] * 4 + [REFUSE]


@pytest.mark.parametrize(("arch", "number"), [("x86_64", 135), ("aarch64", 92)])
def test_personality_allows_the_harmless_ones(arch: str, number: int) -> None:
    for value in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF):
        assert run(arch, number, value) == ALLOW
    for value in (1, 0x40000, 0x0400000, 0x20001):
        assert run(arch, number, value) == REFUSE


def test_what_must_never_be_allowed() -> None:
    for name in ("bpf", "keyctl", "add_key", "userfaultfd", "kexec_load", "init_module", "setns", "swapon"):
        assert name in DATA["refuse"]
    for name in ("io_uring_setup", "io_uring_enter", "reboot", "iopl", "quotactl", "mount_setattr_by_nobody"):
        assert name not in DATA["allow"]
    assert not set(DATA["allow"]) & set(DATA["refuse"])


def test_the_program_fits_the_kernels_limit_and_says_what_it_means() -> None:
    for arch in AUDIT:
        assert len(seccomp.program(arch)) % 8 == 0
        assert len(seccomp.instructions(arch)) < 4096
    assert REFUSE & 0xFFFF == errno.EPERM
    assert UNKNOWN & 0xFFFF == errno.ENOSYS
    with pytest.raises(KeyError):
        seccomp.program("m68k")
