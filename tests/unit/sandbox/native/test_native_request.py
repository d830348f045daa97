"""What the spawner is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.native import request
from cloche.sandbox.native.wire import Tag
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import (
    ImageConfig,
    Lease,
    NetworkMode,
    NetworkPolicy,
    PreparedImage,
    Resources,
    SandboxSpec,
    Unit,
)

PUBLIC = NetworkPolicy(mode=NetworkMode.PUBLIC)

SETTINGS = Settings(state_dir=Path("/state"), run_dir=Path("/run/x"))
IMAGE = PreparedImage(
    name="i",
    digest="d",
    layers=(Path("/state/layers/a"), Path("/state/layers/b")),
    config=ImageConfig(env={"PATH": "/bin", "A": "1"}, user="web", workdir="/srv"),
)


def fields(spec: SandboxSpec, image: PreparedImage = IMAGE) -> list[tuple[int, object]]:
    return list(request.create_fields(spec, image, b"{}", SETTINGS, "10.0.0.1"))


def all_of(tag: Tag, made: list[tuple[int, object]]) -> list[object]:
    return [value for key, value in made if key == tag]


def test_layers_are_relative_and_in_order() -> None:
    assert all_of(Tag.LAYER, fields(SandboxSpec())) == ["layers/a", "layers/b"]


def test_limits() -> None:
    made = fields(SandboxSpec(resources=Resources(cpus=1.5, memory_bytes=(100 << 20) + 5, pids=10)))
    assert all_of(Tag.MEMORY, made) == [100 << 20]  # whole pages
    assert all_of(Tag.CPU_US, made) == [150_000]
    assert all_of(Tag.PIDS, made) == [11]  # the guest is one
    assert all_of(Tag.POOL, made) == []


def test_without_limits_memory_is_the_pools() -> None:
    made = fields(SandboxSpec())
    assert all_of(Tag.MEMORY, made) == all_of(Tag.CPU_US, made) == []
    assert all_of(Tag.POOL, made) == [request.pool_bytes()]


def test_the_guests_arguments() -> None:
    spec = SandboxSpec(lease=Lease(ttl_s=1.5, idle_s=2, heartbeat_s=None), no_new_privileges=True)
    arguments = request.guest_arguments(spec, IMAGE.config)
    assert arguments[:4] == ["cloche-guest", "--listen-fd=3", "--cgroup", "--harden"]
    assert {"--ttl-ms=1500", "--idle-ms=2000", "--no-new-privs", "--user=web", "--cwd=/srv"} <= set(arguments)
    assert "--caps=a80425fb" in arguments
    assert not any(argument.startswith("--heartbeat") for argument in arguments)


def test_the_spec_goes_before_the_image() -> None:
    spec = SandboxSpec(user="root", workdir="/", env={"A": "2", "B": "3"}, hostname="h")
    assert "--user=root" in request.guest_arguments(spec, IMAGE.config)
    assert "--cwd=/" in request.guest_arguments(spec, IMAGE.config)
    assert dict(request.environment(spec, IMAGE.config)) == {
        "PATH": "/bin",
        "HOSTNAME": "h",
        "A": "2",
        "B": "3",
    }
    assert not any("--user" in text for text in request.guest_arguments(SandboxSpec(user=""), IMAGE.config))


def test_a_path_is_there_even_if_the_image_has_none() -> None:
    assert request.environment(SandboxSpec(), ImageConfig())["PATH"] == request.DEFAULT_PATH


def test_name_files() -> None:
    assert "127.0.1.1\tme\n" in request.hosts("me")
    assert request.resolv_conf("10.0.0.1").startswith("nameserver 10.0.0.1\n")
    assert [request.has_link(SandboxSpec(network=policy)) for policy in (NetworkPolicy(), PUBLIC)] == [
        False,
        True,
    ]
    assert request.has_link(SandboxSpec(unit=Unit(id="u", name="a", members=("a",))))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (SandboxSpec(id="No"), "cannot name"),
        (SandboxSpec(hostname="a\nb"), "host name"),
        (SandboxSpec(hostname="h" * 64), "host name"),
        (SandboxSpec(env={"A=B": "c"}), "environment"),
        (SandboxSpec(env={"": "c"}), "environment"),
        (SandboxSpec(env={"A": "b\0"}), "environment"),
        (SandboxSpec(resources=Resources(memory_bytes=1024)), "memory"),
        (SandboxSpec(resources=Resources(cpus=0.001)), "CPUs"),
        (SandboxSpec(resources=Resources(pids=0)), "processes"),
    ],
)
def test_what_cannot_be_is_refused(spec: SandboxSpec, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        fields(spec)


@pytest.mark.parametrize("layers", [(), (Path("/elsewhere/a"),), (Path("/state/layers/a"), Path("/stat"))])
def test_layers_must_be_in_the_store(layers: tuple[Path, ...]) -> None:
    with pytest.raises(InvalidInput):
        fields(SandboxSpec(), PreparedImage(name="i", digest="d", layers=layers))


def test_the_pool_leaves_the_host_its_share() -> None:
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert total // 2 <= request.pool_bytes() <= total * 0.95
