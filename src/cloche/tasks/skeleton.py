"""A new task: a small one that works, to be changed piece by piece. Must never overwrite anything."""

from __future__ import annotations

import re
from pathlib import Path

from cloche.core.errors import InvalidInput

IMAGE = "debian:12"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")

_CONFIG = """\
schema_version = "1.4"

[task]
name = "{organisation}/{name}"
description = "Write a greeting into a file"
keywords = []

[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 512
network_mode = "no-network"

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 60.0
"""

_INSTRUCTION = """\
Read the name in `/app/name.txt` and write the line `Hello, NAME!`, with that name, to `/app/greeting.txt`.
"""

_DOCKERFILE = """\
FROM {image}
WORKDIR /app
COPY name.txt ./
"""

_TEST = """\
#!/bin/sh
# The verdict goes to /logs/verifier/reward.txt; the exit status decides nothing.
reward=0
if [ "$(cat /app/greeting.txt 2>/dev/null)" = "Hello, World!" ]; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
"""

_SOLVE = """\
#!/bin/sh
set -eu
printf 'Hello, %s!\\n' "$(cat /app/name.txt)" > /app/greeting.txt
"""


def new_task(folder: Path, *, organisation: str = "local", image: str = IMAGE) -> list[Path]:
    """Make a task in a folder that is not there yet, or empty; return its files.

    ``image`` is what its Dockerfile begins with. Raises InvalidInput for a name that cannot be a task's,
    and for a folder that holds something.
    """
    name = folder.name
    for word, what in ((name, "task"), (organisation, "organisation")):
        if not _NAME.fullmatch(word):
            raise InvalidInput(
                f"`{word}` cannot be the name of a {what}",
                hint="lower-case letters, digits, `.`, `_` and `-`, up to 63 of them",
            )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"`{folder}` is there already", hint="choose another name")
    files = {
        "task.toml": _CONFIG.format(organisation=organisation, name=name),
        "instruction.md": _INSTRUCTION,
        "environment/Dockerfile": _DOCKERFILE.format(image=image),
        "environment/name.txt": "World\n",
        "tests/test.sh": _TEST,
        "solution/solve.sh": _SOLVE,
    }
    written = []
    try:
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            if target.suffix == ".sh":
                target.chmod(0o755)
            written.append(target)
    except OSError as error:
        raise InvalidInput(f"`{folder}` cannot be written: {error.strerror}", where=str(folder)) from error
    return written
