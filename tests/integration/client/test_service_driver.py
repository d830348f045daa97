"""A service as a driver: whole trials run over it unchanged, and nothing of them is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from cloche.api.models import CreateBody, SandboxView, State
from cloche.client.driver import ServiceDriver, body_of
from cloche.client.embedded import Embedded, open_embedded
from cloche.core.errors import InfraError, PlanRefused
from cloche.experiment.images import store_images
from cloche.experiment.plan import make_plan
from cloche.experiment.runner import Watch
from cloche.experiment.session import Session
from cloche.sandbox.driver import Capability
from cloche.sandbox.spec import (
    Lease,
    NetworkMode,
    NetworkPolicy,
    PreparedImage,
    Resources,
    SandboxSpec,
    Unit,
    Volume,
)
from cloche.service.shapes import spec_of
from cloche.tasks import find_tasks
from cloche.testing.experiments import Installation, MakeTask, make_task

__all__ = ["make_task"]

pytestmark = pytest.mark.usefixtures("here")


@pytest_asyncio.fixture
async def over() -> AsyncIterator[ServiceDriver]:
    made = await ServiceDriver.open(open_embedded())
    yield made
    await made.close()


async def test_a_trial_is_graded_over_it_and_leaves_nothing(
    over: ServiceDriver, installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    plan = make_plan(find_tasks([make_task()]), ["oracle", "nop"], [], concurrency=2, environ={})
    session = Session(plan, tmp_path / "out", over, store_images(installation.store), environ={})
    ending = await session.run(Watch(), lambda _: None)
    rewards = {item.agent: item.attempts[-1].rewards for item in ending.outcomes}
    assert (ending.status, ending.sandboxes_left) == (0, 0)
    assert rewards == {"oracle": {"reward": 1.0}, "nop": {"reward": 0.0}}
    assert await over.list() == []


SPEC = SandboxSpec(
    id="by-name",
    resources=Resources(cpus=0.5, memory_bytes=64 << 20, pids=99, disk_bytes=1 << 30, cpus_request=0.1),
    network=NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow=("example.org:443",), presets=("packages",)),
    env={"A": "1"},
    user="nobody",
    workdir="/tmp",
    labels={"task": "t"},
    lease=Lease(ttl_s=60.0, idle_s=None, heartbeat_s=30.0),
    no_new_privileges=True,
    isolation="native",
    volumes=(Volume(source=Path("/srv"), target="/data"),),
    priority=3,
)
IMAGE = PreparedImage(name="x:1", digest="sha256:" + "0" * 64, layers=())


def test_nothing_of_a_spec_is_lost_on_the_way() -> None:
    body = CreateBody.model_validate_json(body_of(SPEC, IMAGE).model_dump_json(exclude_unset=True))
    assert replace(spec_of(body), idempotency_key=None) == SPEC
    assert (body.image, body.idempotency_key) == (IMAGE.digest, SPEC.id)


async def test_what_it_cannot_do_is_refused_by_name(
    over: ServiceDriver, busybox_image: PreparedImage
) -> None:
    assert not {Capability.UNIT, Capability.FORK} & over.capabilities()
    with pytest.raises(PlanRefused, match="unit"):
        await over.create(SandboxSpec(unit=Unit(id="u", name="main", members=("main",))), busybox_image)
    with pytest.raises(PlanRefused, match="fork"):
        await over.fork("sb-1", [])
    assert await over.delete("sb-1") is False


async def test_an_image_that_the_service_has_not_is_an_infrastructure_failure(over: ServiceDriver) -> None:
    with pytest.raises(InfraError, match="no image x:1") as caught:
        await over.create(SandboxSpec(), IMAGE)
    assert caught.value.code == "infra/image"


@pytest.mark.fault("service-create-cancelled")
async def test_a_create_that_is_cancelled_can_be_deleted_by_its_own_name(
    over: ServiceDriver, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asyncio.Event()
    create = Embedded.create

    async def slow(self: Embedded, body: CreateBody) -> SandboxView:
        view = await create(self, body)
        made.set()
        await asyncio.Event().wait()  # its answer is never heard
        return view

    monkeypatch.setattr(Embedded, "create", slow)
    spec = SandboxSpec(id="never-heard-of")
    making = asyncio.create_task(over.create(spec, installation.store.resolve("busybox:1")))
    await made.wait()
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert [info.id for info in await over.list()] == [spec.id]
    assert await over.delete(spec.id) is True
    assert await over.delete(spec.id) is False
    assert State.ENDED not in {State(info.state.value) for info in await over.list()}
