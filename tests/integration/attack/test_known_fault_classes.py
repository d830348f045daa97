"""The classes of faults that container runtimes had in public, each tried on ours.

Sources: CVE-2019-5736 (the runtime's own program overwritten through /proc/self/exe), CVE-2024-21626 (a
working directory that is a leaked descriptor), CVE-2021-30465 and CVE-2025-31133 (mounts and masks led astray
by links in the image), CVE-2022-24769 (inheritable capabilities).
"""

# a test may block its own loop

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cloche.core.errors import ClocheError
from cloche.sandbox.binaries import guest_path
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, EndReason, PreparedImage, SandboxSpec, Volume


def digest_of_the_guest() -> str:
    return hashlib.sha256(guest_path().read_bytes()).hexdigest()


@pytest.mark.fault("runtime-program-overwritten")
async def test_the_guests_program_cannot_be_overwritten_through_proc(
    driver: LocalDriver, busybox_image: PreparedImage, hostile: Sandbox
) -> None:
    before = digest_of_the_guest()
    await hostile.write_file("/bin/again", b"#!/proc/self/exe\n", mode=0o755)
    await hostile.run(Command(shell="ln -s /proc/self/exe /bin/link"))
    attempts = (
        ("/bin/again",),
        ("/proc/self/exe", "--protocol-version"),
        ("/bin/link", "--protocol-version"),
        ("reach", "overwrite", "/proc/1/exe"),
        ("reach", "overwrite", "/proc/self/exe"),
    )
    for argv in attempts:
        completed = await hostile.run(Command(argv=argv, timeout_s=2.0, grace_s=0))
        assert "done" not in completed.stdout.text
    writer = "i=0; while [ $i -lt 200 ]; do for f in /proc/[0-9]*/exe; do echo x >$f; done; i=$((i+1)); done"
    writing = await hostile.start(Command(shell=f"({writer}) 2>/dev/null", grace_s=0))
    for _ in range(50):  # each start is the guest's own program for a moment
        await hostile.run(Command(argv=("/bin/true",)))
    await writing.cancel()
    assert digest_of_the_guest() == before
    async with await driver.create(SandboxSpec(), busybox_image) as another:
        assert (await another.run(Command(argv=("/bin/true",)))).ok


@pytest.mark.fault("leaked-working-directory")
async def test_no_working_directory_is_a_descriptor_of_the_guest(hostile: Sandbox) -> None:
    await hostile.run(Command(shell="ln -s /proc/self/fd/11 /work"))
    for path in ["/work", *(f"/proc/{who}/fd/{n}" for who in ("self", "1") for n in range(24))]:
        completed = await hostile.run(Command(argv=("/bin/ls", "-a"), cwd=path))
        assert completed.reason is EndReason.START_FAILED, path


async def test_a_command_inherits_no_descriptor(hostile: Sandbox) -> None:
    completed = await hostile.run(Command(shell="ls -l /proc/self/fd | sed 's/.*-> //'"))
    targets = [
        line for line in completed.stdout.text.splitlines() if line.startswith(("/", "anon", "socket"))
    ]
    assert all(target == "/dev/null" or "/fd" in target for target in targets), targets


@pytest.mark.fault("mount-led-astray")
@pytest.mark.parametrize("leads", ["/proc", "/proc/sys", "../../../..", "/sys/kernel", "/dev"])
async def test_a_volume_on_a_link_of_the_image_covers_nothing_of_ours(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings, tmp_path: Path, leads: str
) -> None:
    layer = settings.layers_dir / f"astray-{abs(hash(leads))}"
    layer.mkdir(parents=True)
    (layer / "data").symlink_to(leads)
    image = PreparedImage(name="a", digest="a", layers=(*busybox_image.layers, layer))
    (tmp_path / "own").write_text("x")
    spec = SandboxSpec(volumes=(Volume(source=tmp_path, target="/data"),))
    try:
        sandbox = await driver.create(spec, image)
    except ClocheError:
        return  # refused by name, with nothing left: the fixture looks
    async with sandbox:
        for path in ("/proc/sysrq-trigger", "/proc/kcore", "/proc/sys/kernel/core_pattern"):
            tried = await sandbox.run(Command(shell=f"echo x >{path} || head -c 1 {path} >/dev/full"))
            assert not tried.ok, path


async def test_what_is_masked_stays_masked_while_the_image_is_changed(hostile: Sandbox) -> None:
    line = (
        "mv /proc /elsewhere; rm -rf /sys; ln -s /tmp /proc2; rmdir /proc; umount -l /proc /sys; ls /proc/1"
    )
    completed = await hostile.run(Command(shell=line))
    assert "cmdline" in completed.stdout.text
    assert (
        await hostile.run(Command(argv=("reach", "overwrite", "/proc/sysrq-trigger")))
    ).stdout.text != "done\n"


async def test_capabilities_are_not_inheritable(hostile: Sandbox) -> None:
    told = (await hostile.run(Command(shell="grep -E 'Cap(Inh|Amb)' /proc/self/status"))).stdout.text
    assert [line.split()[1] for line in told.splitlines()] == ["0" * 16] * 2
