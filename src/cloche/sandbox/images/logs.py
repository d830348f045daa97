"""Logs of what made images: kept in files, their end shown when something fails. Must never pile up."""

from __future__ import annotations

from pathlib import Path

from cloche.core.errors import ImageError
from cloche.core.ids import new_id
from cloche.sandbox.images.disk import private_folder

KEPT_MAX = 100
SHOWN_LINES = 15
SHOWN_BYTES = 8192
SHOWN_COLUMNS = 300

_NOISE = "unshare: "  # how our own wrapper takes the end of a build


def new_log(root: Path, prefix: str) -> Path:
    """Return the path of a new log below ``root``; the oldest ones go when there are too many."""
    folder = private_folder(root / "logs")
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    for path in logs[: max(0, len(logs) - KEPT_MAX + 1)]:
        path.unlink(missing_ok=True)
    log = folder / f"{new_id(prefix)}.log"
    log.touch(mode=0o600)
    return log


def last_lines(log: Path) -> str:
    """Return the last lines that say something, as text."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - SHOWN_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith(_NOISE)]
    return "\n".join(f"  {line[:SHOWN_COLUMNS]}" for line in lines[-SHOWN_LINES:])


def failure(what: str, log: Path, *, hint: str | None = None) -> ImageError:
    """Return the error to raise: what failed, the end of the log and where all of it is."""
    return ImageError(f"{what}\n{last_lines(log)}", hint=hint, where=str(log))
