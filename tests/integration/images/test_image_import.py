"""Root file systems from tars and folders: what is kept, and what the digest means."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from cloche.sandbox.images import ImageStore
from cloche.sandbox.images.digest import tree_digest
from cloche.sandbox.spec import ImageConfig

# version 2 of the kernel's vfs_cap_data: cap_net_bind_service, permitted
CAPABILITY = bytes([1, 0, 0, 2, 0, 4]) + bytes(14)


def make_tree(root: Path) -> Path:
    root.mkdir()
    (root / "bin").mkdir()
    program = root / "bin" / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o4755)
    os.setxattr(program, "security.capability", CAPABILITY)
    os.setxattr(program, "user.note", b"\x00\xff")
    os.link(program, root / "bin" / "twin")
    (root / "link").symlink_to("bin/../bin/tool")
    (root / "outside").symlink_to("/etc/passwd")
    os.mkfifo(root / "fifo", 0o620)
    owned = root / "owned"
    owned.mkdir()
    (owned / "ünï\udcff").write_text("name that is no text")
    os.chown(owned, 1000, 1001)
    owned.chmod(0o2700)
    os.utime(owned, (1_000_000_000, 1_000_000_000))
    with (root / "sparse").open("wb") as file:
        file.seek(8 << 20)
        file.write(b"end")
    return root


def packed(root: Path) -> bytes:
    done = subprocess.run(
        ["tar", "--xattrs", "--xattrs-include=*", "--sparse", "--format=pax", "-C", root, "-cf", "-", "."],
        capture_output=True,
        check=True,
    )
    return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree")


def check_tree(layer: Path) -> None:
    program = layer / "bin" / "tool"
    assert stat.S_IMODE(program.stat().st_mode) == 0o4755
    assert os.getxattr(program, "security.capability") == CAPABILITY
    assert os.getxattr(program, "user.note") == b"\x00\xff"
    assert program.stat().st_ino == (layer / "bin" / "twin").stat().st_ino
    assert (layer / "link").readlink() == Path("bin/../bin/tool")
    assert (layer / "outside").readlink() == Path("/etc/passwd")
    assert stat.S_ISFIFO((layer / "fifo").lstat().st_mode)
    owned = (layer / "owned").stat()
    assert (owned.st_uid, owned.st_gid, stat.S_IMODE(owned.st_mode)) == (1000, 1001, 0o2700)
    assert owned.st_mtime == 1_000_000_000
    assert (layer / "owned" / "ünï\udcff").read_text() == "name that is no text"
    sparse = layer / "sparse"
    assert sparse.read_bytes() == bytes(8 << 20) + b"end"
    assert sparse.stat().st_blocks <= 8


def test_a_folder_is_kept_as_it_is(store: ImageStore, tree: Path) -> None:
    image = store.import_dir(tree, "tree")
    check_tree(image.layers[0])
    assert image.origin == "imported"


@pytest.mark.parametrize("pack", ["plain", "gzip", "xz", "zstd"])
def test_a_tar_is_kept_as_it_is_and_is_the_same_layer(
    store: ImageStore, tree: Path, tmp_path: Path, pack: str
) -> None:
    data = packed(tree)
    archive = tmp_path / "root.tar"
    if pack == "zstd":
        assert shutil.which("zstd"), "zstd is not installed"
        data = subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout
    elif pack != "plain":
        data = {"gzip": gzip.compress, "xz": lzma.compress}[pack](data)
    archive.write_bytes(data)
    image = store.import_tar(archive, "tar")
    check_tree(image.layers[0])
    assert image.layers == store.import_dir(tree, "dir").layers
    assert len(list(store.settings.layers_dir.iterdir())) == 1


def test_a_stream_is_read_without_seeking(store: ImageStore, tree: Path) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(["tar", "-C", tree, "-cf", "-", "bin/tool"], stdout=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        image = store.import_tar(stream, "piped", config=ImageConfig(user="joe"))
    assert process.wait() == 0
    assert (image.layers[0] / "bin" / "tool").read_text() == "#!/bin/sh\n"
    assert image.config.user == "joe"


def test_device_nodes_of_dev_are_left_out(store: ImageStore, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        node = tarfile.TarInfo("./dev/null")
        node.type, node.devmajor, node.devminor = tarfile.CHRTYPE, 1, 3
        archive.addfile(node)
        link = tarfile.TarInfo("./dev/fd")
        link.type, link.linkname = tarfile.SYMTYPE, "/proc/self/fd"
        archive.addfile(link)
    buffer.seek(0)
    image = store.import_tar(buffer, "dev")
    assert [path.name for path in (image.layers[0] / "dev").iterdir()] == ["fd"]


def test_what_is_mounted_below_a_folder_and_sockets_are_left_out(store: ImageStore, tree: Path) -> None:
    (tree / "proc").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tree / "proc"], check=True)
    try:
        (tree / "proc" / "inside").touch()
        image = store.import_dir(tree, "mounted")
    finally:
        subprocess.run(["umount", tree / "proc"], check=True)
    assert not (image.layers[0] / "proc").exists()


def test_a_whiteout_name_of_other_formats_is_a_plain_file_here(store: ImageStore, tree: Path) -> None:
    (tree / ".wh.bin").write_text("x")
    image = store.import_dir(tree, "plain")
    assert (image.layers[0] / ".wh.bin").read_text() == "x"
    assert (image.layers[0] / "bin" / "tool").exists()


def _mode(root: Path) -> None:
    (root / "bin" / "tool").chmod(0o755)


def _owner(root: Path) -> None:
    os.chown(root / "bin", 5, 0)


def _content(root: Path) -> None:
    (root / "sparse").write_bytes(bytes(8 << 20) + b"enD")


def _xattr(root: Path) -> None:
    os.setxattr(root / "bin" / "tool", "user.note", b"other")


def _target(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("bin")


def _name(root: Path) -> None:
    (root / "fifo").rename(root / "fifo2")


def _kind(root: Path) -> None:
    (root / "sparse").unlink()
    (root / "sparse").mkdir()


def _root(root: Path) -> None:
    root.chmod(0o700)


@pytest.mark.parametrize("change", [_mode, _owner, _content, _xattr, _target, _name, _kind, _root])
def test_the_digest_changes_with_all_that_counts(tree: Path, change: object) -> None:
    before = tree_digest(tree).digest
    assert callable(change)
    change(tree)
    assert tree_digest(tree).digest != before


def test_the_digest_does_not_change_with_times_and_hard_links(tree: Path) -> None:
    before = tree_digest(tree)
    os.utime(tree / "bin" / "tool", (7, 7))
    twin = tree / "bin" / "twin"
    twin.unlink()
    shutil.copy2(tree / "bin" / "tool", twin)
    os.setxattr(twin, "security.capability", CAPABILITY)
    after = tree_digest(tree)
    assert after.digest == before.digest
    assert after.size_bytes > before.size_bytes
