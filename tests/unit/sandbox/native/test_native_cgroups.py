"""Finding control groups in each of the layouts that machines have."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloche.sandbox.native.cgroups import Cgroups, Layout, detect, parse
from cloche.sandbox.settings import Settings

HYBRID = """\
30 29 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 30 0:31 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
36 30 0:32 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
PURE = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
SETTINGS = Settings(state_dir=Path("/a"), run_dir=Path("/b"))


def test_hybrid() -> None:
    v1, v2 = parse(HYBRID)
    root = Path("/sys/fs/cgroup")
    assert v1 == {"cpu": root / "cpu,cpuacct", "memory": root / "memory", "pids": root / "pids"}
    assert v2 == root / "unified"
    layout = Layout(v1, v2, frozenset({"hugetlb"}))
    assert layout.name == "hybrid"
    assert layout.limits() == {"cpu", "memory", "pids"}


def test_pure_v1_and_none() -> None:
    v1, v2 = parse(PURE)
    pure = Layout(v1, v2, frozenset({"cpu", "io", "memory", "pids"}))
    assert (pure.name, pure.limits()) == ("pure", {"cpu", "memory", "pids"})
    assert Layout(*parse(HYBRID.rsplit("36 ", 1)[0])).name == "v1"
    assert Layout(*parse("")).name == "none"
    assert Layout(*parse("garbage\n1 2 3 - \n - cgroup")).name == "none"


def test_a_controller_that_shares_a_mount_is_counted_once() -> None:
    line = "31 30 0:27 / /cg/all rw - cgroup cgroup rw,cpu,memory,pids\n"
    assert Layout(*parse(line)).roots == [Path("/cg/all")]


@pytest.fixture
def groups(tmp_path: Path) -> Cgroups:
    layout = Layout({"memory": tmp_path / "memory"}, tmp_path / "v2")
    for root in layout.roots:
        (root / f"cloche-{SETTINGS.instance}" / "sb-1").mkdir(parents=True)
        (root / f"cloche-{SETTINGS.instance}" / "_pool" / "sb-2").mkdir(parents=True)
    return Cgroups(SETTINGS, layout)


def test_what_an_installation_has(groups: Cgroups) -> None:
    assert groups.ids() == {"sb-1", "sb-2"}
    assert len(groups.of("sb-1")) == len(groups.of("sb-2")) == 2
    assert not groups.exists("sb-3")
    assert [path.name for path in groups.own()] == ["_pool", groups.tops[0].name] * 2


def test_oom_kills_are_read_where_only_the_host_sees_them(groups: Cgroups, tmp_path: Path) -> None:
    control = groups.of("sb-1")[0] / "memory.oom_control"
    assert groups.memory_counts_kills
    assert groups.oom_kills("sb-1") == 0
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert groups.oom_kills("sb-1") == 3
    assert not Cgroups(SETTINGS, Layout({}, tmp_path / "v2")).memory_counts_kills


def test_oom_kills_of_the_shared_pool_are_told_by_sandbox_with_v2(groups: Cgroups, tmp_path: Path) -> None:
    pure = Cgroups(SETTINGS, Layout({}, tmp_path / "v2", frozenset({"memory"})))
    assert pure.limits_memory("sb-1")
    assert not pure.limits_memory("sb-2")
    (pure.of("sb-2")[0] / "memory.events").write_text("low 0\noom 1\noom_kill 2\noom_group_kill 0\n")
    assert (pure.pool_kills("sb-2"), pure.pool_kills("sb-1"), pure.oom_kills("sb-1")) == (2, 0, 0)


def test_this_machine_has_some_layout() -> None:
    assert detect().name in {"pure", "hybrid", "v1", "none"}
