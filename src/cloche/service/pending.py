"""Creates that were accepted and have no sandbox yet, on disk: a service that is killed loses none.

One file each below ``<run_dir>/service/queue``, readable by root alone, gone once the sandbox's own record is
there. All functions block. Must never hold what the client did not send.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from cloche.api.models import CreateBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What was accepted: whose it is, its names, and since when."""

    id: str
    owner: str
    key: str
    accepted_at: float
    body: CreateBody
    digest: str


_ADAPTER = TypeAdapter(Accepted)


class Pending:
    """The folder of accepted creates."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "service" / "queue"

    def save(self, items: list[Accepted]) -> None:
        """Write these; when it returns they are on the disk."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for item in items:
            path = self._folder / item.id
            temporary = path.with_name(f".{item.id}")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_ADAPTER.dump_json(item))
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)

    def remove(self, sandbox_id: str) -> None:
        """Forget one; of one that is not there is no error."""
        (self._folder / sandbox_id).unlink(missing_ok=True)

    def load(self) -> list[Accepted]:
        """Return all, the oldest first; one that cannot be read was never answered, and is removed."""
        found: list[Accepted] = []
        if not self._folder.is_dir():
            return found
        for path in self._folder.iterdir():
            try:
                found.append(_ADAPTER.validate_json(path.read_bytes()))
            except ValueError:
                path.unlink(missing_ok=True)
        return sorted(found, key=lambda item: (item.accepted_at, item.id))
