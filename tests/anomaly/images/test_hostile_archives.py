"""Archives that want out of the image, or to fill the disk: refused by name, and nothing is left."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloche.core.errors import ClocheError, InvalidInput
from cloche.sandbox.images import ImageStore, folder
from cloche.sandbox.images.archive import extract
from cloche.sandbox.images.tree import Limits, TreeWriter


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", **more: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    for key, value in more.items():
        setattr(info, key, value)
    return info


def archive(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as file:
        for item in members:
            info, data = item if isinstance(item, tuple) else (item, b"")
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def nothing_is_left(store: ImageStore) -> None:
    assert store.list() == ()
    staging = store.settings.state_dir / "staging"
    assert not staging.exists() or list(staging.iterdir()) == []
    assert not store.settings.layers_dir.exists() or list(store.settings.layers_dir.iterdir()) == []


def xattr(name: str) -> dict[str, object]:
    return {"pax_headers": {f"SCHILY.xattr.{name}": "y"}}


LNK, SYM, DIR, CHR, BLK = tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE

HOSTILE = {
    "dot-dot": (lambda: archive(member("a/../../victim")), "a/../../victim"),
    "dot-dot-folder": (lambda: archive(member("..", DIR)), "'..'"),
    "absolute": (lambda: archive(member("/victim")), "absolute path"),
    "through-symlink": (lambda: archive(member("out", SYM, "/etc"), member("out/victim")), "out/victim"),
    "through-relative-symlink": (
        lambda: archive(member("d", DIR), member("d/up", SYM, "../.."), member("d/up/victim")),
        "d/up/victim",
    ),
    "folder-over-symlink": (lambda: archive(member("out", SYM, "/etc"), member("out", DIR)), "'out'"),
    "file-over-symlink": (lambda: archive(member("out", SYM, "/etc/passwd"), (member("out"), b"x")), "twice"),
    "symlink-over-folder": (lambda: archive(member("d/x", DIR), member("d", SYM, "/etc")), "twice"),
    "hard-link-absolute": (lambda: archive(member("h", LNK, "/etc/passwd")), "absolute path"),
    "hard-link-dot-dot": (lambda: archive(member("h", LNK, "../victim")), "leads out"),
    "hard-link-through-symlink": (
        lambda: archive(member("e", SYM, "/etc"), member("h", LNK, "e/passwd")),
        "goes through 'e'",
    ),
    "hard-link-to-nothing": (lambda: archive(member("h", LNK, "none")), "not in the image before it"),
    "hard-link-to-folder": (lambda: archive(member("d", DIR), member("h", LNK, "d")), "to the folder"),
    "device": (lambda: archive(member("etc/disk", BLK, devmajor=8, devminor=0)), "etc/disk"),
    "device-beside-dev": (lambda: archive(member("devs/mem", CHR, devmajor=1, devminor=1)), "device node"),
    "owner": (lambda: archive(member("f", uid=100_000)), "65,536 ids"),
    "group": (lambda: archive(member("f", gid=65_536)), "65,536 ids"),
    "overlay-mark": (lambda: archive(member("d", DIR, **xattr("trusted.overlay.redirect"))), "xattr"),
    "long-name": (lambda: archive(member("x" * 300)), "too long"),
    "deep": (lambda: archive(member("d/" * 300 + "f")), "too deep"),
    "root-is-a-file": (lambda: archive((member("."), b"x")), "root of the image"),
    "unknown-kind": (lambda: archive(member("v", b"V")), "'v' is of a kind"),
}


@pytest.mark.fault("hostile-archive")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_member_that_an_image_cannot_hold_is_named_and_nothing_is_left(
    store: ImageStore, tmp_path: Path, name: str
) -> None:
    make, message = HOSTILE[name]
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "store")}
    with pytest.raises(InvalidInput, match=message):
        store.import_tar(make(), "hostile")
    nothing_is_left(store)
    after = {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "store")}
    assert after == before
    assert not Path("/etc/victim").exists()


def test_a_member_that_comes_twice_is_replaced_as_tar_does(store: ImageStore) -> None:
    twice = archive(
        (member("f"), b"old"),
        member("l", SYM, "one"),
        member("h", LNK, "f"),
        (member("f", mode=0o600), b"new"),
        member("l", SYM, "two"),
        member("h", LNK, "h"),
        member("d", DIR, mode=0o700),
        member("d", DIR, mode=0o711),
    )
    layer = store.import_tar(twice, "twice").layers[0]
    assert (layer / "f").read_bytes() == b"new"
    assert (layer / "h").read_bytes() == b"old"
    assert (layer / "l").readlink() == Path("two")
    assert (layer / "d").stat().st_mode & 0o777 == 0o711


def _truncated() -> bytes:
    whole = archive((member("first"), b"x" * 3000), (member("second"), b"y" * 3000)).getvalue()
    return whole[: 512 + 3072 + 512]


@pytest.mark.fault("archive-damaged")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a readable archive"),
        (b"this is no archive" * 100, "not a readable archive"),
        (_truncated(), "first|second"),
        (archive((member("first"), b"x")).getvalue()[:1024], "ends early after 'first'"),
        (b"\x1f\x8b" + bytes(600), "not a readable archive"),
        (b"\x28\xb5\x2f\xfd" + bytes(600), "not a readable archive"),
        (b"\xfd7zXZ\x00" + bytes(600), "not a readable archive"),
    ],
)
def test_a_damaged_archive_is_refused_as_a_whole(store: ImageStore, data: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        store.import_tar(io.BytesIO(data), "damaged")
    nothing_is_left(store)


def test_an_absurd_header_is_refused_before_it_fills_the_memory(store: ImageStore) -> None:
    info = member("x", tarfile.XHDTYPE)
    info.size = 4 << 30
    data = info.tobuf(format=tarfile.GNU_FORMAT) + bytes(4096)
    with pytest.raises(InvalidInput, match="extended header"):
        store.import_tar(io.BytesIO(data), "absurd")
    nothing_is_left(store)


def _sparse(size: int) -> io.BytesIO:
    """A file of ``size`` zeros in a few hundred bytes (PAX sparse format 0.1)."""
    info = member("huge")
    info.pax_headers = {
        "GNU.sparse.map": f"0,0,{size},0",
        "GNU.sparse.size": str(size),
        "GNU.sparse.name": "huge",
    }
    return archive(info)


@pytest.mark.fault("image-too-large")
def test_an_image_larger_than_the_limit_is_refused_by_the_member_that_passes_it(store: ImageStore) -> None:
    small = ImageStore(store.settings, limits=Limits(entries=3, total_bytes=1000))
    with pytest.raises(InvalidInput, match="'b' makes the image larger than 1000 bytes"):
        small.import_tar(archive((member("a"), bytes(600)), (member("b"), bytes(600))), "large")
    with pytest.raises(InvalidInput, match="'d' is one entry too many"):
        small.import_tar(archive(*(member(name) for name in "abcd")), "many")
    with pytest.raises(InvalidInput, match="'huge' makes the image larger"):
        small.import_tar(_sparse(1 << 50), "sparse")
    nothing_is_left(store)


def test_holes_stay_holes(store: ImageStore) -> None:
    layer = store.import_tar(_sparse(64 << 20), "sparse").layers[0]
    assert (layer / "huge").stat().st_size == 64 << 20
    assert (layer / "huge").stat().st_blocks == 0


NAMES = st.lists(
    st.sampled_from(["a", "b", "..", ".", "", "etc", "victim", "x" * 256]), min_size=1, max_size=4
).map("/".join)
KINDS = st.sampled_from([tarfile.REGTYPE, DIR, SYM, LNK, tarfile.FIFOTYPE, CHR])
TARGETS = st.one_of(NAMES, st.sampled_from(["/etc", "..", "../..", "/", "a", "a/b"]))
MEMBERS = st.lists(st.tuples(NAMES, KINDS, TARGETS), max_size=12)


def _snapshot(root: Path, left_out: Path) -> dict[str, tuple[int, int, float]]:
    found = {}
    for path in root.rglob("*"):
        if not path.is_relative_to(left_out):
            status = path.lstat()
            found[str(path)] = (status.st_mode, status.st_size, status.st_mtime)
    return found


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MEMBERS)
def test_nothing_is_ever_written_outside(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    place = tmp_path / "around" / "inside"
    place.mkdir(parents=True, exist_ok=True)
    (tmp_path / "victim").write_text("safe")
    for path in place.iterdir():
        _remove(path)
    before = _snapshot(tmp_path, place)
    data = archive(*((member(name, kind, target), b"data") for name, kind, target in members))
    try:
        with TreeWriter(place, Limits()) as writer:
            extract(data, writer)
            writer.finish()
    except ClocheError:
        pass
    assert _snapshot(tmp_path, place) == before


def _remove(path: Path) -> None:
    if not path.is_symlink() and path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def test_a_symlink_put_in_the_place_of_a_folder_while_it_is_copied_is_not_followed(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "place"
    (source / "z").mkdir(parents=True)
    (source / "a").write_text("x")
    place.mkdir()
    turns = iter([None])

    def swap() -> None:
        for _ in turns:
            (source / "z").rmdir()
            (source / "z").symlink_to("/etc")

    with TreeWriter(place, Limits()) as writer:
        folder.copy(source, writer, check=swap)
        writer.finish()
    assert (place / "z").readlink() == Path("/etc")
    assert sorted(path.name for path in place.iterdir()) == ["a", "z"]


def test_a_folder_that_holds_the_store_is_refused(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds the image store itself"):
        store.import_dir(tmp_path, "all")


@pytest.mark.parametrize("source", ["missing", "file"])
def test_a_source_that_cannot_be_read_is_said(store: ImageStore, tmp_path: Path, source: str) -> None:
    (tmp_path / "file").write_text("x")
    imports: list[Callable[[], object]] = [lambda: store.import_dir(tmp_path / source, "x")]
    if source == "missing":
        imports.append(lambda: store.import_tar(tmp_path / source, "x"))
    for attempt in imports:
        with pytest.raises(InvalidInput, match=f"cannot read.*{source}"):
            attempt()
    nothing_is_left(store)
