"""Files of the record: private, whole or absent. All functions block; call them outside the event loop.

Must never leave half a file under its final name, and never follow a link out of the record.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloche.core.errors import InfraError, InvalidInput

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_JSON_LIMIT_BYTES = 256 << 20


class RecordError(InfraError):
    """The record could not be written."""

    code = "infra/record"
    exit_code = 5


@contextlib.contextmanager
def recording(path: Path) -> Iterator[None]:
    """Turn an operating system's error into RecordError that names the file; a full disk has its own code."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}",
            hint="free some space, then run the same command on the same folder" if full else None,
            code="infra/disk_full" if full else None,
        ) from error


def make_folder(path: Path) -> None:
    """Make a folder and its parents, private to us; one that is there stays as it is."""
    with recording(path):
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)


def write_bytes(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a whole file at once; with ``durable`` it is on the disk when this returns."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    with recording(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, FILE_MODE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8; what cannot be encoded is escaped."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Write JSON that a strict reader accepts: no NaN, no lone surrogates.

    Indented by one, since a whole trial is to fit into few blocks of the disk.
    """
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    write_bytes(path, whole.encode() + b"\n", durable=durable)


def read_json(path: Path) -> Any:
    """Return a file's value, ``None`` if there is no file; raises InvalidInput if it cannot be read."""
    try:
        if path.stat().st_size > _JSON_LIMIT_BYTES:
            raise InvalidInput(f"{path} is larger than any record", where=str(path))
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}", where=str(path)) from error


def append_line(path: Path, line: str) -> None:
    """Add one line to a log."""
    with recording(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, FILE_MODE)
        try:
            os.write(descriptor, line.encode("utf-8", "backslashreplace") + b"\n")
        finally:
            os.close(descriptor)


def make_private(folder: Path) -> None:
    """Give every folder below (and itself) 0700 and every file 0600; links are left alone."""
    with recording(folder):
        folder.chmod(FOLDER_MODE)
        for place, folders, names in os.walk(folder):
            for name in folders:
                _chmod(Path(place, name), FOLDER_MODE)
            for name in names:
                _chmod(Path(place, name), FILE_MODE)


def _chmod(path: Path, mode: int) -> None:
    if not path.is_symlink():
        path.chmod(mode)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, until it ends in whatever way; raises InvalidInput if another does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(
                f"another run is writing to {folder}", hint="wait for it, or choose another folder with -o"
            ) from None
        yield
    finally:
        os.close(descriptor)
