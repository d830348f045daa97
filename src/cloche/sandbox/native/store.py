"""What the store's file system can hold a sandbox to, and a store of our own making where it cannot.

``btrfs`` with quotas limits each sandbox that asks for it (a subvolume and its qgroup). Elsewhere nothing
does, unless ``CLOCHE_DISK_LIMIT=tmpfs`` says that writable layers with a limit may be kept in memory. Must
never make, mount or remove a store but by the explicit calls of this module.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import uuid
from pathlib import Path

from cloche.core.errors import EnvironmentUnusable, InvalidInput
from cloche.sandbox.native import launch
from cloche.sandbox.settings import Settings

BTRFS, TMPFS, NONE = "btrfs", "tmpfs", ""
SIZE_BYTES_MIN = 256 << 20
_BTRFS_IOC_FS_INFO = 0x8400941F  # linux/btrfs.h
_FS_INFO_BYTES = 1024
_FSID = slice(16, 32)


def disk_limits(settings: Settings) -> str:
    """Return how a disk limit is enforced here: ``btrfs``, ``tmpfs``, or "" where it is not."""
    fsid = _btrfs_fsid(settings.state_dir)
    if fsid is not None and Path(f"/sys/fs/btrfs/{fsid}/qgroups").is_dir():
        return BTRFS
    return TMPFS if os.environ.get("CLOCHE_DISK_LIMIT") == TMPFS else NONE


def _btrfs_fsid(folder: Path) -> uuid.UUID | None:
    """Return the name of the btrfs that a folder is on; None where it is on none, or not there yet."""
    answer = bytearray(_FS_INFO_BYTES)
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.ioctl(fd, _BTRFS_IOC_FS_INFO, answer)
    except OSError:
        return None
    finally:
        os.close(fd)
    return uuid.UUID(bytes=bytes(answer[_FSID]))


def backing_file(settings: Settings) -> Path:
    """Return where the file is that a store of our own making lies in."""
    return settings.state_dir.with_name(f"{settings.state_dir.name}.btrfs")


def make_store(settings: Settings, size_bytes: int) -> Path:
    """Make a btrfs of this size in a sparse file, with quotas, and mount it as the state folder.

    The mount lasts until the machine is down; the returned file can be mounted again (``mount_store``).
    Raises InvalidInput where the state folder holds anything, EnvironmentUnusable without root, btrfs-progs,
    or a kernel that has btrfs.
    """
    file = backing_file(settings)
    if size_bytes < SIZE_BYTES_MIN:
        raise InvalidInput(f"a store has at least {SIZE_BYTES_MIN >> 20} MiB")
    if file.exists():
        raise InvalidInput(f"{file} is there already", hint="mount it: cloche store mount")
    if settings.state_dir.is_dir() and any(settings.state_dir.iterdir()):
        raise InvalidInput(
            f"{settings.state_dir} is not empty", hint="point CLOCHE_STATE_DIR at a new folder, or empty it"
        )
    _idle(settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("xb") as made:
            made.truncate(size_bytes)
        file.chmod(0o600)
        _run("mkfs.btrfs", "--quiet", str(file))
        mount_store(settings)
    except BaseException:
        file.unlink()
        raise
    return file


def mount_store(settings: Settings) -> None:
    """Mount a store that ``make_store`` made. Raises as that does."""
    file = backing_file(settings)
    if not file.is_file():
        raise InvalidInput(f"there is no {file}", hint="make it: cloche store make --size 50GiB")
    if os.path.ismount(settings.state_dir):
        raise InvalidInput(f"{settings.state_dir} is a mount already")
    _idle(settings)
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    _run("mount", "-o", "loop,nosuid,nodev,noatime", str(file), str(settings.state_dir))
    try:
        settings.state_dir.chmod(0o700)
        _run("btrfs", "quota", "enable", str(settings.state_dir))
    except BaseException:
        _run("umount", str(settings.state_dir))
        raise


def remove_store(settings: Settings) -> None:
    """Unmount a store that ``make_store`` made and remove it with all its images."""
    _idle(settings)
    file = backing_file(settings)
    if not file.is_file():
        raise InvalidInput(f"there is no {file}")
    if os.path.ismount(settings.state_dir):
        _run("umount", str(settings.state_dir))
    file.unlink()


def _idle(settings: Settings) -> None:
    if os.geteuid() != 0:
        raise EnvironmentUnusable("a store needs root", hint="run the command as root")
    if launch.lock_is_held(settings):
        raise InvalidInput("the spawner of this installation runs", hint="delete all sandboxes first")


def _run(program: str, *arguments: str) -> None:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    try:
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    except FileNotFoundError:
        raise EnvironmentUnusable(f"{program} is not installed", hint="apt-get install btrfs-progs") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        raise EnvironmentUnusable(f"{program}: {said}", hint="does this kernel have btrfs and loop devices?")
