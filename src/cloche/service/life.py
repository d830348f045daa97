"""One sandbox as the service knows it: its state, how it came to it, how it is shown. Must never do I/O."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from cloche.api.models import End, ErrorBody, SandboxView, State
from cloche.sandbox.spec import Resources, SandboxSpec
from cloche.service.shapes import lease_of, network_of, resources_of

NEXT: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.STARTING, State.ENDED}),
    State.STARTING: frozenset({State.READY, State.STOPPING, State.ENDED}),
    State.READY: frozenset({State.PAUSED, State.STOPPING, State.ENDED}),
    State.PAUSED: frozenset({State.READY, State.STOPPING, State.ENDED}),
    State.STOPPING: frozenset({State.ENDED}),
    State.ENDED: frozenset(),
}


@dataclass(slots=True, kw_only=True)
class Life:
    """One sandbox from its acceptance to its end and a while beyond.

    ``unit`` is the id of the main sandbox of its unit, where it has sidecars or is one; ``sidecars`` are
    names and ids. ``changed`` is set at each change of state, for those who wait.
    """

    spec: SandboxSpec
    image: str
    digest: str | None = None
    state: State = State.QUEUED
    times: dict[State, float] = field(default_factory=dict)
    end: End | None = None
    error: ErrorBody | None = None
    unit: str | None = None
    sidecars: dict[str, str] = field(default_factory=dict)
    isolation: str | None = None
    task: asyncio.Task[None] | None = None
    waiters: set[asyncio.Future[None]] = field(default_factory=set)

    @property
    def id(self) -> str:
        """The sandbox's name."""
        return self.spec.id

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state is State.ENDED

    def go(self, state: State, at: float) -> None:
        """Change the state. Raises AssertionError for a step that cannot be."""
        if state not in NEXT[self.state]:
            raise AssertionError(f"{self.id} cannot become {state} from {self.state}: {self.times}")
        self.state = state
        self.times[state] = at
        waiters, self.waiters = self.waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def view(self, *, position: int | None = None, waiting_for: str | None = None) -> SandboxView:
        """Return it as its owner sees it."""
        spec = self.spec
        return SandboxView(
            id=spec.id,
            state=self.state,
            times=dict(self.times),
            image=self.image,
            digest=self.digest,
            labels=dict(spec.labels),
            isolation=self.isolation or spec.isolation,
            network=network_of(spec.network),
            resources=resources_of(spec.resources),
            overcommit=overcommit(spec.resources),
            lease=lease_of(spec.lease),
            ports=spec.ports,
            priority=spec.priority,
            idempotency_key=spec.idempotency_key,
            position=position,
            waiting_for=waiting_for,
            end=self.end,
            error=self.error,
            unit=self.unit,
            sidecars=dict(self.sidecars),
        )


def overcommit(resources: Resources) -> dict[str, float]:
    """Return limit divided by request where they differ; a request of nothing has no such figure."""
    pairs = {
        "cpus": (resources.cpus, resources.cpus_request),
        "memory": (resources.memory_bytes, resources.memory_request_bytes),
    }
    return {
        name: round(limit / request, 3)
        for name, (limit, request) in pairs.items()
        if limit and request and limit != request
    }
