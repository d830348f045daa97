"""What a build can see of a folder, and its digest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.images.context import IgnoreRules, context_digest, ignore_file, visible


@pytest.mark.parametrize(
    ("rules", "path", "ignored"),
    [
        (["*.log"], "a.log", True),
        (["*.log"], "sub/a.log", False),
        (["**/*.log"], "sub/deep/a.log", True),
        (["**/*.log"], "a.log", True),
        (["build"], "build/x/y", True),
        (["/build/"], "build", True),
        (["# build"], "build", False),
        (["", "  a  "], "a", True),
        (["a?c"], "abc", True),
        (["a?c"], "a/c", False),
        (["[ab]x"], "bx", True),
        (["[^ab]x"], "bx", False),
        (["*", "!keep.txt"], "keep.txt", False),
        (["*", "!keep.txt"], "other.txt", True),
        (["dir", "!dir/keep"], "dir/keep", False),
        (["!dir/keep", "dir"], "dir/keep", True),
        (["a/**"], "a/b/c", True),
        (["a/**"], "a", False),
        (["./x/../y"], "y", True),
        (["."], "anything", False),
        (["a\\*b"], "a*b", True),
        (["a\\*b"], "axb", False),
    ],
)
def test_the_rules_mean_what_docker_means(rules: list[str], path: str, ignored: bool) -> None:
    assert IgnoreRules(rules).ignores(path) is ignored


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="pattern"):
        IgnoreRules(["[z-a]"])


def _folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_text("one")
    (tmp_path / "sub" / "b").write_text("two")
    (tmp_path / "link").symlink_to("a")
    return tmp_path


def test_only_what_the_build_can_see_is_listed(tmp_path: Path) -> None:
    _folder(tmp_path)
    assert [path for path, _ in visible(tmp_path, IgnoreRules(["sub", "!sub/b"]))] == ["a", "link", "sub/b"]


def test_the_digest_changes_with_anything_that_a_build_can_see(tmp_path: Path) -> None:
    _folder(tmp_path)
    nothing = IgnoreRules([])
    seen = {context_digest(tmp_path, nothing)}

    def changed() -> None:
        digest = context_digest(tmp_path, nothing)
        assert digest not in seen
        seen.add(digest)

    (tmp_path / "a").write_text("other")
    changed()
    (tmp_path / "a").chmod(0o755)
    changed()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("sub")
    changed()
    (tmp_path / "sub" / "b").rename(tmp_path / "sub" / "c")
    changed()
    (tmp_path / "empty").mkdir()
    changed()


def test_the_digest_stays_with_what_a_build_cannot_see(tmp_path: Path) -> None:
    _folder(tmp_path)
    rules = IgnoreRules(["noise"])
    before = context_digest(tmp_path, rules)
    (tmp_path / "noise").write_text("x")
    os.utime(tmp_path / "a", (1, 1))
    assert context_digest(tmp_path, rules) == before


def test_the_rules_beside_the_dockerfile_come_first(tmp_path: Path) -> None:
    dockerfile = tmp_path / "Other.dockerfile"
    assert ignore_file(tmp_path, dockerfile) is None
    (tmp_path / ".dockerignore").write_text("a")
    assert ignore_file(tmp_path, dockerfile) == tmp_path / ".dockerignore"
    own = tmp_path / "Other.dockerfile.dockerignore"
    own.write_text("b")
    assert ignore_file(tmp_path, dockerfile) == own


def test_a_context_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="build context"):
        context_digest(tmp_path / "missing", IgnoreRules([]))
