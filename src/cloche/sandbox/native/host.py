"""What the native runtime needs of a machine, as facts; each lack is an error that says what to do.

``root`` is where the machine's ``/proc`` is looked for, so that tests can describe other machines. Must
never change anything.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

from cloche.core.errors import EnvironmentUnusable
from cloche.sandbox.native.cgroups import Layout, parse

ARCHITECTURES = ("x86_64", "aarch64")
KERNEL_MIN = (5, 19)
"""The first kernel whose overlay takes id-mapped layers."""


@dataclass(frozen=True, slots=True)
class Host:
    """One machine. The defaults are the one this runs on."""

    root: Path = Path("/")
    euid: int = field(default_factory=os.geteuid)
    release: str = field(default_factory=platform.release)
    machine: str = field(default_factory=platform.machine)

    def read(self, path: str) -> str | None:
        """Return a file of the kernel, stripped; None where there is none."""
        try:
            return (self.root / path.lstrip("/")).read_text().strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
            return None

    def number(self, path: str) -> int | None:
        """Return a file of the kernel that holds one number."""
        text = self.read(path)
        return int(text) if text is not None and text.isdigit() else None

    @property
    def kernel(self) -> tuple[int, int]:
        """Major and minor version."""
        parts = self.release.split("-", 1)[0].split(".")
        return int(parts[0]), int("".join(filter(str.isdigit, parts[1])) or 0)

    @property
    def user_namespaces(self) -> int:
        """How many user namespaces may be made."""
        return self.number("/proc/sys/user/max_user_namespaces") or 0

    @property
    def has_overlay(self) -> bool:
        """Whether the kernel has the overlay file system now (it may be a module that is not loaded)."""
        return "overlay" in (self.read("/proc/filesystems") or "").split()

    @property
    def cgroups(self) -> Layout:
        """Where control groups are mounted."""
        v1, v2 = parse(self.read("/proc/self/mountinfo") or "")
        controllers = self.read(f"{v2}/cgroup.controllers") if v2 else None
        return Layout(v1, v2, frozenset((controllers or "").split()))


def lacks(host: Host) -> dict[str, EnvironmentUnusable]:
    """Return why no sandbox can be made on this machine, by what it lacks, worst first."""
    tests = {
        "machine": (
            host.machine in ARCHITECTURES,
            f"sandboxes are not supported on {host.machine}",
            f"use one of {', '.join(ARCHITECTURES)}",
        ),
        "root": (host.euid == 0, "the native runtime needs root", "run the command as root"),
        "kernel": (
            host.kernel >= KERNEL_MIN,
            f"Linux {host.release} is too old: its overlay takes no id-mapped layers",
            f"use Linux {KERNEL_MIN[0]}.{KERNEL_MIN[1]} or newer",
        ),
        "user namespaces": (
            host.user_namespaces > 0,
            "user namespaces are switched off",
            "sysctl -w user.max_user_namespaces=65536",
        ),
        "overlay": (host.has_overlay, "this kernel has no overlay file system", "modprobe overlay"),
        "cgroups": (
            host.cgroups.name != "none",
            "no control groups are mounted, so nothing could be limited",
            "mount -t cgroup2 none /sys/fs/cgroup",
        ),
    }
    return {
        name: EnvironmentUnusable(message, hint=hint)
        for name, (good, message, hint) in tests.items()
        if not good
    }


def check(host: Host | None = None) -> None:
    """Raise EnvironmentUnusable with the worst lack, if there is any."""
    for error in lacks(host or Host()).values():
        raise error
