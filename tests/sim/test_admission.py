"""Admission through seeded worlds: nothing lost, nothing twice, no limit exceeded, no floor denied."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from cloche.core.admission import Admission, Amount, Demand, Limits, QueueFull, Rules, Share

SHARES = {
    "small": Share(limits=Limits(sandboxes=3), floor=1),
    "large": Share(weight=3.0),
    "slow": Share(creates_per_s=2.0),
    "poor": Share(limits=Limits(cpus=4.0, memory_bytes=1 << 30)),
}
CAPACITY = Limits(sandboxes=12, cpus=16.0, memory_bytes=8 << 30)


class World:
    """Callers that ask for sandboxes at random, and sandboxes that live for random times."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.core = Admission(
            Rules(
                capacity=CAPACITY,
                starts=self.chance.choice((1, 4, 100)),
                start_interval_s=self.chance.choice((0.0, 0.1)),
                seed=seed,
            )
        )
        self.asked: dict[str, Demand] = {}
        self.admitted: Counter[str] = Counter()
        self.withdrawn: set[str] = set()
        self.alive: dict[str, float] = {}

    def ask(self) -> None:
        key = self.chance.choice(list(SHARES))
        demand = Demand(
            id=f"d{len(self.asked)}",
            key=key,
            label=self.chance.choice(("", "a", "b")),
            priority=self.chance.choice((0, 0, 0, 5)),
            amount=Amount(
                sandboxes=self.chance.choice((1, 1, 1, 3)),
                cpus=self.chance.choice((0.0, 0.5, 2.0)),
                memory_bytes=self.chance.choice((0, 128 << 20, 1 << 30)),
            ),
        )
        if not self.core.ever(demand, SHARES[key]):
            return
        self.core.offer(demand, SHARES[key], self.now_s)
        self.asked[demand.id] = demand

    def step(self) -> None:
        for demand in self.core.admit(self.now_s):
            self.admitted[demand.id] += 1
            self.alive[demand.id] = self.now_s + self.chance.uniform(0.1, 20)
            self.core.started(demand.id)
        self.check()

    def check(self) -> None:
        self.core.check()
        held: dict[str, Amount] = {}
        total = Amount()
        for name in self.alive:
            demand = self.asked[name]
            held[demand.key] = held.get(demand.key, Amount()).plus(demand.amount)
            total = total.plus(demand.amount)
        assert CAPACITY.holds(total), total
        for key, amount in held.items():
            assert SHARES[key].limits.holds(amount), (key, amount)
        assert not self.withdrawn & set(self.alive)

    def end_due(self) -> None:
        for name, until_s in list(self.alive.items()):
            if until_s <= self.now_s:
                del self.alive[name]
                self.core.release(name)

    def run(self) -> None:
        for _ in range(200):
            for _ in range(self.chance.choice((0, 0, 1, 2, 12))):
                self.ask()
            if self.asked and self.chance.random() < 0.1:
                name = self.chance.choice(list(self.asked))
                if self.core.withdraw(name):
                    self.withdrawn.add(name)
            self.step()
            self.now_s += self.chance.uniform(0, 2)
            self.end_due()
        for _ in range(100_000):
            if not len(self.core):
                break
            self.step()
            due = [*self.alive.values(), *filter(None, [self.core.next_due_s(self.now_s)])]
            assert due, "it waits for nothing"
            self.now_s = max(self.now_s + 1e-6, min(due))
            self.end_due()
        assert not len(self.core), "something was never admitted"


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_everything_asked_for_is_admitted_once_within_all_limits(first: int) -> None:
    for seed in range(first, first + 50):
        world = World(seed)
        world.run()
        assert set(world.admitted) == set(world.asked) - world.withdrawn, seed
        assert not world.admitted or max(world.admitted.values()) == 1, seed


def demand(name: str, key: str = "a", **more: Any) -> Demand:
    return Demand(id=name, key=key, **{"amount": Amount(sandboxes=1), **more})


def core(sandboxes: int = 2, **rules: Any) -> Admission:
    return Admission(Rules(capacity=Limits(sandboxes=sandboxes), **rules))


def admitted(machine: Admission, now_s: float = 0.0) -> list[str]:
    return [one.id for one in machine.admit(now_s)]


def test_keys_share_by_weight() -> None:
    machine = core(8)
    for index in range(20):
        machine.offer(demand(f"a{index}", "a"), Share(weight=3.0), 0.0)
        machine.offer(demand(f"b{index}", "b"), Share(weight=1.0), 0.0)
    found = Counter(name[0] for name in admitted(machine))
    assert found == {"a": 6, "b": 2}


@pytest.mark.fault("admission-floor")
def test_a_floor_is_kept_from_those_who_came_first() -> None:
    machine = core(3)
    for index in range(9):
        machine.offer(demand(f"a{index}", "a"), Share(weight=100.0), 0.0)
    machine.offer(demand("b", "b"), Share(floor=1), 0.0)
    assert "b" in admitted(machine)


def test_labels_share_within_a_key_and_priority_goes_first_within_a_label() -> None:
    machine = core(4)
    for index in range(9):
        machine.offer(demand(f"x{index}", label="x"), Share(), 0.0)
    machine.offer(demand("y0", label="y"), Share(), 0.0)
    machine.offer(demand("y1", label="y", priority=9), Share(), 0.0)
    assert admitted(machine) == ["x0", "y1", "x1", "y0"]


@pytest.mark.fault("admission-starves-the-large")
def test_a_large_demand_is_not_overtaken_for_ever() -> None:
    machine = core(4)
    machine.offer(demand("a"), Share(), 0.0)
    assert admitted(machine) == ["a"]
    machine.offer(demand("large", amount=Amount(sandboxes=4)), Share(), 0.0)
    machine.offer(demand("b", "b"), Share(), 1.0)
    assert admitted(machine, 1.0) == ["b"], "what is small goes before it at first"
    machine.offer(demand("c", "b"), Share(), 2.0)
    assert admitted(machine, 31.0) == []
    machine.release("a")
    machine.release("b")
    assert admitted(machine, 32.0) == ["large"]


def test_a_rate_delays_and_never_refuses() -> None:
    machine = core(100)
    share = Share(creates_per_s=2.0)
    for index in range(6):
        machine.offer(demand(f"a{index}"), share, 0.0)
    first = admitted(machine)
    assert 1 <= len(first) < 6
    due_s = machine.next_due_s(0.0)
    assert due_s is not None
    assert admitted(machine, due_s)


def test_no_room_on_the_disk_stops_everything() -> None:
    machine = core()
    machine.offer(demand("a"), Share(), 0.0)
    machine.room = False
    assert admitted(machine) == []
    assert machine.position("a", 0.0).waiting_for == "disk"
    machine.room = True
    assert admitted(machine) == ["a"]


def test_few_start_at_once() -> None:
    machine = core(10, starts=1)
    for name in "abc":
        machine.offer(demand(name), Share(), 0.0)
    assert admitted(machine) == ["a"]
    assert admitted(machine) == []
    machine.started("a")
    assert admitted(machine) == ["b"]


def test_the_queue_has_a_bound_and_an_id_is_taken_once() -> None:
    machine = core(queue_max=1)
    machine.offer(demand("a"), Share(), 0.0)
    with pytest.raises(ValueError, match="known"):
        machine.offer(demand("a"), Share(), 0.0)
    with pytest.raises(QueueFull):
        machine.offer(demand("b"), Share(), 0.0)


def test_would_fit_says_whether_and_why_not() -> None:
    machine = core(2)
    assert machine.would_fit(demand("x"), Share(), 0.0).fits
    never = machine.would_fit(demand("x", amount=Amount(sandboxes=3)), Share(), 0.0)
    assert (never.fits, never.ever, never.waiting_for) == (False, False, "capacity")
    machine.hold(demand("a", amount=Amount(sandboxes=2)), Share())
    waits = machine.would_fit(demand("x"), Share(), 0.0)
    assert (waits.fits, waits.ever, waits.waiting_for) == (False, True, "capacity")
