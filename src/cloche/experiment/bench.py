"""What the attempts of a run share, and what their sandboxes are asked to be. Must never make one."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from cloche.core.errors import ClocheError, Domain
from cloche.core.failures import FAILURES, Failure
from cloche.experiment.plan import DEFAULT_MEMORY_BYTES, PlannedTrial
from cloche.experiment.record.export import Job
from cloche.experiment.secrets import Scrubber
from cloche.sandbox.driver import Capability, Driver
from cloche.sandbox.spec import Lease, NetworkPolicy, Resources, SandboxSpec
from cloche.tasks.model import Environment
from cloche.tasks.refuse import resolve_env

HEARTBEAT_S = 120.0
LEASE_SLACK_S = 300.0
INTERRUPTED = "user/interrupted"

T = TypeVar("T")


class PhaseTimeout(ClocheError):
    """A phase of the attempt was not done in time."""

    code: ClassVar[str] = "infra/request_timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all attempts of a run share. ``now`` gives seconds since 1970; ``environ`` is the host's."""

    driver: Driver
    job: Job
    scrubber: Scrubber
    now: Callable[[], float] = time.time
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


async def within(seconds: float, code: str, work: Awaitable[T]) -> T:
    """Await ``work``. Our own limit is a failure of ``code``; a time-out from inside stays what it is."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise PhaseTimeout(f"not done after {seconds:g} s", code=code) from error


def in_an_attempt(found: Failure) -> Failure:
    """Return a failure as it counts inside an attempt: there, a wrong request is not the user's but ours.

    What the task itself asks for in vain, and the plan has not seen, stays the user's.
    """
    if found.domain is Domain.USER and found.code != INTERRUPTED and not found.code.startswith("plan/"):
        return dataclasses.replace(found, kind=FAILURES["infra/error"])
    return found


def sandbox_spec(
    bench: Bench,
    trial: PlannedTrial,
    environment: Environment,
    *,
    number: int,
    sandbox_id: str,
    total_s: float | None,
    role: str | None = None,
    network: NetworkPolicy | None = None,
) -> SandboxSpec:
    """Return what a sandbox is asked to be: limits, labels and lease, all known before it is made.

    ``total_s`` is how long it may be needed; ``role`` is told in a label where it is not the agent's;
    ``network`` is the environment's where it is ``None``. A disk limit that the driver cannot enforce is not
    asked for: the record says so (``not_enforced``), and the task runs.
    """
    limits_disk = environment.storage_bytes and Capability.DISK_LIMIT in bench.driver.capabilities()
    return SandboxSpec(
        id=sandbox_id,
        resources=Resources(
            cpus=environment.cpus,
            memory_bytes=environment.memory_bytes or DEFAULT_MEMORY_BYTES,
            disk_bytes=environment.storage_bytes if limits_disk else None,
        ),
        network=environment.policy if network is None else network,
        env=resolve_env(environment.env, bench.environ),
        user=environment.user,
        workdir=environment.workdir,
        labels={
            "experiment": str(bench.job.id),
            "trial": trial.name,
            "attempt": str(number),
            "task": trial.label,
            "agent": trial.agent.name,
            **({"model": trial.model_name} if trial.model_name else {}),
            **({"role": role} if role else {}),
        },
        lease=Lease(
            ttl_s=None if total_s is None else total_s + LEASE_SLACK_S, idle_s=None, heartbeat_s=HEARTBEAT_S
        ),
    )
