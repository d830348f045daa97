"""Ways into the kernel that all of the machine shares: shut, whoever knocks from inside."""

from __future__ import annotations

import pytest

from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command

REFUSED = {"Operation not permitted\n", "Function not implemented\n"}
CALLS = {
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "reboot": 169,
    "swapon": 167,
    "swapoff": 168,
    "acct": 163,
    "settimeofday": 164,
    "clock_settime": 227,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "quotactl": 179,
    "syslog": 103,
    "fanotify_init": 300,
    "open_tree": 428,
    "mount_setattr": 442,
    "fspick": 433,
    "move_mount": 429,
    "lookup_dcookie": 212,
    "nfsservctl": 180,
    "uselib": 134,
    "kcmp": 312,
    "move_pages": 279,
    "unshare": 272,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.fault("system-wide-calls")
async def test_calls_that_act_on_the_whole_machine_are_refused(hostile: Sandbox, name: str) -> None:
    flags = "0x10000000" if name == "unshare" else "0"
    completed = await hostile.run(Command(argv=("probe", "call", str(CALLS[name]), flags, "0")))
    assert completed.stdout.text in REFUSED


@pytest.mark.parametrize(
    ("what", "family", "kind", "protocol"),
    [("vsock", 40, 1, 0), ("key management", 15, 3, 2), ("bluetooth", 31, 3, 1)],
)
async def test_families_of_sockets_that_reach_past_the_network_are_refused(
    hostile: Sandbox, what: str, family: int, kind: int, protocol: int
) -> None:
    completed = await hostile.run(Command(argv=("reach", "socket", str(family), str(kind), str(protocol))))
    assert not completed.ok, what


@pytest.mark.parametrize(
    "path",
    [
        "/proc/kcore",
        "/proc/keys",
        "/proc/timer_list",
        "/proc/sched_debug",
        "/proc/latency_stats",
        "/proc/kmsg",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/fuse",
        "/dev/kvm",
        "/dev/net/tun",
        "/dev/loop-control",
        "/dev/vda",
        "/sys/kernel/debug/sched",
        "/sys/kernel/security/lsm",
        "/sys/firmware/acpi/tables/DSDT",
        "/sys/firmware/efi/efivars",
    ],
)
@pytest.mark.fault("host-told-by-proc")
async def test_what_tells_of_the_host_has_nothing_to_read(hostile: Sandbox, path: str) -> None:
    completed = await hostile.run(Command(shell=f"head -c 64 {path}"))
    assert completed.stdout.head == b""


async def test_addresses_of_the_kernel_are_hidden(hostile: Sandbox) -> None:
    told = await hostile.run(Command(shell="cut -d' ' -f1 /proc/kallsyms /proc/modules | sort -u | head -3"))
    assert not any(word.strip("0") for word in told.stdout.text.split() if len(word) == 16)


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/sysrq",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/randomize_va_space",
        "/proc/sys/kernel/unprivileged_bpf_disabled",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/sys/fs/file-max",
        "/proc/sys/user/max_user_namespaces",
        "/proc/irq/0/smp_affinity",
        "/proc/bus/pci/devices",
        "/sys/kernel/uevent_helper",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/power/state",
        "/sys/module/kernel/parameters/panic",
        "/sys/fs/cgroup/release_agent",
        "/sys/fs/cgroup/notify_on_release",
        "/sys/fs/cgroup/cgroup.procs",
        "/proc/self/attr/current",
    ],
)
@pytest.mark.fault("host-set-by-proc")
async def test_what_sets_the_host_cannot_be_written(hostile: Sandbox, path: str) -> None:
    completed = await hostile.run(Command(argv=("reach", "overwrite", path)))
    assert completed.stdout.text != "done\n"


async def test_no_control_group_is_in_sight_and_none_can_be_mounted(hostile: Sandbox) -> None:
    line = (
        "mkdir /tmp/c; for kind in cgroup cgroup2; do mount -t $kind x /tmp/c && echo mounted; done; "
        "find / -xdev -name 'cgroup.*' -o -name release_agent 2>/dev/null | grep -v '^/proc' | head -3"
    )
    assert (await hostile.run(Command(shell=line))).stdout.text == ""


@pytest.mark.parametrize("pid", ["1", "2"])
async def test_the_guest_cannot_be_traced(hostile: Sandbox, pid: str) -> None:
    completed = await hostile.run(Command(argv=("reach", "attach", pid)))
    assert completed.stdout.text in {"Operation not permitted\n", "No such process\n"}
