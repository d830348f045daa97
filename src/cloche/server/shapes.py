"""Bodies of commands and files from what the guest tells, and back. Pure; must never lose a byte.

What is UTF-8 goes as text, all else as base64; a path that is not UTF-8 is shown with its bytes
percent-encoded, as a query takes it.
"""

from __future__ import annotations

import base64
import binascii
from urllib.parse import quote

from cloche.api.models import CommandBody, CommandView, FileView, OutputView
from cloche.core.errors import InvalidInput
from cloche.core.ids import new_id
from cloche.sandbox.handle import CommandStatus, FileInfo, FileKind
from cloche.sandbox.spec import Command, Completed, Output, Terminal

_KINDS = {FileKind.FILE: "file", FileKind.FOLDER: "dir", FileKind.SYMLINK: "link", FileKind.OTHER: "other"}
_LOGIN = 'if [ -x /bin/bash ]; then exec /bin/bash -lc "$0"; else exec /bin/sh -lc "$0"; fi'


def command_of(body: CommandBody) -> Command:
    """Return the command that a body asks for. Raises InvalidInput."""
    if (body.argv is None) == (body.shell is None):
        raise InvalidInput("give either argv or shell", where="argv")
    if body.login and body.shell is None:
        raise InvalidInput("a login shell takes a shell line", where="login")
    argv, shell = body.argv or (), body.shell
    if body.login and shell is not None:
        argv, shell = ("/bin/sh", "-c", _LOGIN, shell), None
    try:
        stdin = None if body.stdin is None else base64.b64decode(body.stdin, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput("stdin is not base64", where="stdin") from error
    return Command(
        id=body.id or new_id("c"),
        argv=argv,
        shell=shell,
        env=body.env,
        cwd=body.cwd,
        user=body.user,
        stdin=stdin,
        interactive=body.interactive,
        terminal=None if body.terminal is None else Terminal(columns=body.terminal[0], rows=body.terminal[1]),
        timeout_s=body.timeout_s,
        grace_s=body.grace_s,
        output_cap_bytes=body.output_cap_bytes,
        spill=body.spill,
    )


def output_view(output: Output) -> OutputView:
    """Return a stream's kept bytes."""
    data = output.data
    try:
        return OutputView(data=data.decode(), total_bytes=output.total_bytes, truncated=output.truncated)
    except UnicodeDecodeError:
        text = base64.b64encode(data).decode()
        return OutputView(
            data=text, encoding="base64", total_bytes=output.total_bytes, truncated=output.truncated
        )


def completed_view(done: Completed) -> CommandView:
    """Return a command that is over."""
    return CommandView(
        id=done.id,
        running=False,
        reason=done.reason.value,
        exit_code=done.exit_code,
        signal=done.signal,
        stdout=output_view(done.stdout),
        stderr=output_view(done.stderr),
        duration_s=done.duration_s,
        cpu_s=done.cpu_s,
        peak_memory_bytes=done.peak_memory_bytes,
        message=done.message,
    )


def _total(count: int) -> OutputView:
    return OutputView(data="", total_bytes=count, truncated=count > 0)


def status_view(status: CommandStatus) -> CommandView:
    """Return a command as the guest's table tells it, without its output's bytes."""
    view = CommandView(
        id=status.id,
        running=status.running,
        pid=status.pid,
        stdout=_total(status.stdout_bytes),
        stderr=_total(status.stderr_bytes),
    )
    end = status.end
    if end is None:
        return view
    return view.model_copy(
        update={
            "reason": end.reason.value,
            "exit_code": end.exit_code,
            "signal": end.signal,
            "duration_s": end.duration_s,
            "cpu_s": end.cpu_s,
            "peak_memory_bytes": end.peak_memory_bytes,
            "message": end.message,
        }
    )


def path_text(path: str) -> str:
    """Return a path as JSON can hold it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return quote(path.encode("utf-8", "surrogateescape"), safe="/")
    return path


def file_view(info: FileInfo, sha256: str | None = None) -> FileView:
    """Return what is at a path."""
    return FileView(
        path=path_text(info.path),
        kind=_KINDS[info.kind],
        mode=f"{info.mode:o}",
        size_bytes=info.size_bytes,
        uid=info.uid,
        gid=info.gid,
        modified_at=info.modified_at,
        target=None if info.target is None else path_text(info.target),
        sha256=sha256,
    )
