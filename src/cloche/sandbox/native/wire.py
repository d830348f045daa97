"""The numbers on the spawner's socket: those of ``guest/spawner/spawner.h``. A test compares the two.

Frames and fields are put together as on the guest's socket (``cloche.sandbox.guest.frames``). Must never do
I/O.
"""

from __future__ import annotations

from enum import IntEnum

VERSION = 1


class Request(IntEnum):
    """What a client asks for."""

    HELLO = 1
    CREATE = 2
    DELETE = 3
    STATUS = 4
    SHUTDOWN = 5
    PAUSE = 6
    RESUME = 7
    ATTACH = 10


class Answer(IntEnum):
    """What the spawner answers: exactly one of these per request."""

    REPLY = 50
    ERROR = 51


class Tag(IntEnum):
    """What a field is."""

    VERSION = 1
    ID = 2
    RECORD = 3
    LAYER = 4
    HOSTNAME = 5
    HOSTS = 6
    RESOLV = 7
    MEMORY = 8
    CPU_US = 9
    PIDS = 10
    NETWORK = 11
    ARG = 12
    ENV = 13
    POOL = 14
    SHM = 15
    VOLUME_SOURCE = 16
    VOLUME_TARGET = 17
    TTL_MS = 18
    DISK = 25
    DISK_TMPFS = 26
    CODE = 30
    MESSAGE = 31
    ERRNO = 32
    PID = 33
    START_TIME = 34
    BASE_ID = 35
    EXISTED = 36
    LIVE = 37
    ADDRESS = 38
    ENFORCED = 39
