"""``scripts/test-vm``: run tests in a virtual machine with pure cgroup v2, under software emulation.

Needs qemu-system and mmdebstrap. Arguments are pytest's; without any, the suite of ``SUITE`` runs. Must never
need KVM, a network, or a change of this machine.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from image import ROOT, Machine, ensure

SUITE = (
    *("tests/vm/pure_v2.py", "tests/anomaly/sandbox/test_host_memory.py"),
    *("tests/integration/sandbox", "tests/integration/attack"),
    *("--deselect", "tests/integration/sandbox/test_public_network.py"),
)
SOURCES = ("src", "guest", "tests", "pyproject.toml", "docs")
STATUS = re.compile(rb"^status=(\d+)$", re.MULTILINE)
SECTOR = 512


def job_files() -> Iterator[Path]:
    """Yield what the tests need of this checkout, the compiled programs too."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *SOURCES]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    yield from (path for name in listed if name and (path := ROOT / name).is_file())
    yield from (path for path in (ROOT / "src/cloche/_guest").rglob("*") if path.is_file())


def pack(target: Path, arguments: list[str]) -> None:
    """Write the second disk: a tar, padded to whole sectors."""
    run = target.with_suffix(".run")
    run.write_text(f"exec sh tests/vm/job {shlex.join(arguments)}\n")
    with tarfile.open(target, "w") as tar:
        for path in job_files():
            tar.add(path, path.relative_to(ROOT))
        tar.add(run, "run")
    with target.open("r+b") as file:
        size = file.seek(0, 2)
        file.truncate(-(-size // SECTOR) * SECTOR)


def command(machine: Machine, work: Path, options: argparse.Namespace) -> list[str]:
    """Return qemu's command line."""
    drives = [
        f"file={work}/disk.img,if=virtio,format=raw,cache=unsafe",
        f"file={work}/job.tar,if=virtio,format=raw,readonly=on",
    ]
    return [
        f"qemu-system-{'x86_64' if machine.release.endswith('amd64') else 'aarch64'}",
        *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(options.cpus), "-m", str(options.memory)),
        *("-nographic", "-nodefaults", "-no-reboot", "-kernel", str(machine.kernel)),
        *("-initrd", str(machine.ramdisk), "-append", "console=ttyS0 quiet panic=-1"),
        *(part for drive in drives for part in ("-drive", drive)),
        *("-serial", f"file:{work}/serial.txt", "-chardev", f"file,id=o,path={work}/out.txt"),
        *("-device", "virtio-serial-pci", "-device", "virtserialport,chardev=o,name=out"),
    ]


def follow(process: subprocess.Popen[bytes], out: Path) -> bytes:
    """Show the output as it comes, and return all of it once the machine is off."""
    shown = 0
    while True:
        over = process.poll() is not None
        data = out.read_bytes() if out.exists() else b""
        sys.stdout.buffer.write(data[shown:])
        sys.stdout.flush()
        shown = len(data)
        if over:
            return data
        time.sleep(0.5)


def main() -> int:
    """Boot, run, and return what the tests returned; 5 where the machine did not come that far."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpus", type=int, default=1, help="one is the fastest on a busy machine")
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB")
    parser.add_argument("--timeout", type=float, default=5400.0, metavar="SECONDS")
    options, arguments = parser.parse_known_args()
    machine = ensure()
    with tempfile.TemporaryDirectory(prefix="cloche-vm-", dir="/var/tmp") as folder:
        work = Path(folder)
        pack(work / "job.tar", arguments or list(SUITE))
        subprocess.run(["cp", "--sparse=always", machine.disk, work / "disk.img"], check=True)
        started = time.monotonic()
        process = subprocess.Popen(command(machine, work, options))
        try:
            output = follow_until(process, work / "out.txt", options.timeout)
        finally:
            process.kill()
            process.wait()
        status = STATUS.search(output)
        took = f"{time.monotonic() - started:.0f} s, Linux {machine.release}, {options.cpus} emulated cpu(s)"
        if status is None:
            shutil.copyfileobj((work / "serial.txt").open("rb"), sys.stderr.buffer)
            sys.stderr.write(f"error: the virtual machine did not finish ({took})\n")
            return 5
        sys.stdout.write(f"virtual machine: {took}\n")
        return int(status[1])


def follow_until(process: subprocess.Popen[bytes], out: Path, timeout_s: float) -> bytes:
    """Follow for at most this long; the machine is off afterwards."""
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    try:
        return follow(process, out)
    finally:
        timer.cancel()


if __name__ == "__main__":
    raise SystemExit(main())
