"""Layers merged by the kernel are what unpacking them one over the other gives, whatever they hold."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloche.core.errors import InvalidInput
from cloche.sandbox.images.registry.complete import lowest_that_counts, missing_folders
from cloche.sandbox.images.registry.layers import WrongDiffDigest, unpack
from cloche.sandbox.images.tree import Limits, TreeWriter
from cloche.testing.registries import entry, packed, sha256, tar_of

# what a layer may do at a path: (kind, path, mode)
NAMES = st.sampled_from(["a", "b"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
ACTIONS = st.tuples(
    st.sampled_from(["folder", "file", "hide", "opaque"]), PATHS, st.sampled_from([0o700, 0o755])
)
LAYERS = st.lists(st.lists(ACTIONS, max_size=5), min_size=1, max_size=4)

Tree = dict[str, tuple[str, int]]


def parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def consistent(layer: list[tuple[str, str, int]], below: Tree) -> list[tuple[str, str, int]]:
    """Keep what one archive can say, each thing once; only what is there can be hidden."""
    kept: list[tuple[str, str, int]] = []
    folders: set[str] = set()
    files: set[str] = set()
    seen: set[tuple[bool, str]] = set()
    for kind, path, mode in layer:
        needs = {*parents(path), *([path] if kind in {"folder", "opaque"} else [])}
        mark = (kind in {"hide", "opaque"}, path)
        if needs & files or mark in seen or (kind == "file" and path in folders):
            continue
        if kind == "hide" and path not in below:
            continue
        seen.add(mark)
        folders |= needs
        files |= {path} if kind == "file" else set()
        kept.append((kind, path, mode))
    return kept


def archive(layer: list[tuple[str, str, int]]) -> bytes:
    members = []
    for number, (kind, path, mode) in enumerate(layer):
        folder, _, name = path.rpartition("/")
        prefix = f"{folder}/" if folder else ""
        if kind == "folder":
            members.append(entry(f"{path}/", mode=mode))
        elif kind == "file":
            members.append(entry(path, f"{number}", mode=mode))
        elif kind == "hide":
            members.append(entry(f"{prefix}.wh.{name}"))
        else:
            members.append(entry(f"{path}/.wh..wh..opq"))
    return tar_of(*members)


def applied(tree: Tree, layer: list[tuple[str, str, int]]) -> Tree:
    """Unpack a layer over a tree, as layer.md of the image specification says: whiteouts first."""
    result = dict(tree)
    for kind, path, _ in layer:
        if kind in {"hide", "opaque"}:
            gone = [p for p in result if p.startswith(f"{path}/") or (kind == "hide" and p == path)]
            for name in gone:
                del result[name]
    for kind, path, mode in layer:
        made = {"hide": [], "opaque": [*parents(path), path]}.get(kind, parents(path))
        for folder in made:
            if result.get(folder, ("", 0))[0] != "folder":
                result[folder] = ("folder", 0o755)
        if kind == "folder":
            result[path] = ("folder", mode)
        elif kind == "file":
            for name in [p for p in result if p.startswith(f"{path}/")]:
                del result[name]
            result[path] = ("file", mode)
    return result


def shown(root: Path) -> Tree:
    found = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        assert not stat.S_ISCHR(mode)
        found[str(path.relative_to(root))] = ("folder" if stat.S_ISDIR(mode) else "file", stat.S_IMODE(mode))
    return found


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cloche-layers-", dir="/var/tmp"))  # overlay wants a real disk
    yield folder
    shutil.rmtree(folder)


def merged_tree(work: Path, layers: list[bytes]) -> Tree:
    place = Path(tempfile.mkdtemp(dir=work))
    folders = []
    for number, plain in enumerate(layers):
        blob, root = place / f"blob{number}", place / f"layer{number}"
        blob.write_bytes(packed(plain, "gzip"))
        root.mkdir()
        unpack(blob, root, sha256(plain), Limits(), lambda: None)
        folders.append(root)
    extra = place / "extra"
    extra.mkdir()
    with TreeWriter(extra, Limits()) as writer:
        for item in missing_folders(folders, "/"):
            writer.add(item)
        writer.finish()
    (place / "merged").mkdir()
    lower = ":".join(str(path) for path in (extra, *reversed(folders)))
    subprocess.run(
        ["mount", "-t", "overlay", "-o", f"ro,lowerdir={lower}", "x", place / "merged"], check=True
    )
    try:
        return shown(place / "merged")
    finally:
        subprocess.run(["umount", place / "merged"], check=True)
        shutil.rmtree(place)


def test_a_layer_that_hides_all_below_its_root_is_the_lowest_that_counts(work: Path) -> None:
    layers = [work / name for name in ("under", "over", "top")]
    for root in layers:
        root.mkdir()
    assert lowest_that_counts(layers) == 0
    plain = tar_of(entry(".wh..wh..opq"), entry("f", "x"))
    (work / "opaque-blob").write_bytes(plain)
    (work / "opaque").mkdir()
    unpack(work / "opaque-blob", work / "opaque", sha256(plain), Limits(), lambda: None)
    assert lowest_that_counts([*layers, work / "opaque", work / "top"]) == 3


@settings(max_examples=60)
@given(layers=LAYERS)
def test_merged_layers_are_what_unpacking_in_order_gives(
    work: Path, layers: list[list[tuple[str, str, int]]]
) -> None:
    said: list[list[tuple[str, str, int]]] = []
    expected: Tree = {}
    for layer in layers:
        said.append(consistent(layer, expected))
        expected = applied(expected, said[-1])
    assert merged_tree(work, [archive(layer) for layer in said]) == expected


def test_a_working_folder_that_no_layer_has_is_made_in_folders_as_they_are(work: Path) -> None:
    root = work / "base"
    root.mkdir()
    (root / "srv").mkdir(mode=0o700)
    os.chown(root / "srv", 1000, 1000)
    (root / "link").symlink_to("srv")
    (root / "file").write_text("")
    made = missing_folders([root], "/srv/site/deep")
    assert [(item.path, item.mode, item.uid) for item in made] == [
        ("srv", 0o700, 1000),
        ("srv/site", 0o755, 0),
        ("srv/site/deep", 0o755, 0),
    ]
    assert missing_folders([root], "/srv") == ()
    assert missing_folders([root], "/") == ()
    assert missing_folders([root], "/link/site") == ()
    assert missing_folders([root], "/file/site") == ()


def stream(chunks: list[bytes]) -> bytes:
    return b"".join(gzip.compress(chunk, 1) for chunk in chunks)


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(0, 3 << 20), min_size=1, max_size=4),
    cut=st.none() | st.integers(1, 40),
)
def test_a_stream_of_several_members_is_one_and_a_cut_one_is_refused(
    work: Path, sizes: list[int], cut: int | None
) -> None:
    plain = tar_of(*(entry(f"f{number}", bytes(size)) for number, size in enumerate(sizes)))
    pieces = [plain[: len(plain) // 2], plain[len(plain) // 2 :]]
    place = Path(tempfile.mkdtemp(dir=work))
    blob, root = place / "blob", place / "root"
    root.mkdir()
    packed_up = stream(pieces)
    blob.write_bytes(packed_up if cut is None else packed_up[:-cut])
    try:
        if cut is not None:
            with pytest.raises(InvalidInput):
                unpack(blob, root, sha256(plain), Limits(), lambda: None)
            return
        assert unpack(blob, root, sha256(plain), Limits(), lambda: None) == sum(sizes)
        assert [(root / f"f{number}").stat().st_size for number in range(len(sizes))] == sizes
        with pytest.raises(WrongDiffDigest):
            unpack(blob, root, sha256(b""), Limits(), lambda: None)
    finally:
        shutil.rmtree(place)
