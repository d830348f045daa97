"""Makes tasks in a temporary folder: a good one, with what a test changes about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOOD: dict[str, str | bytes | None] = {
    "task.toml": 'schema_version = "1.4"\n',
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM debian:12\n",
    "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "#!/bin/sh\ntrue\n",
}

MakeTask = Callable[..., Path]


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Return a function that makes a task: ``toml`` is its task.toml, ``files`` adds files or omits them."""

    def make(
        toml: str | bytes | None = None,
        files: dict[str, str | bytes | None] | None = None,
        name: str = "sample",
    ) -> Path:
        folder = tmp_path / name
        wanted = {**GOOD, **({} if toml is None else {"task.toml": toml}), **(files or {})}
        for path, content in wanted.items():
            if content is None:
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    return make
