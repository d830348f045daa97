from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cloche.tasks import load_task

MakeTask = Callable[..., Path]


def expected(files: dict[str, bytes]) -> str:
    """Reckon the digest the way Harbor writes it: path NUL digest LF, sorted by path."""
    lines = [f"{name}\0{hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files)]
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


FILES = {
    "task.toml": b"",
    "instruction.md": b"Do it.\n",
    "environment/Dockerfile": b"FROM debian:12\n",
    "tests/test.sh": b"#!/bin/sh\n",
    "tests/a/z.txt": b"\xff\x00",
    "tests/a.b": b"sorted after a/z.txt only by whole paths",
    "solution/solve.sh": b"",
    "README.md": b"# ok\n",
}


def test_the_digest_is_that_of_harbor(make_task: MakeTask) -> None:
    assert load_task(make_task("", dict(FILES))).digest == expected(FILES)


def test_a_digest_worked_out_by_harbor_itself(make_task: MakeTask) -> None:
    """The figure was computed with the harbor package, version 0.26.0."""
    digest = "sha256:3e3e9500916912ac4c3a42e0d9179e228789f1937840435da03eb35d2b6bec94"
    assert load_task(make_task("", dict(FILES))).digest == digest


@pytest.mark.parametrize(
    "name",
    [
        "tests/__pycache__/x.py",
        "tests/x.pyc",
        "environment/.DS_Store",
        "solution/old~",
        "tests/.x.swp",
        "tests/gone.swo/inner",
        "notes.txt",
        "other/file",
    ],
)
def test_files_that_do_not_make_the_task_do_not_count(make_task: MakeTask, name: str) -> None:
    assert load_task(make_task("", {**FILES, name: b"x"})).digest == expected(FILES)


@pytest.mark.parametrize(
    "name", ["tests/new", "environment/sub/file", "tests/__pycache__x", "solution/.hidden"]
)
def test_files_that_make_the_task_count(make_task: MakeTask, name: str) -> None:
    assert load_task(make_task("", {**FILES, name: b"x"})).digest == expected({**FILES, name: b"x"})


def test_times_and_modes_do_not_count(make_task: MakeTask) -> None:
    folder = make_task("", dict(FILES))
    before = load_task(folder).digest
    (folder / "tests" / "test.sh").chmod(0o700)
    os.utime(folder / "tests" / "test.sh", (1, 1))
    assert load_task(folder).digest == before


def test_a_link_counts_with_the_content_of_its_target(make_task: MakeTask) -> None:
    folder = make_task("", dict(FILES))
    (folder / "tests" / "link").symlink_to("test.sh")
    (folder / "tests" / "folder").symlink_to("a")
    assert load_task(folder).digest == expected({**FILES, "tests/link": FILES["tests/test.sh"]})
