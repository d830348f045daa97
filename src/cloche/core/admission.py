"""Who gets the next sandbox: a queue with fair shares, as a pure state machine.

Time is passed in and chance is seeded; what is admitted is returned, nothing is started here. Must never
refuse for a shortage, admit a demand twice, or go above a limit. ``docs/design/0003-admission.md`` has the
reasons. The order, among what fits:

1. keys that hold fewer sandboxes than their guaranteed floor, before all others;
2. the key whose dominant share of the host, divided by its weight, is smallest (Ghodsi et al. 2011);
3. within a key, the label with the fewest sandboxes per demand waiting, then priority, then arrival.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

BACKFILL_S = 30.0
"""A demand that has waited so long for room is not overtaken any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much of a host: sandboxes, CPUs, memory and process numbers."""

    sandboxes: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0
    pids: int = 0

    def plus(self, other: Amount) -> Amount:
        """Return the sum."""
        return Amount(
            sandboxes=self.sandboxes + other.sandboxes,
            cpus=self.cpus + other.cpus,
            memory_bytes=self.memory_bytes + other.memory_bytes,
            pids=self.pids + other.pids,
        )

    def minus(self, other: Amount) -> Amount:
        """Return the difference; what is nothing but a rounding error of CPUs is nothing."""
        cpus = self.cpus - other.cpus
        return Amount(
            sandboxes=self.sandboxes - other.sandboxes,
            cpus=0.0 if abs(cpus) < 1e-9 else cpus,
            memory_bytes=self.memory_bytes - other.memory_bytes,
            pids=self.pids - other.pids,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of an amount; ``None`` is none."""

    sandboxes: int | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None

    def holds(self, amount: Amount) -> bool:
        """Whether the amount is within the bounds."""
        return all(most is None or value <= most + 1e-9 for value, most in self._pairs(amount))

    def share(self, amount: Amount) -> float:
        """Return the largest part of any bound that the amount is (its dominant share)."""
        parts = [
            value / most if most else math.inf
            for value, most in self._pairs(amount)
            if most is not None and value
        ]
        return max(parts, default=0.0)

    def _pairs(self, amount: Amount) -> Iterator[tuple[float, float | None]]:
        yield amount.sandboxes, self.sandboxes
        yield amount.cpus, self.cpus
        yield amount.memory_bytes, self.memory_bytes
        yield amount.pids, self.pids


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one key may have: ``creates_per_s`` spreads its creates, ``floor`` sandboxes are its own."""

    limits: Limits = field(default_factory=Limits)
    creates_per_s: float | None = None
    floor: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One sandbox, or a unit of several, that wants to be. ``label`` groups demands within a key."""

    id: str
    key: str
    amount: Amount
    label: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a demand would start at once, whether it could ``ever``, and what it waits for, and where."""

    fits: bool
    ever: bool
    waiting_for: str | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """``capacity`` is what may be admitted in all: the host's size times the overcommit that is stated.

    At most ``starts`` are being started at once, and two starts are ``start_interval_s`` apart on average,
    spread over ± 50 %.
    """

    capacity: Limits = field(default_factory=Limits)
    starts: int = 64
    start_interval_s: float = 0.0
    queue_max: int = 200_000
    seed: int = 0


@dataclass(slots=True)
class _Waiting:
    demand: Demand
    since_s: float
    place: int


@dataclass(slots=True)
class _Key:
    """What one key has and wants. ``ready_s``: its rate allows no create before."""

    share: Share = field(default_factory=Share)
    held: Amount = field(default_factory=Amount)
    by_label: dict[str, int] = field(default_factory=dict)
    queues: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)
    ready_s: float = -math.inf

    def heads(self, waiting: dict[str, _Waiting]) -> Iterator[_Waiting]:
        """Yield the first demand of each label, the label with the fewest sandboxes first."""
        for label in sorted(self.queues, key=lambda name: (self.by_label.get(name, 0), name)):
            queue = self.queues[label]
            while queue and queue[0][2] not in waiting:
                heapq.heappop(queue)
            if queue:
                yield waiting[queue[0][2]]

    def forget_empty(self) -> None:
        """Let go of labels that have nothing any more."""
        for label in [name for name, queue in self.queues.items() if not queue]:
            del self.queues[label]


class QueueFull(Exception):
    """More wait than the rules allow to wait."""


@dataclass(slots=True)
class Admission:
    """The queue and what is held. ``room`` is False while the store has no room: nothing is admitted then."""

    rules: Rules = field(default_factory=Rules)
    room: bool = True
    held: Amount = field(default_factory=Amount)
    _keys: dict[str, _Key] = field(default_factory=dict)
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _running: dict[str, Demand] = field(default_factory=dict)
    _starting: set[str] = field(default_factory=set)
    _places: int = 0
    _next_start_s: float = -math.inf
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.rules.seed)  # noqa: S311  # spreads starts, guards nothing

    def __len__(self) -> int:
        return len(self._waiting)

    # ---- events ----

    def offer(self, demand: Demand, share: Share, now_s: float) -> None:
        """Queue a demand. Raises QueueFull, and ValueError for an id that is known."""
        if demand.id in self._waiting or demand.id in self._running:
            raise ValueError(f"{demand.id} is known already")
        if len(self._waiting) >= self.rules.queue_max:
            raise QueueFull
        self._places += 1
        key = self._key(demand.key, share)
        self._waiting[demand.id] = _Waiting(demand, now_s, self._places)
        heapq.heappush(key.queues.setdefault(demand.label, []), (-demand.priority, self._places, demand.id))

    def hold(self, demand: Demand, share: Share) -> None:
        """Count what is there already (adopted after a restart), whatever the limits say."""
        self._take(self._key(demand.key, share), demand)

    def withdraw(self, demand_id: str) -> bool:
        """Take a demand out of the queue; False if it does not wait."""
        return self._waiting.pop(demand_id, None) is not None

    def started(self, demand_id: str) -> None:
        """Its start is over, well or not: another may be started."""
        self._starting.discard(demand_id)

    def release(self, demand_id: str) -> None:
        """It is gone: what it held is free. Of one that holds nothing is no error."""
        self._starting.discard(demand_id)
        demand = self._running.pop(demand_id, None)
        if demand is None:
            return
        key = self._keys[demand.key]
        key.held = key.held.minus(demand.amount)
        self.held = self.held.minus(demand.amount)
        left = key.by_label.get(demand.label, 0) - demand.amount.sandboxes
        if left > 0:
            key.by_label[demand.label] = left
        else:
            key.by_label.pop(demand.label, None)

    def admit(self, now_s: float) -> list[Demand]:
        """Return what starts now, and count it."""
        admitted: list[Demand] = []
        while len(self._starting) < self.rules.starts and now_s >= self._next_start_s and self.room:
            found = self._next(now_s)
            if found is None:
                break
            del self._waiting[found.demand.id]
            self._starting.add(found.demand.id)
            self._take(self._keys[found.demand.key], found.demand)
            self._pace(self._keys[found.demand.key], found.demand, now_s)
            admitted.append(found.demand)
        for key in self._keys.values():
            key.forget_empty()
        return admitted

    # ---- what can be asked ----

    def next_due_s(self, now_s: float) -> float | None:
        """Return when ``admit`` should be asked again though nothing has happened."""
        if not self._waiting:
            return None
        times = [key.ready_s for key in self._keys.values() if key.queues]
        times.append(self._next_start_s)
        times += [one.since_s + BACKFILL_S for key in self._keys.values() for one in key.heads(self._waiting)]
        return min((time for time in times if time > now_s), default=None)

    def position(self, demand_id: str, now_s: float) -> Fit:
        """Return where a waiting demand stands in its key's queue (1 is next), and what it waits for."""
        one = self._waiting[demand_id]
        key = self._keys[one.demand.key]
        mine = (-one.demand.priority, one.place)
        ahead = sum(
            place[:2] < mine and place[2] in self._waiting for queue in key.queues.values() for place in queue
        )
        why = self._obstacle(key, one.demand, now_s) or "priority"
        return Fit(False, self.ever(one.demand, key.share), why, ahead + 1)

    def ever(self, demand: Demand, share: Share) -> bool:
        """Whether the demand could be met by an empty host."""
        return self.rules.capacity.holds(demand.amount) and share.limits.holds(demand.amount)

    def would_fit(self, demand: Demand, share: Share, now_s: float) -> Fit:
        """Return what would become of a demand that is not made."""
        key = self._keys.get(demand.key) or _Key(share)
        if not self.ever(demand, share):
            why = "quota" if not share.limits.holds(demand.amount) else "capacity"
            return Fit(False, ever=False, waiting_for=why)
        why_not = self._obstacle(key, demand, now_s)
        ahead = sum(place[2] in self._waiting for queue in key.queues.values() for place in queue)
        if why_not is None and not self._waiting:
            return Fit(True, ever=True)
        return Fit(False, ever=True, waiting_for=why_not or "priority", position=ahead + 1)

    # ---- the choice ----

    def _key(self, name: str, share: Share) -> _Key:
        key = self._keys.setdefault(name, _Key(share))
        key.share = share
        return key

    def _next(self, now_s: float) -> _Waiting | None:
        """Return the first demand in the order above that nothing stands against."""
        blocked = False
        for key in sorted((key for key in self._keys.values() if key.queues), key=self._rank):
            for one in key.heads(self._waiting):
                why = self._obstacle(key, one.demand, now_s)
                if why is None and not blocked:
                    return one
                if why == "capacity" and now_s - one.since_s >= BACKFILL_S and self._can_ever(one, key):
                    blocked = True  # room that becomes free is kept for it
        return None

    def _can_ever(self, one: _Waiting, key: _Key) -> bool:
        return self.ever(one.demand, key.share)

    def _rank(self, key: _Key) -> tuple[bool, float, int]:
        below_floor = key.held.sandboxes < key.share.floor
        share = self.rules.capacity.share(key.held) / max(key.share.weight, 1e-9)
        first = min((queue[0][1] for queue in key.queues.values() if queue), default=0)
        return not below_floor, share or key.held.sandboxes / max(key.share.weight, 1e-9) * 1e-12, first

    def _obstacle(self, key: _Key, demand: Demand, now_s: float) -> str | None:
        """Return what stands against starting a demand now."""
        if not self.room:
            return "disk"
        if not key.share.limits.holds(key.held.plus(demand.amount)):
            return "quota"
        if now_s < key.ready_s:
            return "rate"
        taken = self.held.plus(demand.amount).plus(self._reserved(key))
        return None if self.rules.capacity.holds(taken) else "capacity"

    def _reserved(self, mine: _Key) -> Amount:
        """Return the sandboxes that floors of other keys keep free, as far as they wait for them."""
        if mine.held.sandboxes < mine.share.floor:
            return Amount()
        short = 0
        for key in self._keys.values():
            if key is not mine and key.queues and key.held.sandboxes < key.share.floor:
                wanted = sum(map(len, key.queues.values()))
                short += min(key.share.floor - key.held.sandboxes, wanted)
        return Amount(sandboxes=short)

    def _take(self, key: _Key, demand: Demand) -> None:
        self._running[demand.id] = demand
        key.held = key.held.plus(demand.amount)
        self.held = self.held.plus(demand.amount)
        key.by_label[demand.label] = key.by_label.get(demand.label, 0) + demand.amount.sandboxes

    def _pace(self, key: _Key, demand: Demand, now_s: float) -> None:
        if key.share.creates_per_s:
            gap_s = demand.amount.sandboxes / key.share.creates_per_s
            key.ready_s = max(key.ready_s, now_s - 1.0) + gap_s  # a second's worth may come at once
        if self.rules.start_interval_s:
            self._next_start_s = now_s + self.rules.start_interval_s * (0.5 + self._chance.random())

    def check(self) -> None:
        """Raise AssertionError where the books do not balance; for tests."""
        total = Amount()
        for demand in self._running.values():
            total = total.plus(demand.amount)
        if abs(total.cpus - self.held.cpus) > 1e-6 or total.sandboxes != self.held.sandboxes:
            raise AssertionError(f"{self.held} is held, {total} is running")
        if self._waiting.keys() & self._running.keys():
            raise AssertionError("something waits and runs at once")
