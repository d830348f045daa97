"""The audit log: who did what, when, to which sandbox, and how it ended, one JSON object a line.

Must never hold a body, a command's text, a path's content, a key or a token. A log that cannot be written
does not stop requests, but the service says that it is not ready.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from cloche.api.models import LABELS

log = logging.getLogger("cloche.server")
_LABELS = frozenset(LABELS)


class Audit:
    """An append-only file, rotated by size: ``audit.jsonl``, ``audit.jsonl.1`` and so on."""

    def __init__(self, path: Path, *, max_bytes: int, files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._lines: list[str] = []
        self._fd: int | None = None
        self._size = 0
        self.broken: str | None = None

    def open(self) -> None:
        """Open the file, made with mode 0600 where there is none. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def write(
        self,
        *,
        key: str,
        owner: str,
        what: str,
        sandbox: str | None,
        labels: Mapping[str, str],
        status: int,
        code: str | None,
        duration_s: float,
        request_id: str,
        more: Mapping[str, str | int] | None = None,
    ) -> None:
        """Add a line; it is written before the loop turns again."""
        entry: dict[str, object] = {
            "at": round(time.time(), 6),
            "key": key,
            "owner": owner,
            "what": what,
            "sandbox": sandbox,
            "status": status,
            "ms": round(duration_s * 1000, 3),
            "request": request_id,
        }
        if code is not None:
            entry["code"] = code
        known = {name: value for name, value in labels.items() if name in _LABELS}
        if known:
            entry["labels"] = known
        if more:
            entry |= more
        if not self._lines:
            asyncio.get_running_loop().call_soon(self.flush)
        self._lines.append(json.dumps(entry, separators=(",", ":")))

    def flush(self) -> None:
        """Write what is due."""
        if not self._lines:
            return
        data = ("\n".join(self._lines) + "\n").encode()
        self._lines.clear()
        try:
            if self._fd is None:
                self.open()
            if self._size >= self._max_bytes:
                self._rotate()
            assert self._fd is not None  # noqa: S101  # opened above
            self._size += os.write(self._fd, data)
            self.broken = None
        except OSError as error:
            self.close()
            if self.broken is None:
                log.error("the audit log cannot be written: %s", error.strerror)
            self.broken = error.strerror or str(error)

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)
        self.open()

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
