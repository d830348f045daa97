"""One trial's folder: the last attempt at its top level, earlier ones complete below ``attempts/<n>/``.

Moving an attempt away is safe against being interrupted at any point: what has been moved is in a folder
with a name of its own, and the next opening goes on from there. All methods block.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from cloche.core.errors import InvalidInput
from cloche.core.outcome import AttemptOutcome
from cloche.experiment.record.attempt import AttemptRecord, outcome_of
from cloche.experiment.record.files import (
    make_folder,
    read_json,
    recording,
    write_json,
)

ATTEMPT = "attempt.json"
RESULT = "result.json"
_ATTEMPTS = "attempts"
_MOVING = "moving"


@dataclass(frozen=True, slots=True)
class TrialFolder:
    """``path`` need not exist yet."""

    path: Path

    @property
    def agent_dir(self) -> Path:
        """What the agent wrote, and its trajectory."""
        return self.path / "agent"

    @property
    def verifier_dir(self) -> Path:
        """What the verifier wrote."""
        return self.path / "verifier"

    @property
    def artifacts_dir(self) -> Path:
        """What the task was to produce, and the list of it."""
        return self.path / "artifacts"

    def step(self, name: str) -> TrialFolder:
        """Return the folder of one step, which has the same three folders in it."""
        return TrialFolder(self.path / "steps" / name)

    def make(self) -> None:
        """Make the folder and the three in it; those that are there stay."""
        for folder in (self.path, self.agent_dir, self.verifier_dir, self.artifacts_dir):
            make_folder(folder)

    def begin(self, record: AttemptRecord, files: dict[str, object]) -> None:
        """Make the folders of a new attempt, with its record and Harbor's files of the plan."""
        self.make()
        for name, value in files.items():
            write_json(self.path / name, value)
        self.write_attempt(record)

    def write_attempt(self, record: AttemptRecord, *, durable: bool = False) -> None:
        """Write ``attempt.json``."""
        write_json(self.path / ATTEMPT, record.model_dump(mode="json"), durable=durable)

    def write_result(self, value: object) -> None:
        """Write ``result.json``; when it returns, the result is on the disk."""
        write_json(self.path / RESULT, value, durable=True)

    def read_attempt(self) -> AttemptRecord | None:
        """Return the attempt at the top level; raises InvalidInput if its file cannot be read."""
        return _read(self.path / ATTEMPT)

    def earlier(self) -> list[AttemptRecord]:
        """Return the attempts below ``attempts/``, in order."""
        found = [_read(path / ATTEMPT) for path in (self.path / _ATTEMPTS).glob("[0-9]*")]
        return sorted((record for record in found if record is not None), key=lambda record: record.number)

    def records(self) -> list[AttemptRecord]:
        """Return all attempts, in order."""
        last = self.read_attempt()
        return [*self.earlier(), *([last] if last is not None else [])]

    def outcomes(self) -> tuple[AttemptOutcome, ...]:
        """Return what all attempts came to, in order."""
        return tuple(outcome_of(record) for record in self.records())

    def put_away(self) -> None:
        """Move the attempt at the top level below ``attempts/<its number>/``; nothing to move is fine."""
        moving = self.path / _ATTEMPTS / _MOVING
        record = _read(moving / ATTEMPT) or self.read_attempt()
        if record is None:
            return
        make_folder(moving)
        with recording(moving):
            # the record goes first: from then on it is known which attempt is being moved
            names = sorted(self.path.iterdir(), key=lambda path: path.name != ATTEMPT)
            for path in names:
                if path.name != _ATTEMPTS:
                    path.rename(moving / path.name)
            moving.rename(self.path / _ATTEMPTS / str(record.number))

    def finish_moving(self) -> None:
        """Go on with a move that was interrupted."""
        if (self.path / _ATTEMPTS / _MOVING).exists():
            self.put_away()

    def clear_unfinished(self) -> None:
        """Finish a move that was interrupted, and remove files that no attempt claims."""
        self.finish_moving()
        if self.path.exists() and self.read_attempt() is None:
            for path in self.path.iterdir():
                if path.name == _ATTEMPTS:
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def _read(path: Path) -> AttemptRecord | None:
    value = read_json(path)
    if value is None:
        return None
    try:
        return AttemptRecord.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"{path}: `{field}`: {first['msg']}", where=str(path)) from error
