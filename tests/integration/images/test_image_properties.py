"""Properties of digests, and of what a build sees, held against an independent account of each."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloche.sandbox.images import ImageStore, build
from cloche.sandbox.images.archive import extract
from cloche.sandbox.images.context import IgnoreRules, visible
from cloche.sandbox.images.digest import tree_digest
from cloche.sandbox.images.folder import copy
from cloche.sandbox.images.tree import Limits, TreeWriter

NAMES = st.sampled_from(["a", "b", "c.txt", "ünï", "-", "x y"])
MODES = st.sampled_from([0o644, 0o755, 0o4755, 0o2750, 0o600, 0o000])
IDS = st.sampled_from([0, 1, 1000, 65_535])
LEAVES = st.one_of(
    st.tuples(st.just("file"), MODES, IDS, st.binary(max_size=50)),
    st.tuples(st.just("symlink"), st.just(0o777), IDS, st.sampled_from(["a", "/etc", "../x"])),
    st.tuples(st.just("fifo"), MODES, IDS, st.just(b"")),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.tuples(st.just("folder"), MODES, IDS, st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
).map(lambda tree: tree if tree[0] == "folder" else ("folder", 0o755, 0, {"only": tree}))


def grow(place: Path, tree: tuple[str, int, int, object]) -> None:
    kind, mode, owner, content = tree
    if kind == "folder":
        place.mkdir()
        assert isinstance(content, dict)
        for name, inner in content.items():
            grow(place / name, inner)
    elif kind == "file":
        assert isinstance(content, bytes)
        place.write_bytes(content)
    elif kind == "symlink":
        place.symlink_to(str(content))
    else:
        os.mkfifo(place)
    os.chown(place, owner, owner, follow_symlinks=False)
    if kind != "symlink":
        place.chmod(mode)


def documented_digest(root: Path) -> str:
    """The definition of docs/images.md, written down a second time."""
    kinds = {stat.S_IFDIR: "folder", stat.S_IFREG: "file", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo"}
    paths = {b"": root} | {os.fsencode(str(path.relative_to(root))): path for path in root.rglob("*")}
    data = b""
    for name in sorted(paths):
        path = paths[name]
        found = path.lstat()
        kind = kinds[stat.S_IFMT(found.st_mode)]
        fields = [
            name,
            kind.encode(),
            f"{stat.S_IMODE(found.st_mode):o}".encode(),
            str(found.st_uid).encode(),
            str(found.st_gid).encode(),
            os.fsencode(str(path.readlink())) if kind == "symlink" else b"",
            b"".join(
                key.encode() + b"=" + os.getxattr(path, key, follow_symlinks=False) + b"\0"
                for key in sorted(os.listxattr(path, follow_symlinks=False))
            ),
            hashlib.sha256(path.read_bytes()).digest() if kind == "file" else b"",
        ]
        data += b"".join(len(item).to_bytes(8, "big") + item for item in fields)
    return "tree-sha256:" + hashlib.sha256(data).hexdigest()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TREES)
def test_a_tree_survives_being_copied_and_packed(tmp_path: Path, tree: tuple[str, int, int, object]) -> None:
    for name in ("source", "copied", "unpacked"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    source = tmp_path / "source"
    grow(source, tree)
    expected = documented_digest(source)
    assert tree_digest(source).digest == expected

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(source, ".")
    packed.seek(0)
    for name in ("copied", "unpacked"):
        place = tmp_path / name
        place.mkdir()
        with TreeWriter(place, Limits()) as writer:
            if name == "copied":
                copy(source, writer)
            else:
                extract(packed, writer)
            writer.finish()
        assert tree_digest(place).digest == expected


RULES = [
    [],
    ["*.txt"],
    ["**/*.txt"],
    ["sub"],
    ["/sub/"],
    ["sub/*", "!sub/b"],
    ["sub", "!sub/deep/c.txt"],
    ["*", "!sub/b"],
    ["*", "!*.txt"],
    ["sub/**"],
    ["**/b"],
    ["**"],
    ["# comment", "  a.txt  ", ""],
    ["[a-c]*"],
    ["s?b"],
    ["!a.txt"],
    ["sub/../a.txt"],
    ["Dockerfile", ".dockerignore"],
    ["**/deep/*", "!**/c.txt"],
]


@pytest.mark.parametrize("lines", RULES, ids=lambda lines: "|".join(lines) or "none")
async def test_a_build_sees_no_more_than_its_digest_counts(
    store: ImageStore, tmp_path: Path, lines: list[str]
) -> None:
    """Else a changed file could be built into an image that is taken for another's."""
    folder = tmp_path / "context"
    (folder / "sub" / "deep").mkdir(parents=True)
    for name in ("a.txt", "other", "sub/b", "sub/d.txt", "sub/deep/c.txt", "sub/deep/e"):
        (folder / name).write_text(name)
    (folder / "Dockerfile").write_text("FROM scratch\nENV A=b\nCOPY . /all/\n")
    (folder / ".dockerignore").write_text("\n".join(lines))
    image = await build(store, folder)
    built = {
        str(path.relative_to(layer / "all"))
        for layer in image.layers
        for path in (layer / "all").rglob("*")
        if path.is_file()
    }
    counted = {path for path, found in visible(folder, IgnoreRules(lines)) if stat.S_ISREG(found.st_mode)}
    assert built <= counted
    assert built == counted
