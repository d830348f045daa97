"""Composes the spawner's create request from a spec and an image.

Pure, but for what the machine's size is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cloche.core.errors import InvalidInput
from cloche.sandbox.guest.frames import Value
from cloche.sandbox.native import store
from cloche.sandbox.native.check import check
from cloche.sandbox.native.volumes import volume_fields
from cloche.sandbox.native.wire import Tag
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import ImageConfig, Lease, NetworkMode, PreparedImage, SandboxSpec

CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""What commands keep inside their user namespace: Docker's default fourteen, see capabilities(7)."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHARED_MEMORY_BYTES = 64 << 20
_RESERVE_BYTES_MIN = 512 << 20
_PERIOD_US = 100_000


def pool_bytes() -> int:
    """Return what all sandboxes without a memory limit share: all but a tenth (512 MiB at least)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(total - max(total // 10, _RESERVE_BYTES_MIN), total // 2)


def _milliseconds(option: str, seconds: float | None) -> list[str]:
    return [] if seconds is None else [f"--{option}={max(1, round(seconds * 1000))}"]


def _lease(lease: Lease) -> list[str]:
    return [
        *_milliseconds("ttl-ms", lease.ttl_s),
        *_milliseconds("idle-ms", lease.idle_s),
        *_milliseconds("heartbeat-ms", lease.heartbeat_s),
    ]


def guest_arguments(spec: SandboxSpec, config: ImageConfig) -> list[str]:
    """Return the guest's argv."""
    mask = sum(1 << number for number in CAPABILITIES)
    user = config.user if spec.user is None else spec.user
    return [
        "cloche-guest",
        "--listen-fd=3",
        "--cgroup",
        "--harden",
        f"--caps={mask:x}",
        *_lease(spec.lease),
        *(["--no-new-privs"] if spec.no_new_privileges else []),
        *([f"--user={user}"] if user else []),
        f"--cwd={spec.workdir or config.workdir or '/'}",
    ]


def environment(spec: SandboxSpec, config: ImageConfig) -> Mapping[str, str]:
    """Return what commands have in their environment by default."""
    return {
        "PATH": DEFAULT_PATH,
        "HOSTNAME": spec.hostname or spec.id,
        **config.env,
        **spec.env,
    }


def hosts(hostname: str) -> str:
    """Return ``/etc/hosts``; its own name must be there, sudo looks it up."""
    return (
        "127.0.0.1\tlocalhost\n"
        "::1\tlocalhost ip6-localhost ip6-loopback\n"
        "ff02::1\tip6-allnodes\n"
        "ff02::2\tip6-allrouters\n"
        f"127.0.1.1\t{hostname}\n"
    )


def has_link(spec: SandboxSpec) -> bool:
    """Whether a sandbox is made with a link; one without gets it when its policy is changed."""
    return spec.network.mode is not NetworkMode.NONE or spec.unit is not None


def resolv_conf(gateway: str) -> str:
    """Return ``/etc/resolv.conf``: in every mode, for a sandbox may get its link later."""
    return f"nameserver {gateway}\noptions timeout:3 attempts:3\n"


def _layers(image: PreparedImage, state_dir: Path) -> list[tuple[int, Value]]:
    if not image.layers:
        raise InvalidInput(f"image {image.name} has no layers")
    try:
        return [(Tag.LAYER, str(layer.relative_to(state_dir))) for layer in image.layers]
    except ValueError as error:
        raise InvalidInput(
            f"a layer of image {image.name} is not below {state_dir}: {error}",
            hint="import the image into this installation",
        ) from error


def _limits(spec: SandboxSpec) -> list[tuple[int, Value]]:
    limits = spec.resources
    fields: list[tuple[int, Value]] = [(Tag.PIDS, limits.pids + 1)]  # and the guest
    if limits.memory_bytes is None:
        fields.append((Tag.POOL, pool_bytes()))
    else:
        page = os.sysconf("SC_PAGE_SIZE")
        fields.append((Tag.MEMORY, limits.memory_bytes // page * page))
    if limits.cpus is not None:
        fields.append((Tag.CPU_US, round(limits.cpus * _PERIOD_US)))
    return fields


def _disk(spec: SandboxSpec, settings: Settings) -> list[tuple[int, Value]]:
    """The driver has refused a limit that nothing enforces."""
    if spec.resources.disk_bytes is None:
        return []
    in_memory = store.disk_limits(settings) == store.TMPFS
    return [(Tag.DISK, spec.resources.disk_bytes), *([(Tag.DISK_TMPFS, 1)] if in_memory else [])]


def create_fields(
    spec: SandboxSpec, image: PreparedImage, record: bytes, settings: Settings, gateway: str
) -> list[tuple[int, Value]]:
    """Return the fields of the request. Raises InvalidInput for what cannot be asked."""
    check(spec)
    hostname = spec.hostname or spec.id
    return [
        (Tag.ID, spec.id),
        (Tag.RECORD, record),
        *_layers(image, settings.state_dir),
        (Tag.HOSTNAME, hostname),
        (Tag.HOSTS, hosts(hostname)),
        (Tag.RESOLV, resolv_conf(gateway)),
        *_limits(spec),
        *_disk(spec, settings),
        (Tag.NETWORK, int(has_link(spec))),
        (Tag.SHM, SHARED_MEMORY_BYTES),
        *volume_fields(spec, settings),
        *((Tag.ARG, argument) for argument in guest_arguments(spec, image.config)),
        *((Tag.ENV, f"{name}={value}") for name, value in environment(spec, image.config).items()),
    ]
