"""The system call filter that every native sandbox starts with, as a program for the kernel.

``seccomp.json`` holds the calls; this module turns it into classic BPF for one architecture: a binary
search over ranges of call numbers (seccomp(2); the instructions are those of linux/filter.h). Foreign
architectures and x32 are refused. Must never allow a call that the data does not name.
"""

from __future__ import annotations

import errno
import json
import struct
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise

_ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32_BIT = 0x40000000

_LOAD, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENT_OFFSET = 0, 4, 16

ALLOW = 0x7FFF0000
KILL = 0x80000000
_ERRNO = 0x00050000
REFUSE = _ERRNO | errno.EPERM
UNKNOWN = _ERRNO | errno.ENOSYS

_CLONE_NEWUSER = 0x10000000
_AF_VSOCK = 40
# plain Linux, two flags that emulators use, and "tell me"; as the common engines allow it
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One classic BPF instruction."""

    code: int
    value: int
    if_true: int = 0
    if_false: int = 0

    def pack(self) -> bytes:
        """Return ``struct sock_filter``."""
        return struct.pack("<HBBI", self.code, self.if_true, self.if_false, self.value)


Block = list[Instruction]


def _return(action: int) -> Block:
    return [Instruction(_RETURN, action)]


def _argument(index: int) -> Instruction:
    return Instruction(_LOAD, _ARGUMENT_OFFSET + 8 * index)


def _conditions() -> dict[str, Block]:
    """Return, for calls that are allowed with some arguments only, the block that decides."""
    no_user_namespace = [
        _argument(0),
        Instruction(_ANY_BIT, _CLONE_NEWUSER, if_false=1),
        *_return(REFUSE),
        *_return(ALLOW),
    ]
    personality = [_argument(0)]
    for index, value in enumerate(_PERSONALITIES):
        personality.append(Instruction(_EQUAL, value, if_true=len(_PERSONALITIES) - index))
    return {
        "personality": [*personality, *_return(REFUSE), *_return(ALLOW)],
        "clone": no_user_namespace,
        "unshare": no_user_namespace,
        # virtual machines offer their control interfaces there
        "socket": [
            _argument(0),
            Instruction(_EQUAL, _AF_VSOCK, if_false=1),
            *_return(REFUSE),
            *_return(ALLOW),
        ],
    }


_EXTRA_NUMBERS = {"personality": (135, 92)}


def _outcomes(arch_index: int) -> dict[int, Block]:
    """Return what to do for each call number that is known."""
    data = json.loads(resources.files(__package__).joinpath("seccomp.json").read_text())
    conditions = _conditions()
    outcomes: dict[int, Block] = {}
    for key, action in (("allow", ALLOW), ("refuse", REFUSE)):
        for name, numbers in data[key].items():
            if numbers[arch_index] is not None:
                outcomes[numbers[arch_index]] = conditions.get(name, _return(action))
    for name, numbers in _EXTRA_NUMBERS.items():
        outcomes[numbers[arch_index]] = conditions[name]
    return outcomes


def _intervals(outcomes: dict[int, Block]) -> list[tuple[int, Block]]:
    """Return (first number, what to do) of maximal runs, in ascending order, from 0 to the end."""
    unknown = _return(UNKNOWN)
    runs: list[tuple[int, Block]] = [(0, unknown)]
    for number in range(max(outcomes) + 2):
        block = outcomes.get(number, unknown)
        if block != runs[-1][1]:
            runs.append((number, block))
    if len(runs) > 1 and runs[1][0] == 0:
        del runs[0]
    return runs


def _search(runs: list[tuple[int, Block]]) -> Block:
    """Return a binary search: the call's number is in the accumulator."""
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    low, high = _search(runs[:middle]), _search(runs[middle:])
    if len(low) <= 255:
        return [Instruction(_AT_LEAST, runs[middle][0], if_true=len(low)), *low, *high]
    far = Instruction(_JUMP, len(low))
    return [Instruction(_AT_LEAST, runs[middle][0], if_false=1), far, *low, *high]


def instructions(arch: str) -> Block:
    """Return the program for ``arch`` (as ``uname -m`` says it); KeyError if it is not supported."""
    index, audit_arch = _ARCHES[arch]
    runs = _intervals(_outcomes(index))
    if any(first >= second for (first, _), (second, _) in pairwise(runs)):
        raise AssertionError(runs)
    program = [
        Instruction(_LOAD, _ARCH_OFFSET),
        Instruction(_EQUAL, audit_arch, if_true=1),
        *_return(KILL),
        Instruction(_LOAD, _NUMBER_OFFSET),
    ]
    if arch == "x86_64":
        program += [Instruction(_AT_LEAST, _X32_BIT, if_false=1), *_return(UNKNOWN)]
    return program + _search(runs)


def program(arch: str) -> bytes:
    """Return the program as the kernel takes it: an array of ``struct sock_filter``."""
    return b"".join(instruction.pack() for instruction in instructions(arch))
