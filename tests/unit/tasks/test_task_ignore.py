"""Ignore rules: alike to those that the digest was defined with, and applied where the format says."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pathspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.tasks import TaskInvalid, load_task
from cloche.tasks.ignore import Rules, TaskIgnores, parse_rule
from cloche.tasks.select import selected

MakeTask = Callable[..., Path]

PATHS = [
    "/".join(parts) for length in (1, 2, 3) for parts in product(["a", "b", "ab", "x.a", ".x"], repeat=length)
]
PIECES = ["a", "b", "*", "**", "?", "[ab]", "a*", "*.a", "[!a]", "\\*", "c d", ".x"]


def patterns(seed: int) -> list[str]:
    chance = random.Random(seed)
    made = []
    for _ in range(chance.randint(1, 3)):
        parts = ["".join(chance.choices(PIECES, k=chance.randint(1, 2))) for _ in range(chance.randint(1, 3))]
        text = chance.choice(["", "", "!"]) + chance.choice(["", "", "/"]) + "/".join(parts)
        made.append(text + chance.choice(["", "", "/"]))
    return made


@pytest.mark.parametrize("seed", range(150))
def test_rules_decide_as_the_library_that_harbor_uses(seed: int) -> None:
    lines = patterns(seed)
    reference = pathspec.PathSpec.from_lines("gitignore", lines)
    ours = Rules(lines)
    for path in PATHS:
        assert bool(ours.verdict(path)) == reference.match_file(path), (lines, path)


@given(st.lists(st.text(), max_size=4), st.text(min_size=1))
def test_no_line_breaks_the_rules(lines: list[str], path: str) -> None:
    assert Rules(lines).verdict(path) in {None, True, False}


@pytest.mark.parametrize("line", ["", "   ", "# comment", "//", "a//b", "!"])
def test_lines_that_mean_nothing(line: str) -> None:
    assert parse_rule(line) is None


def expected(folder: Path, *names: str) -> str:
    lines = [
        f"{name}\0{hashlib.sha256((folder / name).read_bytes()).hexdigest()}\n" for name in sorted(names)
    ]
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


BASE = ["environment/Dockerfile", "instruction.md", "solution/solve.sh", "task.toml", "tests/test.sh"]


def test_a_gitignore_replaces_the_list_that_holds_without_one(make_task: MakeTask) -> None:
    files = {".gitignore": "*.log\n/tests/big/\n!tests/keep.log\n", "tests/a.log": "", "tests/keep.log": ""}
    folder = make_task(files={**files, "tests/big/x": "", "tests/x.pyc": "", "environment/.DS_Store": ""})
    wanted = [*BASE, "tests/keep.log", "tests/x.pyc", "environment/.DS_Store"]
    assert load_task(folder).digest == expected(folder, *wanted)


def test_a_harborignore_holds_for_its_folder_and_those_below(make_task: MakeTask) -> None:
    files = {
        "tests/.harborignore": "*.log\n/only-top\n",
        "tests/deep/.harborignore": "!again.log\n",
        "tests/deep/again.log": "",
        "tests/deep/other.log": "",
        "tests/only-top": "",
        "tests/deep/only-top": "",
        "environment/.harborignore": "Dockerfile\n",
        "environment/x.log": "",
    }
    folder = make_task(files=files)
    wanted = [*BASE, "tests/deep/again.log", "tests/deep/only-top", "environment/x.log"]
    assert load_task(folder).digest == expected(folder, *wanted)


def test_a_file_below_a_folder_that_is_left_out_cannot_come_back(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / ".harborignore").write_text("data/\n!data/x\n")
    ignores = TaskIgnores(tmp_path)
    assert ignores.excluded("tests/data", folder=True)
    assert ignores.excluded("tests/data/x", folder=False)
    assert not ignores.excluded("tests/other", folder=False)


def test_a_link_to_what_is_left_out_is_left_out(make_task: MakeTask) -> None:
    folder = make_task(files={"solution/.harborignore": "secret\n", "solution/secret": "s"})
    (folder / "tests" / "link").symlink_to("../solution/secret")
    assert load_task(folder).digest == expected(folder, *BASE)


async def test_what_is_uploaded_is_what_remains_with_modes_and_links(make_task: MakeTask) -> None:
    folder = make_task(files={"tests/.harborignore": "*.log\n", "tests/a.log": "", "tests/sub/b.txt": "b"})
    (folder / "tests" / "test.sh").chmod(0o750)
    (folder / "tests" / "here").symlink_to("sub/b.txt")
    async with selected(folder / "tests", folder) as files:
        assert files != folder / "tests"
        names = sorted(path.relative_to(files).as_posix() for path in files.rglob("*"))
        assert names == ["here", "sub", "sub/b.txt", "test.sh"]
        assert (files / "test.sh").stat().st_mode & 0o777 == 0o750
        assert (files / "here").readlink() == Path("sub/b.txt")
    assert not files.exists()


async def test_without_rules_nothing_is_copied(make_task: MakeTask) -> None:
    folder = make_task()
    async with selected(folder / "tests", folder) as files:
        assert files == folder / "tests"


@pytest.mark.fault("ignore-file-leads-out")
def test_an_ignore_file_that_leads_out_of_the_task_is_told(make_task: MakeTask, tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("*\n")
    folder = make_task()
    (folder / "tests" / ".harborignore").symlink_to(tmp_path / "rules")
    with pytest.raises(TaskInvalid) as caught:
        load_task(folder)
    assert caught.value.code == "task/path_escape"
