"""The wheel carries the guest for both architectures, is built from what PyPI gives, needs no compiler."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of the ELF specification
PT_INTERP = 3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    environment = {**os.environ, "CLOCHE_CC": "zig", "CLOCHE_GUEST_ARCHES": "x86_64 aarch64"}
    # a copy without the checkout's own binaries, so that what is in the wheel was really made by this build
    files = subprocess.run(
        ["git", "ls-files", "-z", "src", "guest", "*.toml", "*.md", "LICENSE"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.split(b"\0")
    for name in filter(None, files):
        source = ROOT / os.fsdecode(name)
        if source.is_file():
            target = folder / "source" / os.fsdecode(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, folder / "source"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (made,) = folder.glob("*.whl")
    return made


def _header(data: bytes) -> tuple[int, list[int]]:
    """Return e_machine and the types of the program headers of a 64-bit little-endian ELF file."""
    assert data[:6] == b"\x7fELF\x02\x01"
    (machine,) = struct.unpack_from("<H", data, 18)
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    return machine, [struct.unpack_from("<I", data, offset + size * index)[0] for index in range(count)]


@pytest.mark.parametrize("arch", MACHINES)
@pytest.mark.parametrize("program", ["cloche-guest", "cloche-spawner"])
def test_the_wheel_carries_static_programs(wheel: Path, arch: str, program: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo(f"cloche/_guest/{arch}/{program}")
        data = archive.read(info)
    machine, segments = _header(data)
    assert machine == MACHINES[arch]
    assert PT_INTERP not in segments
    assert (info.external_attr >> 16) & 0o111


def test_the_installed_wheel_works_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel], check=True
    )
    program = (
        "import subprocess, cloche\nfrom cloche.sandbox.binaries import guest_path, spawner_path\n"
        "print(cloche.__file__, guest_path(), spawner_path(), sep='\\n', flush=True)\n"
        "subprocess.run([guest_path(), '--protocol-version'], check=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(site), "PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    module, guest, spawner, version = done.stdout.splitlines()
    assert all(path.startswith(str(site)) for path in (module, guest, spawner))
    assert int(version) >= 1


def test_the_arm64_guest_runs(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read("cloche/_guest/aarch64/cloche-guest")
    guest = tmp_path / "cloche-guest"
    guest.write_bytes(data)
    guest.chmod(0o755)
    done = subprocess.run(
        ["qemu-aarch64-static", guest, "--protocol-version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1
