"""Where the control groups of an installation are, in each of the layouts that Linux machines have.

``pure`` (v2 only), ``hybrid`` (v1 controllers, v2 for killing), ``v1`` or ``none``. Must never write to a
control group; removing empty ones that were left behind is the one exception.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from cloche.sandbox.settings import Settings

CONTROLLERS = ("memory", "cpu", "pids")
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Layout:
    """Mount points. ``v1`` has the controllers that are mounted the old way."""

    v1: dict[str, Path] = field(default_factory=dict)
    v2: Path | None = None
    v2_controllers: frozenset[str] = frozenset()
    freezer: Path | None = None
    """The old freezer, used where there is no v2."""

    @property
    def freezes(self) -> bool:
        """Whether sandboxes can be paused."""
        return self.v2 is not None or self.freezer is not None

    @property
    def name(self) -> str:
        """``pure``, ``hybrid``, ``v1`` or ``none``."""
        if self.v2 is not None:
            return "hybrid" if self.v1 else "pure"
        return "v1" if self.v1 else "none"

    @property
    def roots(self) -> list[Path]:
        """Every hierarchy once."""
        last = self.v2 or self.freezer
        found = [*self.v1.values(), *([last] if last else [])]
        return list(dict.fromkeys(found))

    def limits(self) -> frozenset[str]:
        """Return the controllers by which limits can be enforced."""
        return frozenset(self.v1) | (self.v2_controllers & set(CONTROLLERS))


def parse(mountinfo: str) -> tuple[dict[str, Path], Path | None]:
    """Return the v1 mount points by controller, and that of v2, from proc_pid_mountinfo(5)."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo.splitlines():
        head, dash, tail = line.partition(" - ")
        fields, kinds = head.split(), tail.split()
        if not dash or len(fields) < 5 or len(kinds) < 3:
            continue
        point = Path(fields[4])
        if kinds[0] == "cgroup2" and v2 is None:
            v2 = point
        elif kinds[0] == "cgroup":
            for controller in set(kinds[2].split(",")) & set(CONTROLLERS):
                v1.setdefault(controller, point)
    return v1, v2


def find_freezer(mountinfo: str) -> Path | None:
    """Return where the old freezer is mounted."""
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        kinds = tail.split()
        if kinds[:1] == ["cgroup"] and "freezer" in kinds[-1].split(","):
            return Path(head.split()[4])
    return None


def detect() -> Layout:
    """Look at this machine."""
    mounts = _MOUNTS.read_text()
    v1, v2 = parse(mounts)
    controllers: frozenset[str] = frozenset()
    if v2 is not None:
        controllers = frozenset((v2 / "cgroup.controllers").read_text().split())
    return Layout(v1, v2, controllers, find_freezer(mounts))


class Cgroups:
    """The control groups of one installation."""

    def __init__(self, settings: Settings, layout: Layout | None = None) -> None:
        self.layout = layout or detect()
        self._name = f"cloche-{settings.instance}"
        v2 = self.layout.v2 if "memory" in self.layout.v2_controllers else None
        self._memory = self.layout.v1.get("memory") or v2
        self._memory_is_v2 = "memory" not in self.layout.v1

    @property
    def tops(self) -> list[Path]:
        """The installation's folder in every hierarchy, whether it is there or not."""
        return [root / self._name for root in self.layout.roots]

    @property
    def memory_counts_kills(self) -> bool:
        """Whether the host can count what a memory limit killed (with v2 the guest sees that too)."""
        return self._memory is not None

    def oom_kills(self, sandbox_id: str) -> int:
        """Return how many processes of this sandbox its own memory limit has killed; 0 where nobody knows."""
        return self._kills(sandbox_id)

    def pool_kills(self, sandbox_id: str) -> int:
        """Return how many processes the limit that sandboxes without one share has killed.

        With v2 those of this sandbox alone; v1 does not tell them apart.
        """
        return self._kills(f"_pool/{sandbox_id}" if self._memory_is_v2 else "_pool")

    def _kills(self, group: str) -> int:
        if self._memory is None:
            return 0
        try:
            file = "memory.events" if self._memory_is_v2 else "memory.oom_control"
            text = (self._memory / self._name / group / file).read_text()
        except OSError:
            return 0  # no limit of its own, or gone
        return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)

    def limits_memory(self, sandbox_id: str) -> bool:
        """Whether a sandbox has a memory limit of its own."""
        return self._memory is not None and (self._memory / self._name / sandbox_id).is_dir()

    def of(self, sandbox_id: str) -> list[Path]:
        """Return the folders of one sandbox that are there."""
        places = [top / sandbox_id for top in self.tops] + [top / "_pool" / sandbox_id for top in self.tops]
        return [place for place in places if place.is_dir()]

    def exists(self, sandbox_id: str) -> bool:
        """Whether anything of this sandbox is there."""
        return bool(self.of(sandbox_id))

    def ids(self) -> set[str]:
        """Return the names of all sandboxes that have a control group."""
        found: set[str] = set()
        for top in self.tops:
            for folder in (top, top / "_pool"):
                if folder.is_dir():
                    found |= {
                        entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "_"
                    }
        return found

    def own(self) -> list[Path]:
        """Return the installation's folders that are there, the inner ones first."""
        found: list[Path] = []
        for top in self.tops:
            if top.is_dir():
                found += sorted(path for path in top.glob("_*") if path.is_dir())
                found.append(top)
        return found
