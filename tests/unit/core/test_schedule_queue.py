"""The queue against a plain model of it, and what signals mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cloche.core.schedule import Queue, Stop, after_interrupt, after_terminate


class QueueMachine(RuleBasedStateMachine):
    """Whatever happens: never more than the limit, each name in one place, none lost, none twice."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(limit=3)
        self.now_s = 0.0
        self.made = 0
        self.fresh: list[str] = []
        self.waiting: dict[str, float] = {}
        self.running: set[str] = set()
        self.done: set[str] = set()

    @rule(n=st.integers(1, 4))
    def add(self, n: int) -> None:
        for _ in range(n):
            name = f"t{self.made}"
            self.made += 1
            self.queue.add(name)
            self.fresh.append(name)

    @rule(seconds=st.floats(0, 5))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def take(self) -> None:
        before = len(self.running)
        due = {name for name, until_s in self.waiting.items() if until_s <= self.now_s}
        ready = len(due) + len(self.fresh)
        started = self.queue.take(self.now_s)
        if self.queue.stop is not Stop.RUNNING:
            assert started == []
            return
        assert len(started) == min(3 - before, ready)
        for name in started:
            if name in self.waiting:
                assert self.waiting.pop(name) <= self.now_s
            else:
                assert name == self.fresh.pop(0), "fresh trials start in the order they came"
            self.running.add(name)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.queue.done(name)
        self.running.remove(name)
        self.done.add(name)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), wait_s=st.floats(0, 10))
    def retry(self, data: st.DataObject, wait_s: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.queue.wait(name, self.now_s + wait_s)
        self.running.remove(name)
        self.waiting[name] = self.now_s + wait_s

    @precondition(lambda self: self.made > 6)
    @rule()
    def interrupt(self) -> None:
        self.queue.stop = after_interrupt(self.queue.stop)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        assert self.queue.running == self.running
        assert len(self.running) <= 3
        assert self.queue.queued == len(self.fresh) + len(self.waiting)
        assert self.queue.waiting == len(self.waiting)
        assert len(self.fresh) + len(self.waiting) + len(self.running) + len(self.done) == self.made

    @invariant()
    def it_knows_when_it_is_over_and_when_to_look_again(self) -> None:
        stopped = self.queue.stop is not Stop.RUNNING
        assert self.queue.over == (not self.running and (stopped or not (self.fresh or self.waiting)))
        expected = None if stopped or not self.waiting else min(self.waiting.values())
        assert self.queue.next_due_s() == expected


TestQueue = QueueMachine.TestCase


def test_a_due_retry_goes_before_fresh_trials() -> None:
    queue = Queue(limit=1)
    queue.add("a")
    queue.add("b")
    assert queue.take(0.0) == ["a"]
    queue.wait("a", 5.0)
    assert queue.take(4.0) == ["b"]
    queue.done("b")
    queue.add("c")
    assert queue.take(5.0) == ["a"]


def test_a_trial_that_waits_holds_no_place() -> None:
    queue = Queue(limit=1)
    queue.add("a")
    queue.add("b")
    queue.take(0.0)
    queue.wait("a", 1000.0)
    assert queue.take(0.0) == ["b"]


def test_what_does_not_run_cannot_be_over() -> None:
    with pytest.raises(KeyError):
        Queue(limit=1).done("a")


def test_ctrl_c_once_drains_twice_cancels_three_times_kills() -> None:
    stops = [Stop.RUNNING]
    for _ in range(4):
        stops.append(after_interrupt(stops[-1]))
    assert stops[1:] == [Stop.DRAINING, Stop.CANCELLING, Stop.KILLING, Stop.KILLING]


@given(st.sampled_from(Stop))
def test_a_signal_never_takes_a_step_back(stop: Stop) -> None:
    assert after_interrupt(stop) >= stop
    assert after_terminate(stop) >= max(stop, Stop.CANCELLING)


def test_a_second_term_kills() -> None:
    assert after_terminate(Stop.DRAINING) is Stop.CANCELLING
    assert after_terminate(Stop.CANCELLING) is Stop.KILLING
