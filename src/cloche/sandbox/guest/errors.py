"""What a guest's refusal means to the caller. Must never lose the system's own error number."""

from __future__ import annotations

import errno
import os

from cloche.core.errors import ClocheError, InfraError, InvalidInput, NotFound
from cloche.sandbox.guest.frames import Code, Fields, Tag, number

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_ERRNO_MAX = 4095
_BROKEN = {errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.EINTR}


class RequestFailed(Exception):
    """The guest refused a request; ``code`` and ``error_number`` say why."""

    def __init__(self, message: str, *, code: int = 0, error_number: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.error_number = error_number


def from_fields(fields: Fields) -> RequestFailed:
    """Return the refusal that an ERROR frame holds."""
    values = dict(fields)
    error_number = number(values.get(Tag.ERRNO, bytes(8)))
    if error_number > _ERRNO_MAX:  # no error number of any system
        error_number = 0
    code = number(values.get(Tag.CODE, bytes(8)))
    text = values.get(Tag.MESSAGE, b"").decode("utf-8", "replace")
    return RequestFailed(
        os.strerror(error_number) if error_number else text, code=code, error_number=error_number
    )


def as_error(failure: RequestFailed, what: str) -> ClocheError:
    """Return the error that people see: ``what`` is what was tried, with its path or command."""
    message = f"{what}: {failure}"
    if failure.code == Code.NO_COMMAND or failure.error_number == errno.ENOENT:
        return NotFound(message)
    if failure.error_number in _NO_SPACE:
        return InfraError(message, code="infra/disk_full", hint="free space or raise the disk limit")
    if failure.code == Code.LIMIT or failure.error_number in _BROKEN:
        return InfraError(message)
    return InvalidInput(message)
