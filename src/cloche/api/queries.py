"""What stands behind the ``?`` of the service's URLs: checked like bodies, refused like bodies.

Part of the wire contract, as :mod:`cloche.api.models` is. A field that is a tuple may be given more than
once. A path's bytes stand percent-encoded; those that are not UTF-8 come back as they went.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from cloche.api.models import AbsolutePath, Request, State


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError("a path begins with /")
    if "\0" in value or len(value) > 4096:
        raise ValueError("a path has at most 4096 characters, none of them NUL")
    return value


# checked by hand: pydantic refuses text that holds bytes which are not UTF-8, and file names may
Path = Annotated[
    str,
    PlainValidator(_path),
    WithJsonSchema({"type": "string", "pattern": "^/[^\\x00]*$", "maxLength": 4096}),
]
Mode = Annotated[str, Field(pattern=r"^[0-7]{1,4}$")]
"""Permission bits as octal text."""
Pair = Annotated[str, Field(pattern=r"^[^=]{1,63}=[\s\S]{0,256}$")]
"""A label and its value, ``name=value``."""
Wait = Annotated[float, Field(ge=0, le=3600)]
Offset = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]
Characters = Annotated[int, Field(ge=1, le=1000)]
Stream = Literal["stdout", "stderr"]


class NoQuery(Request):
    """Nothing may stand behind the ``?``."""


class ListQuery(Request):
    """Which sandboxes: with all of these labels and in one of these states; ``after`` continues a page."""

    label: tuple[Pair, ...] = ()
    state: tuple[State, ...] = ()
    after: Annotated[str, Field(max_length=256)] | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1000


class WaitQuery(Request):
    """Answered when the sandbox is in one of the states or has ended, after ``timeout_s`` in any case."""

    state: tuple[State, ...] = (State.READY,)
    timeout_s: Wait = 30.0


class EventsQuery(Request):
    """Events of these sandboxes, of those with all of these labels, or of all that are yours."""

    id: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...] = ()
    label: tuple[Pair, ...] = ()
    after: Offset | None = None
    """Only what came after this number; the header Last-Event-ID says the same and goes first."""


class CommandQuery(Request):
    """How long to wait for the command's end; absent: not at all."""

    wait_s: Wait | None = None


class OutputQuery(Request):
    """Which stream, from which byte; with ``follow`` until the command is over."""

    stream: Stream = "stdout"
    offset: Offset = 0
    follow: bool = True


class StdinQuery(Request):
    """``close``: nothing follows this."""

    close: bool = False


class TerminalQuery(Request):
    """The command of a new terminal: a shell line, or the login shell; and the terminal's size."""

    id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    shell: Annotated[str, Field(min_length=1, max_length=65_536)] | None = None
    user: str | None = None
    cwd: AbsolutePath | None = None
    columns: Characters = 80
    rows: Characters = 24


class AttachQuery(Request):
    """From which byte of its output on."""

    offset: Offset = 0


class FileQuery(Request):
    """One path. ``sha256``: tell the checksum too (the file is read for it)."""

    path: Path
    sha256: bool = False


class PutFileQuery(Request):
    """Where to, with which permission bits, and whose it is (default: root's)."""

    path: Path
    mode: Mode = "644"
    user: str | None = None


class StatQuery(Request):
    """One path; ``follow=0`` tells a symbolic link as one."""

    path: Path
    follow: bool = True
    sha256: bool = False


class ListFilesQuery(Request):
    """A folder; ``next`` of a page is the ``after`` of the following one."""

    path: Path
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100_000)] = 10_000


class GlobQuery(Request):
    """A pattern (``*``, ``?``, ``[…]``, ``**``) below a folder."""

    pattern: Annotated[str, Field(min_length=1, max_length=4096)]
    path: Path = "/"
    limit: Annotated[int, Field(ge=1, le=100_000)] = 10_000


class MakeDirQuery(Request):
    """The folder; with ``parents`` those above it too, and it may be there already."""

    path: Path
    mode: Mode = "755"
    parents: bool = True
    user: str | None = None


class RemoveQuery(Request):
    """The path; a folder that holds something needs ``recursive``."""

    path: Path
    recursive: bool = False


class TreeQuery(Request):
    """A folder."""

    path: Path


class PatchQuery(Request):
    """Below which folder the patch's names lie, and how many leading parts of them to drop."""

    path: Path = "/"
    strip: Annotated[int, Field(ge=0, le=64)] = 1
