"""The virtual machine's parts: Debian's cloud kernel, a ramdisk, a disk with Python and the suite's needs.

Made from the machine's own package sources, once, in ``$CLOCHE_CACHE_DIR/vm`` by the digest of all that goes
into them (without a cache: in a folder of this checkout). Must never install anything on the machine itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cloche.sandbox.images import sources
from cloche.sandbox.images.debian import cache_dir
from cloche.sandbox.images.tools import search_path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LOCK = ROOT / "requirements" / "dev.lock"
SUITE = "bookworm"
KERNEL = {"x86_64": "linux-image-cloud-amd64", "aarch64": "linux-image-cloud-arm64"}[platform.machine()]
# in the order in which they need one another
MODULES = (
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
)
PACKAGES = (
    *(
        "python3",
        "nftables",
        "iproute2",
        "e2fsprogs",
        "xfsprogs",
        "kmod",
        "busybox-static",
        "quota",
        "git",
        "btrfs-progs",
    ),
    *("musl-tools", "linux-libc-dev", "procps", "util-linux"),
)
DISK_BYTES = 4 << 30


@dataclass(frozen=True)
class Machine:
    """Files to boot from. ``disk`` must be copied before it is written to."""

    folder: Path

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def ramdisk(self) -> Path:
        return self.folder / "ramdisk.gz"

    @property
    def disk(self) -> Path:
        return self.folder / "disk.img"

    @property
    def release(self) -> str:
        """The kernel's version."""
        return (self.folder / "release").read_text().strip()


def call(*command: str | Path, **more: object) -> str:
    """Run a program and return what it says; raises CalledProcessError after showing its errors."""
    environment = {
        **os.environ,
        "PATH": search_path(),
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload]
    if done.returncode != 0:
        sys.stderr.write(done.stdout[-2000:] + done.stderr[-4000:])
        done.check_returncode()
    return str(done.stdout)


def kernel_package() -> str:
    """Return the versioned name that the kernel's own package depends on."""
    depends = call("apt-cache", "depends", KERNEL)
    found = re.search(r"Depends: (linux-image-[0-9]\S*)", depends)
    if found is None:
        raise SystemExit(f"error: this machine's package sources have no {KERNEL}\nhint: apt-get update")
    return found[1]


def _cache() -> Path:
    for folder in (cache_dir() / "vm", ROOT / ".venv" / "vm"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise SystemExit("error: there is no folder for the virtual machine\nhint: set CLOCHE_CACHE_DIR")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure() -> Machine:
    """Return the machine, made now if it is not there."""
    package = kernel_package()
    version = call("apt-cache", "policy", package)
    found = [source.line() for source in sources.debian_sources(sources.read(), SUITE)]
    parts = [(HERE / name).read_bytes() for name in ("init", "ramdisk", "image.py")]
    key = hashlib.sha256(b"\0".join([*parts, LOCK.read_bytes(), version.encode(), repr(found).encode()]))
    folder = _cache() / key.hexdigest()[:24]
    with _locked(folder.with_suffix(".lock")):
        if not (folder / "complete").exists():
            sys.stderr.write(f"making the virtual machine ({package}) in {folder}\n")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            scratch = "/dev/shm" if Path("/dev/shm").is_dir() else None
            with tempfile.TemporaryDirectory(prefix="cloche-vm-", dir=scratch) as work:
                _make(folder, Path(work), package, found)
            (folder / "complete").touch()
    return Machine(folder)


def _make(folder: Path, work: Path, package: str, found: list[str]) -> None:
    kernel, root = work / "kernel", work / "root"
    release = package.removeprefix("linux-image-")
    call("apt-get", "download", package, cwd=work)
    call("dpkg", "-x", next(work.glob("*.deb")), kernel)
    shutil.copy(kernel / "boot" / f"vmlinuz-{release}", folder / "vmlinuz")
    root.mkdir()
    tar = work / "root.tar"
    options = ("--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/doc/*")
    include = f"--include={','.join(PACKAGES)}"
    call("mmdebstrap", "--variant=minbase", "--mode=root", *options, include, SUITE, tar, *found)
    call("tar", "-C", root, "-xf", tar, "--exclude=./dev/*")
    tar.unlink()
    shutil.copytree(_modules(kernel) / release, root / "usr/lib/modules" / release, symlinks=True)
    call("chroot", root, "depmod", "-a", release)
    _python_packages(root / "usr/local/lib/cloche-tests")
    shutil.copy(HERE / "init", root / "init")
    (root / "init").chmod(0o755)
    (root / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
    _make_ramdisk(folder / "ramdisk.gz", work / "ramdisk", _modules(kernel) / release)
    disk = ["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", str(root), str(folder / "disk.img")]
    call("mke2fs", *disk, f"{DISK_BYTES >> 20}M")
    (folder / "release").write_text(release)


def _modules(kernel: Path) -> Path:
    merged = kernel / "usr/lib/modules"
    return merged if merged.is_dir() else kernel / "lib/modules"


def _python_packages(target: Path) -> None:
    """Install what the lock names, for Debian's Python."""
    options = ["--target", str(target), "--python-version", "3.11", "--only-binary", ":all:", "--no-deps"]
    options += [f"--platform=manylinux_2_{minor}_{platform.machine()}" for minor in (17, 28)]
    options += [f"--platform=manylinux2014_{platform.machine()}", "--require-hashes", "--no-compile"]
    call(sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *options, "-r", LOCK)


def _make_ramdisk(target: Path, folder: Path, modules: Path) -> None:
    for name in ("bin", "dev", "proc", "r", "m"):
        (folder / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", folder / "bin/busybox")
    shutil.copy(HERE / "ramdisk", folder / "init")
    (folder / "init").chmod(0o755)
    for number, name in enumerate(MODULES):
        for module in modules.rglob(f"{name}.ko*"):
            packed = module.suffix == ".xz"
            data = (
                subprocess.run(["xz", "-dc", module], capture_output=True, check=True).stdout
                if packed
                else None
            )
            (folder / "m" / f"{number}-{name}.ko").write_bytes(data or module.read_bytes())
    pack = f"find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 > '{target}'"
    subprocess.run(["sh", "-ec", pack], cwd=folder, check=True)


if __name__ == "__main__":
    sys.stdout.write(f"{ensure().folder}\n")
