"""The doctor's report and remedies, on machines described by folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloche.core.errors import ClocheError, EnvironmentUnusable
from cloche.sandbox import binaries, doctor
from cloche.sandbox.native.host import Host, check
from cloche.sandbox.settings import Settings

FILES = {
    "proc/sys/user/max_user_namespaces": "96365\n",
    "proc/filesystems": "nodev\tsysfs\nnodev\toverlay\n\text4\n",
    "proc/self/mountinfo": "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
    "proc/sys/kernel/pid_max": "32768\n",
    "proc/sys/fs/inotify/max_user_instances": "128\n",
    "proc/sys/net/ipv4/ip_forward": "0\n",
}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    for name, text in FILES.items():
        path = tmp_path / "host" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(root=tmp_path / "host", euid=0, release="6.1.0-50-amd64", machine="x86_64")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state", run_dir=tmp_path / "run")


def rows(settings: Settings, host: Host) -> dict[str, doctor.Row]:
    return {row.name: row for row in doctor.check(settings, host)}


def change(host: Host, name: str, text: str | None) -> None:
    path = host.root / name
    path.unlink() if text is None else path.write_text(text)


def test_a_good_machine_lacks_nothing(host: Host, settings: Settings) -> None:
    check(host)
    found = rows(settings, host)
    for name in ("machine", "root", "kernel", "user namespaces", "overlay", "cgroups"):
        assert found[name].status == "ok", found[name]
    assert found["cgroups"].detail == "pure v2: cpu, memory, pids"


def test_walls_say_how_many_fit_and_what_moves_them(host: Host, settings: Settings) -> None:
    found = rows(settings, host)
    assert found["room: installation"].detail.endswith("room for 32,767 sandboxes")
    assert found["room: namespaces"].status == "ok"
    change(host, "proc/sys/user/max_user_namespaces", "500\n")
    low = rows(settings, host)["room: namespaces"]
    assert (low.status, low.fix) == ("low", "sysctl -w user.max_user_namespaces=262144")
    assert "room for 500 sandboxes" in low.detail
    assert {"room: descriptors", "room: memory", "room: memory limits"} <= set(found)


@pytest.mark.parametrize(
    ("row", "name", "text", "says"),
    [
        pytest.param(
            "user namespaces",
            "proc/sys/user/max_user_namespaces",
            "0\n",
            "switched off",
            marks=pytest.mark.fault("no-user-namespaces"),
        ),
        ("user namespaces", "proc/sys/user/max_user_namespaces", None, "switched off"),
        pytest.param(
            "overlay", "proc/filesystems", "\text4\n", "no overlay", marks=pytest.mark.fault("no-overlay")
        ),
        pytest.param(
            "cgroups", "proc/self/mountinfo", "", "no control groups", marks=pytest.mark.fault("no-cgroups")
        ),
    ],
)
def test_a_lack_is_named_with_its_remedy_by_both(
    host: Host, settings: Settings, *, row: str, name: str, text: str | None, says: str
) -> None:
    change(host, name, text)
    found = rows(settings, host)[row]
    assert (found.status, found.blocking) == ("missing", True)
    assert says in found.detail
    assert found.fix
    with pytest.raises(EnvironmentUnusable, match=says) as caught:
        check(host)
    assert caught.value.hint == found.fix


@pytest.mark.parametrize(
    ("options", "row"),
    [
        ({"euid": 1000}, "root"),
        ({"release": "5.10.0-8-amd64"}, "kernel"),
        ({"machine": "riscv64"}, "machine"),
    ],
)
def test_other_machines(host: Host, settings: Settings, options: dict[str, object], row: str) -> None:
    facts = {"root": host.root, "euid": 0, "release": host.release, "machine": host.machine}
    other = Host(**{**facts, **options})
    assert rows(settings, other)[row].blocking
    with pytest.raises(EnvironmentUnusable):
        check(other)


def test_a_lack_does_not_hide_the_others(host: Host, settings: Settings) -> None:
    change(host, "proc/filesystems", "")
    change(host, "proc/sys/user/max_user_namespaces", "0")
    blocking = [row.name for row in doctor.check(settings, host) if row.blocking]
    assert blocking[:2] == ["user namespaces", "overlay"]


def test_programs_that_are_missing_block(
    host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "_FOLDER", Path("/nonexistent"))
    found = rows(settings, host)["guest"]
    assert found.blocking
    assert "build-guest" in found.fix


@pytest.mark.fault("host-tools-missing")
def test_tools_that_are_missing_say_what_to_install(
    host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    found = rows(settings, host)
    for tool, package in (("nft", "nftables"), ("buildah", "buildah"), ("mmdebstrap", "mmdebstrap")):
        assert (found[tool].status, found[tool].fix) == ("absent", f"apt-get install {package}")
        assert not found[tool].blocking


def test_a_wrong_pool_is_told(host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOCHE_NETWORK_POOL", "nonsense")
    assert rows(settings, host)["network pool"].status == "wrong"


def test_fix_and_unfix_come_back_to_the_beginning(host: Host, settings: Settings) -> None:
    names = {name: host.root / name for name in FILES if name.startswith("proc/sys/") and "user/" not in name}
    before = {name: path.read_text().strip() for name, path in names.items()}
    found = rows(settings, host)
    assert (found["pid_max"].status, found["ip_forward"].status) == ("low", "off")
    lines = doctor.fix(settings, host)
    assert len(lines) == 3
    assert all(
        row.status == "ok"
        for name, row in rows(settings, host).items()
        if name in {"pid_max", "inotify", "ip_forward"}
    )
    assert doctor.fix(settings, host) == []  # nothing is left to do
    assert len(doctor.unfix(settings, host)) == 3
    assert {name: path.read_text().strip() for name, path in names.items()} == before
    assert doctor.unfix(settings, host) == []


def test_what_somebody_else_changed_is_left(host: Host, settings: Settings) -> None:
    doctor.fix(settings, host)
    change(host, "proc/sys/kernel/pid_max", "99999")
    lines = doctor.unfix(settings, host)
    assert any("left at 99999" in line for line in lines)
    assert (host.root / "proc/sys/kernel/pid_max").read_text() == "99999"
    assert (host.root / "proc/sys/net/ipv4/ip_forward").read_text() == "0"


def test_a_second_fix_remembers_the_first_value(host: Host, settings: Settings) -> None:
    doctor.fix(settings, host)
    change(host, "proc/sys/kernel/pid_max", "40000")
    doctor.fix(settings, host)
    remembered = json.loads((settings.state_dir / "host-settings.json").read_text())
    assert remembered["pid_max"]["before"] == 32768


def test_a_broken_memory_is_told_and_nothing_changed(host: Host, settings: Settings) -> None:
    settings.state_dir.mkdir()
    (settings.state_dir / "host-settings.json").write_text("{")
    with pytest.raises(ClocheError, match="not readable"):
        doctor.fix(settings, host)
    assert (host.root / "proc/sys/net/ipv4/ip_forward").read_text() == "0\n"


def test_a_setting_that_cannot_be_read_is_unknown(host: Host, settings: Settings) -> None:
    path = host.root / "proc/sys/kernel/pid_max"
    path.unlink()
    path.mkdir()
    assert rows(settings, host)["pid_max"].status == "unknown"
