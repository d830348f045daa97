"""Keeping credentials out of the record: values of the host's environment that a run was given.

A model's key never enters a sandbox, but an endpoint may echo it; a task's ``${VAR}`` does enter it, and
what runs inside may print it. Must never write a value that it looks for anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from cloche.experiment.plan import Plan
from cloche.experiment.record.files import recording
from cloche.tasks.model import Task
from cloche.tasks.refuse import environments

SHORTEST_CHARS = 8
_FROM_HOST = re.compile(r"\$\{([^}:]+)(?::-.*)?\}", re.DOTALL)
_BLOCK_BYTES = 1 << 20


class Scrubber:
    """Replaces values by ``${NAME}``. Values shorter than ``SHORTEST_CHARS`` are words, not secrets."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """``values`` by the name of their variable."""
        found = {value: f"${{{name}}}" for name, value in values.items() if len(value) >= SHORTEST_CHARS}
        self._texts = sorted(found.items(), key=lambda item: -len(item[0]))
        self._bytes = [(old.encode(), new.encode()) for old, new in self._texts]
        self._longest = max((len(old) for old, _ in self._bytes), default=0)

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._texts)

    def text(self, text: str) -> str:
        """Return the text without the values."""
        for old, new in self._texts:
            text = text.replace(old, new)
        return text

    def tree(self, folder: Path) -> int:
        """Rewrite every regular file below a folder that holds a value; return how many. Blocks."""
        if not self:
            return 0
        changed = 0
        with recording(folder):
            for place, _, names in os.walk(folder):
                for name in names:
                    path = Path(place, name)
                    if path.is_file() and not path.is_symlink() and self._holds(path):
                        self._rewrite(path)
                        changed += 1
        return changed

    def _holds(self, path: Path) -> bool:
        kept = b""
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                kept += block
                if any(old in kept for old, _ in self._bytes):
                    return True
                kept = kept[-self._longest :]
        return False

    def _rewrite(self, path: Path) -> None:
        data = path.read_bytes()
        for old, new in self._bytes:
            data = data.replace(old, new)
        path.write_bytes(data)


def secret_values(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a plan takes from the host's environment, by variable: model keys and tasks' ``${VAR}``."""
    names: set[str] = set()
    for trial in plan.trials:
        if trial.model is not None and trial.model.endpoint.api_key_env:
            names.add(trial.model.endpoint.api_key_env)
    for task in {trial.task.digest: trial.task for trial in plan.trials if trial.task}.values():
        names |= set(_variables(task))
    return {name: environ[name] for name in sorted(names) if environ.get(name)}


def _variables(task: Task) -> Iterable[str]:
    for env in environments(task):
        yield from (match[1] for value in env.values() if (match := _FROM_HOST.fullmatch(value.text)))
