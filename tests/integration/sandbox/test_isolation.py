"""Root inside a sandbox is nobody outside, and sees and reaches nothing of the host or of other sandboxes."""

# ruff: noqa: ASYNC230, ASYNC240  # a test may block its own loop

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

import pytest

from cloche.core.errors import InfraError
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec

RANGE = 65536
NS_GET_OWNER_UID = 0xB704  # ioctl_ns(2)


async def output(sandbox: Sandbox, line: str) -> str:
    """Run a line and return all it said, however it ended."""
    completed = await sandbox.run(Command(shell=line))
    return completed.stdout.text + completed.stderr.text


async def guest_pid(driver: LocalDriver, sandbox: Sandbox) -> int:
    """Return the pid on the host of the sandbox's first process."""
    (pid,) = [info.pid for info in await driver.list() if info.id == sandbox.id]
    assert pid is not None
    return pid


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


async def test_each_sandbox_has_ids_of_its_own(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    async with (
        await driver.create(SandboxSpec(), busybox_image) as one,
        await driver.create(SandboxSpec(), busybox_image) as two,
    ):
        uids = [int(status_of(await guest_pid(driver, each))["Uid"].split()[0]) for each in (one, two)]
        assert all(uid >= 0x70000000 for uid in uids)
        assert abs(uids[0] - uids[1]) >= RANGE
        assert (await output(one, "cat /proc/self/uid_map")).split() == ["0", str(uids[0]), str(RANGE)]


async def test_all_namespaces_are_new(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        pid = await guest_pid(driver, sandbox)
        for kind in ("user", "pid", "mnt", "uts", "ipc", "net", "cgroup"):
            assert Path(f"/proc/{pid}/ns/{kind}").readlink() != Path(f"/proc/self/ns/{kind}").readlink(), kind


async def test_files_keep_the_ids_of_the_image_on_disk(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        await output(sandbox, "touch /mine; mkdir /theirs; chown 1000:1000 /theirs; chown 65535 /mine")
        upper = settings.uppers_dir / sandbox.id / "upper"
        assert (upper / "theirs").stat().st_uid == 1000
        assert (upper / "mine").stat().st_uid == 65535
        assert "Invalid argument" in await output(sandbox, "chown 65536 /mine")


async def test_the_host_cannot_be_seen(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        seen = await output(sandbox, "cat /proc/mounts /proc/self/cgroup; ls /; env")
        for secret in (str(settings.state_dir), str(settings.run_dir), f"cloche-{settings.instance}"):
            assert secret not in seen
        processes = await output(sandbox, "ps -o pid,comm")
        assert len(processes.splitlines()) <= 4  # the heading, the guest, perhaps a shell, and ps
        assert "pytest" not in await output(sandbox, "cat /proc/*/cmdline")


@pytest.mark.parametrize(
    "path", ["/proc/1/root/", "/proc/1/cwd/", "/proc/1/fd/3", "/proc/1/environ", "/proc/1/mem"]
)
async def test_the_guest_is_closed_to_the_workloads_root(
    driver: LocalDriver, busybox_image: PreparedImage, path: str
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        assert "ermission denied" in await output(sandbox, f"head -c1 {path} || ls {path}")


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("mknod /tmp/disk b 254 0", "not permitted"),
        ("mknod /tmp/null c 1 3", "not permitted"),
        ("mount -t tmpfs none /tmp", "denied|not permitted"),
        ("mount -o bind / /tmp", "denied|not permitted"),
        ("umount /proc", "denied|not permitted|Invalid"),
        ("unshare -U true", "not permitted"),
        ("unshare -m true", "not permitted"),
        ("unshare -n true", "not permitted"),
        ("nsenter -t 1 -m true", "denied|not permitted"),
        ("hostname other", "not permitted"),
        ("echo 1 > /proc/sys/net/ipv4/ip_forward", "[Rr]ead-only"),
        ("echo 10 > /proc/sys/user/max_user_namespaces", "[Rr]ead-only|denied"),
        ("echo 7 > /proc/irq/default_smp_affinity", "[Rr]ead-only|denied"),
        ("echo core > /proc/sys/kernel/core_pattern", "[Rr]ead-only|denied"),
        ("swapoff -a; swapon /bin/busybox", "not permitted"),
        ("date -s 2001-01-01 | grep x", "not permitted"),
        ("dmesg", "not permitted"),
        ("chroot /proc/1/root true", "denied|not permitted"),
        ("echo x > /dev/new", "[Rr]ead-only|denied"),
        ("ip link add dummy0 type dummy", "not permitted"),
        ("insmod /bin/busybox", "not permitted|nvalid|No such"),
    ],
)
async def test_root_inside_may_not(
    driver: LocalDriver, busybox_image: PreparedImage, line: str, refusal: str
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        completed = await sandbox.run(Command(shell=line))
        assert completed.exit_code != 0
        assert re.search(refusal, completed.stderr.text + completed.stdout.text)


async def test_root_inside_may(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    line = (
        "set -e; su user -c id | grep -q uid=1000; mkfifo /tmp/f; "
        "ln -s a /tmp/l; chmod 4755 /bin/busybox; chroot / true; echo 127.0.0.1 alias >> /etc/hosts; "
        "echo y > /dev/shm/x; dd if=/dev/zero of=/dev/null count=1; ! echo x >/dev/full; "
        "(echo hello | nc -l -p 80 &) ; sleep 0.2; echo | nc 127.0.0.1 80 | grep -q hello; echo fine"
    )
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        assert (await output(sandbox, line)).count("fine\n") == 1


async def test_capabilities_are_dockers_fourteen(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        status = await output(sandbox, "grep -E 'Cap(Eff|Bnd|Prm)|Seccomp:' /proc/self/status")
        assert status.count("00000000a80425fb") == 3
        assert "Seccomp:\t2" in status


async def test_device_nodes_that_an_image_carries_are_dead(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    layer = settings.layers_dir / "with-devices"
    (layer / "opt").mkdir(parents=True)
    os.mknod(layer / "opt" / "zero", 0o020666, os.makedev(1, 5))
    image = PreparedImage(name="d", digest="d", layers=(*busybox_image.layers, layer))
    async with await driver.create(SandboxSpec(), image) as sandbox:
        assert "ermission denied" in await output(sandbox, "head -c1 /opt/zero")
        assert await output(sandbox, "head -c1 /dev/zero | wc -c") == "1\n"


@pytest.mark.fault("image-links-out")
@pytest.mark.parametrize("name", ["proc", "sys", "dev", "etc"])
async def test_a_link_in_the_image_where_ours_is_mounted_leads_nowhere(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings, name: str
) -> None:
    layer = settings.layers_dir / f"link-{name}"
    layer.mkdir(parents=True)
    (layer / name).symlink_to("../../store/layers")
    image = PreparedImage(name="l", digest="l", layers=(*busybox_image.layers, layer))
    before = sorted(path.name for path in settings.layers_dir.iterdir())
    with pytest.raises(InfraError, match=f"put .*{name}"):
        await driver.create(SandboxSpec(), image)
    assert sorted(path.name for path in settings.layers_dir.iterdir()) == before
    assert await driver.list() == []


async def test_a_dangling_resolv_conf_gives_way(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    layer = settings.layers_dir / "dangling"
    (layer / "etc").mkdir(parents=True)
    (layer / "etc" / "resolv.conf").symlink_to("../run/systemd/resolve/stub-resolv.conf")
    image = PreparedImage(name="r", digest="r", layers=(*busybox_image.layers, layer))
    async with await driver.create(SandboxSpec(), image) as sandbox:
        assert "nameserver" in await output(sandbox, "cat /etc/resolv.conf")


async def test_no_descriptor_of_the_host_is_inherited(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        pid = await guest_pid(driver, sandbox)
        targets = {path.name: str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
        for target in targets.values():
            assert re.match(
                r"/dev/null|socket:|anon_inode:|pipe:|/$|/proc/self|/proc/1|.*guest.log|/$", target
            ), targets
        assert len(await output(sandbox, "ls /proc/self/fd | wc -l")) <= 2


async def test_limits_per_user_are_charged_to_the_sandboxs_own_range(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    """Inotify instances, pending signals and the like are charged to the maker of a user namespace."""
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        pid = await guest_pid(driver, sandbox)
        with Path(f"/proc/{pid}/ns/user").open("rb") as namespace:
            owner = fcntl.ioctl(namespace, NS_GET_OWNER_UID, bytes(4))
        assert int.from_bytes(owner, "little") == int(status_of(pid)["Uid"].split()[0])
        assert int(await output(sandbox, "cat /proc/sys/user/max_inotify_instances")) == 512
        assert int(await output(sandbox, "cat /proc/sys/user/max_user_namespaces")) == 0


async def test_a_foreign_architecture_is_refused(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        # an x86 program of 84 bytes whose only act is int 0x80 with exit(42)
        code = (
            b"\x7fELF\x01\x01\x01"
            + bytes(9)
            + b"\x02\0\x03\0\x01\0\0\0\x54\x80\x04\x08\x34\0\0\0"
            + bytes(8)
            + b"\x34\0\x20\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"
            + b"\0\x80\x04\x08\0\x80\x04\x08\x60\0\0\0\x60\0\0\0"
            + b"\x05\0\0\0\0\x10\0\0"
            + b"\x31\xc0\x40\xb3\x2a\xcd\x80"
            + bytes(5)
        )
        await sandbox.write_file("/tmp/old", code, mode=0o755)
        completed = await sandbox.run(Command(argv=("/tmp/old",)))
        assert not completed.ok
        assert completed.exit_code != 42
