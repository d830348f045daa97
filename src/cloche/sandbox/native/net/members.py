"""The sandboxes with a link as the gateway's process knows them, and what is on disk of that.

``network.json`` in a sandbox's run folder is what it was last asked to be; it goes with the folder. Must
never say that something holds: the kernel says that.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloche.sandbox.allow import Entry, parse_entries
from cloche.sandbox.driver import Denial
from cloche.sandbox.native.net.nfnetlink import Element
from cloche.sandbox.spec import NetworkMode, NetworkPolicy, Unit

DENIALS_MAX = 1000
NAMES_MAX = 4096
_LINKS = Path("/sys/class/net")
_FILE = "network.json"


@dataclass(slots=True)
class Member:
    """One sandbox with a link. ``link`` is the index of the host's end, ``generation`` names its policy."""

    id: str
    address: str
    link: int
    policy: NetworkPolicy
    entries: tuple[Entry, ...] = ()
    generation: int = 0
    unit: Unit | None = None
    unit_mark: int = 0
    fixed: list[tuple[str, Element]] = field(default_factory=list)
    learned: dict[bytes, float] = field(default_factory=dict)
    names: OrderedDict[str, str] = field(default_factory=OrderedDict)
    denials: deque[Denial] = field(default_factory=lambda: deque(maxlen=DENIALS_MAX))

    def opens(self, name: str) -> list[tuple[int, int] | None]:
        """Return the ports under which its list has a name: empty if it is not there."""
        return list(dict.fromkeys(entry.ports for entry in self.entries if entry.covers(name)))

    def remember(self, address: str, name: str) -> None:
        """Note which name led to an address."""
        self.names[address] = name
        self.names.move_to_end(address)
        while len(self.names) > NAMES_MAX:
            self.names.popitem(last=False)

    def refused(self, *, name: str = "", address: str = "", port: int = 0, protocol: str = "") -> None:
        """Note a denial."""
        known = name or self.names.get(address, "")
        self.denials.append(Denial(at=time.time(), name=known, address=address, port=port, protocol=protocol))

    def dump(self) -> bytes:
        """Return what ``network.json`` holds."""
        unit = self.unit
        return json.dumps(
            {
                "link": self.link,
                "address": self.address,
                "generation": self.generation,
                "policy": policy_json(self.policy),
                "entries": [entry.text for entry in self.entries],
                "unit": unit and {"id": unit.id, "name": unit.name, "members": unit.members},
                "unit_mark": self.unit_mark,
            }
        ).encode()


def policy_json(policy: NetworkPolicy) -> dict[str, Any]:
    """Return a policy as JSON has it."""
    return {"mode": policy.mode.value, "allow": list(policy.allow), "presets": list(policy.presets)}


def read_policy(data: dict[str, Any]) -> NetworkPolicy:
    """Return what ``policy_json`` made. Raises ValueError or KeyError for anything else."""
    return NetworkPolicy(
        mode=NetworkMode(data["mode"]), allow=tuple(data["allow"]), presets=tuple(data["presets"])
    )


def read_unit(data: dict[str, Any] | None) -> Unit | None:
    """Return the unit of a message or a file."""
    return None if data is None else Unit(id=data["id"], name=data["name"], members=tuple(data["members"]))


def link_index(name: str) -> int:
    """Return the index of a link. Raises OSError when it is not there."""
    return int((_LINKS / name / "ifindex").read_text())


def links(prefix: str) -> set[int]:
    """Return the indices of all links of ours."""
    found = set()
    for path in _LINKS.iterdir():
        if path.name.startswith(prefix):
            try:
                found.add(int((path / "ifindex").read_text()))
            except OSError:
                continue  # it went while we looked
    return found


def fresh_number(taken: Iterable[int]) -> int:
    """Return a number that is not taken, and that nothing left over in the kernel is likely to have."""
    used = set(taken)
    while True:
        found = secrets.randbits(31) | 1
        if found not in used:
            return found


def save(folder: Path, member: Member) -> None:
    """Write the member down. Raises OSError; the sandbox's folder must be there."""
    new = folder / f"{_FILE}.new"
    new.write_bytes(member.dump())
    new.replace(folder / _FILE)


def load(folder: Path) -> Member | None:
    """Return what ``save`` wrote, ``None`` where there is nothing that can be read."""
    try:
        data = json.loads((folder / _FILE).read_bytes())
        return Member(
            id=folder.name,
            address=data["address"],
            link=data["link"],
            policy=read_policy(data["policy"]),
            entries=parse_entries(data["entries"]),
            generation=data["generation"],
            unit=read_unit(data["unit"]),
            unit_mark=data["unit_mark"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
