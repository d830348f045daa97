"""Applies policies: changes the kernel's sets, reads them back, and closes a sandbox when they do not agree.

Must never leave a sandbox with more than its policy: a change that cannot be made, or cannot be seen, takes
everything away and raises.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from cloche.core.errors import InfraError, NotFound
from cloche.sandbox.allow import Entry, parse_entries
from cloche.sandbox.native.net import members, sets
from cloche.sandbox.native.net.members import Member
from cloche.sandbox.native.net.nfnetlink import Change, Element, Table
from cloche.sandbox.native.record import read_folder
from cloche.sandbox.spec import NetworkMode, NetworkPolicy, Unit

LIFE_MIN_S, LIFE_MAX_S = 60, 3600
"""How long an address that a name led to stays open: its TTL, within these."""

LEARNED_MAX = 8192
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1  # ioctls and flag of linux/sockios.h and linux/if.h


class Warden:
    """The policies of one installation's sandboxes."""

    def __init__(self, table: Table, sandboxes_dir: Path, prefix: str) -> None:
        self._table = table
        self._folder = sandboxes_dir
        self._prefix = prefix
        self._members: dict[str, Member] = {}
        self._by_address: dict[str, Member] = {}
        self._by_link: dict[int, Member] = {}

    def by_address(self, address: str) -> Member | None:
        """Return the member that asks from an address."""
        return self._by_address.get(address)

    def by_link(self, index: int) -> Member | None:
        """Return the member behind a link."""
        return self._by_link.get(index)

    def by_id(self, sandbox_id: str) -> Member:
        """Return a member. Raises NotFound."""
        member = self._members.get(sandbox_id)
        if member is None:
            raise NotFound(f"sandbox {sandbox_id} has no network")
        return member

    def peer(self, unit: Unit, name: str) -> Member | None:
        """Return the member of a unit that has this name."""
        for member in self._members.values():
            if member.unit is not None and member.unit.id == unit.id and member.unit.name == name:
                return member
        return None

    def adopt(self) -> None:
        """Take over what a process before this one was asked for; what the kernel lacks is made anew."""
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else []:
            found = members.load(folder)
            if found is None or found.link not in members.links(self._prefix):
                continue
            self._put(found)
            found.fixed = self._fixed(found)
            if not self._holds(found):
                self._apply(found, None)
        self.sweep()

    def set(
        self, sandbox_id: str, policy: NetworkPolicy, allow: Sequence[str], unit: Unit | None
    ) -> NetworkPolicy:
        """Give a sandbox a policy and return it once the kernel holds it.

        ``allow`` is the policy's list with its presets spelled out. Raises InvalidInput and NotFound with
        nothing changed, InfraError with the sandbox closed.
        """
        entries = parse_entries(allow) if policy.mode is NetworkMode.ALLOWLIST else ()
        before = self._members.get(sandbox_id)
        made = self._member(sandbox_id, policy, entries, unit or (before.unit if before else None))
        made.fixed = self._fixed(made)
        if before is not None and before.link == made.link:
            made.names, made.denials = before.names, before.denials
        else:
            before = None
        members.save(self._folder / sandbox_id, made)
        self._apply(made, before)
        return policy

    def _member(
        self, sandbox_id: str, policy: NetworkPolicy, entries: tuple[Entry, ...], unit: Unit | None
    ) -> Member:
        folder = read_folder(self._folder / sandbox_id)
        if folder is None or not folder.native.get("public"):
            raise NotFound(f"sandbox {sandbox_id} has no network")
        try:
            link = members.link_index(f"{self._prefix}{folder.native['slot']:x}")
        except OSError as error:
            raise NotFound(f"sandbox {sandbox_id} has no network") from error
        address = str(ipaddress.IPv4Address(folder.native["address"]))
        generation = members.fresh_number(member.generation for member in self._members.values())
        return Member(
            sandbox_id, address, link, policy, entries, generation, unit, self._unit_mark(unit) if unit else 0
        )

    def _unit_mark(self, unit: Unit) -> int:
        for member in self._members.values():
            if member.unit is not None and member.unit.id == unit.id:
                return member.unit_mark
        return members.fresh_number(member.unit_mark for member in self._members.values())

    @staticmethod
    def _fixed(member: Member) -> list[tuple[str, Element]]:
        """Return the elements of a policy that no name has to be asked for."""
        fixed = sets.network_elements(member.generation, member.entries)
        if member.policy.mode is NetworkMode.PUBLIC:
            fixed.append(("open", Element(sets.number(member.generation))))
        return fixed

    @staticmethod
    def _keys(member: Member) -> list[tuple[str, Element]]:
        """Return the elements that make a policy count, and that join a unit."""
        keys = [("generation", sets.generation_element(member.link, member.generation))]
        keys.append(("current", sets.current_element(member.link, member.generation)))
        if member.unit_mark:
            keys.append(("unit", sets.generation_element(member.link, member.unit_mark)))
            keys.append(("members", sets.current_element(member.link, member.unit_mark)))
        return keys

    def _apply(self, member: Member, before: Member | None) -> None:
        """Put a policy in the place of another in one transaction, and look whether it is there."""
        old = [*self._keys(before), *before.fixed] if before and before.generation else []
        changes = [*sets.grouped(old, remove=True), *sets.grouped([*member.fixed, *self._keys(member)])]
        self._put(member)
        try:
            self._table.commit(changes)
            if not self._holds(member):
                raise OSError(errno.EIO, "the kernel does not hold what it was given")
        except OSError as error:
            self._close(member)
            raise InfraError(
                f"the network policy of {member.id} could not be set, so it has none: {error.strerror}",
                code="infra/network_policy",
            ) from error

    def _holds(self, member: Member) -> bool:
        """Whether the kernel has every element of a policy, with its value."""
        for name, element in [*self._keys(member), *member.fixed]:
            found = self._table.find(name, element)
            if found is None or found.key != element.key or found.data != element.data:
                return False
            if element.end and found.end != element.end:
                return False
        return True

    def _close(self, member: Member) -> None:
        """Take everything away; if even that fails, take the link down."""
        member.policy, member.entries, member.fixed, member.generation = NetworkPolicy(), (), [], 0
        try:
            for name in ("generation", "current", "unit", "members"):
                found = [e for e in self._table.elements(name) if e.key[:4] == sets.number(member.link)]
                self._table.commit([Change(name, tuple(found), remove=True)] if found else [])
        except OSError:
            _take_down(member.link)
        if (self._folder / member.id).is_dir():
            members.save(self._folder / member.id, member)

    def verified(self, sandbox_id: str) -> NetworkPolicy:
        """Return the policy of a sandbox as the kernel holds it. Raises NotFound, or InfraError."""
        member = self.by_id(sandbox_id)
        if member.generation and not self._holds(member):
            self._close(member)
            raise InfraError(
                f"the kernel did not hold the network policy of {sandbox_id}, so it has no network now",
                code="infra/network_policy",
            )
        return member.policy

    def learn(self, member: Member, name: str, found: Iterable[str], life_s: int) -> int:
        """Open the addresses that a listed name led to; return for how many seconds. Raises OSError."""
        life_s = max(LIFE_MIN_S, min(life_s, LIFE_MAX_S))
        now = time.monotonic()
        for address in found:
            member.remember(address, name)
            for ports in member.opens(name):
                for place, element in sets.host_elements(member.generation, address, ports, life_s * 1000):
                    if member.learned.get(element.key, 0.0) < now + life_s - 1:
                        self._open(place, element)
                        member.learned[element.key] = now + life_s
        if len(member.learned) > LEARNED_MAX:
            member.learned = {key: end for key, end in member.learned.items() if end > now}
            if len(member.learned) > LEARNED_MAX:
                raise OSError(errno.ENOSPC, "too many addresses are open")
        return life_s

    def _open(self, name: str, element: Element) -> None:
        """Add an element that goes by itself, or begin its time anew. It may go between two of our steps."""
        add, drop = Change(name, (element,), exclusive=True), Change(name, (element,), remove=True)
        for changes in ([add], [drop, add], [add]):
            try:
                return self._table.commit(changes)
            except OSError as error:
                if error.errno not in {errno.EEXIST, errno.ENOENT}:
                    raise
        raise OSError(errno.EIO, "an address could not be opened")

    def sweep(self) -> None:
        """Forget sandboxes whose link is gone, and what the kernel still has of such links."""
        there = members.links(self._prefix)
        for member in [member for member in self._members.values() if member.link not in there]:
            self._forget(member)
            for change in sets.grouped([*self._keys(member), *member.fixed], remove=True):
                self._remove(change)
        for name in ("generation", "current", "unit", "members"):
            dead = [e for e in self._table.elements(name) if _link_of(e) not in there]
            if dead:
                self._remove(Change(name, tuple(dead), remove=True))

    def _remove(self, change: Change) -> None:
        for element in change.elements:  # one by one: those that are gone keep none of the others
            try:
                self._table.commit([Change(change.set, (element,), remove=True)])
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise

    def _put(self, member: Member) -> None:
        for other in (self._by_address.get(member.address), self._members.get(member.id)):
            if other is not None:
                self._forget(other)
        self._members[member.id] = self._by_address[member.address] = self._by_link[member.link] = member

    def _forget(self, member: Member) -> None:
        self._members.pop(member.id, None)
        self._by_address.pop(member.address, None)
        self._by_link.pop(member.link, None)


def _link_of(element: Element) -> int:
    return int(struct.unpack("=I", element.key[:4])[0])


def _take_down(index: int) -> None:
    """Take a link down without netlink, the last thing that can still be done. Raises OSError."""
    name = socket.if_indextoname(index).encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sH22x", name, 0)
        flags = struct.unpack("16sH22x", fcntl.ioctl(handle, _GET_FLAGS, request))[1]
        fcntl.ioctl(handle, _SET_FLAGS, struct.pack("16sH22x", name, flags & ~_UP))
