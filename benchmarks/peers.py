"""The peers beside cloche in a run: the kernel's floor, crun and podman, on the same root file system.

Must never touch a peer's default storage: everything is below a folder of the benchmark's own.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import HERE, Series

CONTAINERS_CONF = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
cgroup_manager = "cgroupfs"
"""


def make_rootfs(folder: Path) -> Path:
    """Make a root file system of one static busybox under ``folder`` and return it."""
    source = shutil.which("busybox")
    assert source is not None
    for name in ("bin", "proc", "sys", "dev", "tmp", "etc", "mnt", "root"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(source, folder / "bin" / "busybox")
    for applet in ("true", "sh", "sleep", "cat", "id"):
        (folder / "bin" / applet).symlink_to("busybox")
    (folder / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (folder / "etc" / "group").write_text("root:x:0:\n")
    return folder


async def repeat(
    name: str, argv: Sequence[str], count: int, workers: int, env: dict[str, str] | None = None
) -> Series:
    """Run a command ``count`` times with ``workers`` at once and time each from start to end."""
    times: list[float] = []
    failures = 0
    left = count

    async def worker(number: int) -> None:
        nonlocal left, failures
        while left > 0:
            left -= 1
            line = [part.format(n=f"{number}-{left}") for part in argv]
            begin = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                *line, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            failures += await process.wait() != 0
            times.append((time.perf_counter() - begin) * 1e3)

    begin = time.perf_counter()
    await asyncio.gather(*(worker(number) for number in range(workers)))
    return Series(name, times, time.perf_counter() - begin, failures)


def floor(work: Path, rootfs: Path, count: int, workers: int) -> Series:
    """Run the bare C program (``benchmarks/floor.c``) on ``work``'s file system."""
    program = work / "floor"
    if not program.exists():
        subprocess.run(["gcc", "-O2", "-o", program, HERE / "floor.c"], check=True)
    store = work / "floor-store"
    if not store.exists():
        shutil.copytree(rootfs, store / "lower", symlinks=True)
    done = subprocess.run(
        [program, store, store / "lower", str(count), str(workers)], capture_output=True, check=True
    )
    data = json.loads(done.stdout)
    return Series(f"kernel floor (bare C), {workers} workers", data["cycles_ms"], data["wall_s"])


def allow_crun_on_hybrid_cgroups() -> None:
    """Take hugetlb out of the v2 tree, where hybrid cgroups are in use: crun refuses to start otherwise."""
    controllers = Path("/sys/fs/cgroup/unified/cgroup.controllers")
    if not controllers.exists() or not controllers.read_text().strip():
        return
    target = Path("/sys/fs/cgroup/hugetlb")
    target.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "cgroup", "-o", "hugetlb", "hugetlb", target], check=True)


class Crun:
    """``crun run`` over a ready bundle: the fastest of the usual container runtimes."""

    def __init__(self, work: Path, rootfs: Path) -> None:
        self.bundle = work / "crun-bundle"
        self.bundle.mkdir(exist_ok=True)
        self.root = work / "crun-root"
        subprocess.run(["crun", "spec"], cwd=self.bundle, check=True)
        path = self.bundle / "config.json"
        spec: dict[str, Any] = json.loads(path.read_text())
        spec["process"].update(terminal=False, args=["/bin/true"])
        spec["process"].pop("rlimits", None)
        spec["root"] = {"path": str(rootfs), "readonly": True}
        spec["linux"]["resources"] = {
            "memory": {"limit": 512 << 20},
            "pids": {"limit": 512},
            "cpu": {"quota": 100000, "period": 100000},
        }
        path.write_text(json.dumps(spec))

    def run_argv(self) -> list[str]:
        """Return the command of one whole life."""
        return ["crun", "--root", str(self.root), "run", "--bundle", str(self.bundle), "bench-{n}"]


class Podman:
    """``podman run --rm`` and ``podman exec`` with storage of our own and no network."""

    def __init__(self, work: Path, rootfs: Path) -> None:
        conf = work / "containers.conf"
        conf.write_text(CONTAINERS_CONF)
        self.env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(work), "CONTAINERS_CONF": str(conf)}
        self.base = ["podman", "--root", str(work / "podman-root"), "--runroot", str(work / "podman-run")]
        archive = work / "rootfs.tar"
        subprocess.run(["tar", "-C", rootfs, "-cf", archive, "."], check=True)
        self._call("import", "-q", str(archive), "localhost/bench:1")

    def _call(self, *arguments: str) -> None:
        subprocess.run([*self.base, *arguments], env=self.env, check=True, stdout=subprocess.DEVNULL)

    def run_argv(self) -> list[str]:
        """Return the command of one whole life."""
        limits = ["--memory", "512m", "--pids-limit", "512", "--cpus", "1"]
        return [
            *self.base,
            "run",
            "--rm",
            "--pull=never",
            "--network=none",
            *limits,
            "localhost/bench:1",
            "/bin/true",
        ]

    def start_one(self) -> list[str]:
        """Start a container that stays and return the command of one exec in it."""
        self._call(
            "run",
            "-d",
            "--name",
            "bench",
            "--network=none",
            "--pull=never",
            "localhost/bench:1",
            "/bin/sleep",
            "3600",
        )
        return [*self.base, "exec", "bench", "/bin/true"]

    def stop(self) -> None:
        """Remove every container and the image."""
        self._call("rm", "-f", "-t", "0", "-a")
        self._call("rmi", "-f", "-a")
