"""What is fetched of a sandbox: within bounds, and a failure to fetch is said and not fatal."""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from cloche.core.errors import InfraError, NotFound, SandboxLost
from cloche.experiment import collect as collect_module
from cloche.experiment.collect import Evidence, Excluded, TooMuch, collect, fetch, measure
from cloche.experiment.record.trial import TrialFolder
from cloche.sandbox.handle import FileInfo, FileKind, Sandbox


def _entry(path: str, kind: FileKind = FileKind.FILE, size_bytes: int = 1) -> FileInfo:
    return FileInfo(path=path, kind=kind, size_bytes=size_bytes, mode=0o644, uid=0, gid=0, modified_at=0.0)


@dataclass
class Tree:
    """Folders of a sandbox by path; ``broken`` is what a download raises."""

    folders: dict[str, list[FileInfo]] = field(default_factory=dict)
    broken: Exception | None = None
    fetched: list[str] = field(default_factory=list)
    skipped: list[FileInfo] = field(default_factory=list)

    async def list_dir(self, path: str) -> list[FileInfo]:
        if path not in self.folders:
            raise NotFound(path)
        return self.folders[path]

    async def stat(self, path: str) -> FileInfo:
        if path not in self.folders:
            raise NotFound(path)
        return _entry(path, FileKind.FOLDER)

    async def download(self, source: str, target: Path, *, limit_bytes: int = 0) -> list[FileInfo]:
        if self.broken is not None:
            raise self.broken
        self.fetched.append(source)
        return self.skipped


def _sandbox(tree: Tree) -> Sandbox:
    return cast("Sandbox", tree)


async def test_files_and_bytes_are_counted_through_folders_and_links_are_not_followed() -> None:
    tree = Tree(
        {
            "/x": [
                _entry("/x/a", size_bytes=10),
                _entry("/x/d", FileKind.FOLDER, 4096),
                _entry("/x/l", FileKind.SYMLINK, 99),
            ],
            "/x/d": [_entry("/x/d/b", size_bytes=5)],
        }
    )
    found = await measure(_sandbox(tree), "/x")
    assert [entry.path for entry in found] == ["/x/a", "/x/d", "/x/l", "/x/d/b"]


@pytest.mark.parametrize(("bound", "value"), [("FILES_MAX", 3), ("BYTES_MAX", 40), ("DEPTH_MAX", 2)])
async def test_bounds(monkeypatch: pytest.MonkeyPatch, bound: str, value: int) -> None:
    monkeypatch.setattr(collect_module, bound, value)
    folders = {
        "/x" + "/d" * depth: [
            _entry("/x" + "/d" * depth + "/f", size_bytes=15),
            _entry("/x" + "/d" * (depth + 1), FileKind.FOLDER, 0),
        ]
        for depth in range(5)
    }
    folders["/x/d/d/d/d/d"] = []
    with pytest.raises(TooMuch):
        await measure(_sandbox(Tree(folders)), "/x")


async def test_an_endless_tree_ends() -> None:
    class Endless(Tree):
        async def list_dir(self, path: str) -> list[FileInfo]:
            return [_entry(f"{path}/d", FileKind.FOLDER, 0)]

    with pytest.raises(TooMuch, match="deep"):
        await measure(_sandbox(Endless()), "/x")


@pytest.mark.parametrize(
    ("tree", "status", "said"),
    [
        (Tree({"/x": [_entry("/x/a")]}), "ok", ""),
        (Tree({"/x": []}), "empty", ""),
        (Tree(), "empty", ""),
        (Tree({"/x": [_entry("/x/a", size_bytes=1 << 40)]}), "skipped", "256 MiB"),
        (Tree({"/x": [_entry("/x/a")]}, InfraError("cut")), "failed", "cut"),
        (Tree({"/x": [_entry("/x/a")]}, OSError(errno.ENOSPC, "full")), "failed", "full"),
    ],
)
async def test_fetching_says_how_it_went(tree: Tree, status: str, said: str, tmp_path: Path) -> None:
    lines: list[str] = []
    assert await fetch(_sandbox(tree), "/x", tmp_path / "to", lines.append) == status
    assert said in "\n".join(lines)
    assert tree.fetched == (["/x"] if status == "ok" else [])


async def test_what_was_left_is_named(tmp_path: Path) -> None:
    lines: list[str] = []
    tree = Tree({"/x": [_entry("/x/a")]}, skipped=[_entry("/x/link", FileKind.SYMLINK)])
    await fetch(_sandbox(tree), "/x", tmp_path, lines.append)
    assert lines == ["/x/link is neither a file nor a folder and was left"]


async def test_a_lost_sandbox_is_not_a_failure_to_fetch(tmp_path: Path) -> None:
    tree = Tree({"/x": [_entry("/x/a")]}, SandboxLost())
    with pytest.raises(SandboxLost):
        await fetch(_sandbox(tree), "/x", tmp_path, lambda _line: None)


async def test_the_manifest_has_harbors_shape(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "t")
    folder.artifacts_dir.mkdir(parents=True)
    tree: Any = Tree({"/logs/agent": [], "/logs/artifacts": [_entry("/logs/artifacts/a")]})
    await collect(_sandbox(tree), folder, lambda _line: None, Evidence(workdir="/"))
    assert json.loads((folder.artifacts_dir / "manifest.json").read_text()) == [
        {
            "source": "/logs/artifacts",
            "destination": "artifacts/logs/artifacts",
            "type": "directory",
            "status": "ok",
            "service": None,
            "exclude": [],
        }
    ]


@pytest.mark.parametrize(
    ("patterns", "path", "left_out"),
    [
        (["*.pyc"], "a/b/c.pyc", True),
        (["*.pyc"], "a/b/c.py", False),
        (["cache"], "cache", True),
        (["cache"], "a/cache", True),
        (["cache"], "mycache", False),
        (["./cache"], "cache", True),
        (["./cache"], "a/cache", False),
        (["a/*"], "a/b/c", True),
        (["cache/"], "a/cache", True),
        (["[ab]?"], "x/a1", True),
        ([], "x", False),
    ],
)
def test_patterns_leave_out_what_tar_would(patterns: list[str], path: str, left_out: bool) -> None:
    assert Excluded(patterns).matches(path) is left_out


async def test_what_is_left_out_counts_for_no_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(collect_module, "FILES_MAX", 2)
    tree = Tree(
        {
            "/x": [_entry("/x/a"), _entry("/x/big", FileKind.FOLDER)],
            "/x/big": [_entry(f"/x/big/{index}") for index in range(100)],
        }
    )
    lines: list[str] = []
    assert await fetch(_sandbox(tree), "/x", tmp_path / "to", lines.append, Excluded(["big"])) == "ok"
    assert tree.fetched == ["/x/a"]
