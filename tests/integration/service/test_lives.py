"""The service over real sandboxes: create, find, follow, use and end them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cloche.api.models import CreateBody, End, LeaseBody, SandboxBody, SandboxView, State
from cloche.core.errors import Conflict, NotFound, PlanRefused, SandboxLost
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.images.resolve import StoreResolver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, Lease, SandboxSpec
from cloche.service.caller import LOCAL, Caller, Scope
from cloche.service.service import SandboxService
from cloche.testing.experiments import IMAGE

MakeService = Callable[..., SandboxService]
BODY = CreateBody(image=IMAGE, labels={"task": "one"})
OTHER = Caller(owner="other", key="other", scopes=frozenset({Scope.READ, Scope.WRITE}))
LIMIT_S = 60.0


async def ready(service: SandboxService, body: CreateBody = BODY, caller: Caller = LOCAL) -> SandboxView:
    """Create a sandbox and wait for it."""
    made = await service.create(body, caller)
    view = await service.wait(made.id, {State.READY}, LIMIT_S, caller)
    assert view.state is State.READY, view
    return view


async def test_a_sandbox_is_accepted_at_once_made_used_and_gone(service: SandboxService) -> None:
    made = await service.create(BODY)
    assert made.state is State.QUEUED
    view = await service.wait(made.id, {State.READY}, LIMIT_S)
    assert view.digest is not None
    assert list(view.times) == [State.QUEUED, State.STARTING, State.READY]
    handle = await service.handle(view.id)
    assert (await handle.run(Command(shell="echo here"))).stdout.text == "here\n"
    assert await service.handle(view.id) is handle
    gone = await service.delete(view.id)
    assert (gone.state, gone.end) == (State.ENDED, End.DELETED)
    assert await service.delete(view.id) == gone
    with pytest.raises(SandboxLost):
        await service.handle(view.id)


async def test_each_change_is_an_event_whose_number_grows(service: SandboxService) -> None:
    view = await ready(service)
    await service.delete(view.id)
    seen = []
    async for event in service.events(ids=[view.id], after=0):
        seen.append(event)
        if event.state is State.ENDED:
            break
    assert [event.state.value for event in seen] == ["queued", "starting", "ready", "stopping", "ended"]
    assert [event.seq for event in seen] == sorted({event.seq for event in seen})


@pytest.mark.fault("events-not-kept")
async def test_events_that_are_no_longer_kept_are_refused(make_service: MakeService) -> None:
    async with make_service(events=3) as service:
        await service.delete((await ready(service)).id)
        with pytest.raises(Conflict, match="no longer kept"):
            await anext(service.events(after=0))


async def test_what_is_anothers_is_not_found(service: SandboxService) -> None:
    view = await ready(service)
    theirs = await ready(service, caller=OTHER)
    for asked in (service.get, service.delete, service.handle, service.pause, service.diff):
        with pytest.raises(NotFound):
            await asked(view.id, OTHER)
    assert [one.id for one in (await service.list(OTHER)).items] == [theirs.id]
    alone = Caller(owner="local", scopes=frozenset({Scope.WRITE}), sandbox=theirs.id)
    with pytest.raises(NotFound):
        await service.get(view.id, alone)


@pytest.mark.fault("create-asked-twice")
async def test_the_same_key_is_the_same_sandbox(service: SandboxService) -> None:
    body = BODY.model_copy(update={"idempotency_key": "k"})
    views = await asyncio.gather(*(service.create(body) for _ in range(20)))
    assert len({view.id for view in views}) == 1
    assert (await service.find("k")).id == views[0].id
    assert (await service.create(body, OTHER)).id != views[0].id
    with pytest.raises(Conflict):
        await service.create(body.model_copy(update={"labels": {}}))


@pytest.mark.fault("service-name-taken")
async def test_an_id_that_is_taken_is_refused_to_everyone_and_never_attached_to(
    service: SandboxService,
) -> None:
    body = BODY.model_copy(update={"id": "mine"})
    await ready(service, body)
    for caller in (LOCAL, OTHER):
        with pytest.raises(Conflict):
            await service.create(body, caller)
    assert service.counts()[State.READY] == 1


@pytest.mark.fault("service-restarts")
async def test_the_next_service_adopts_what_lives(make_service: MakeService) -> None:
    body = BODY.model_copy(update={"idempotency_key": "k"})
    first = make_service()
    await first.start()
    views = [await ready(first, body, OTHER)]
    await first.create_many([BODY] * 19)
    views += [
        await first.wait(one.id, {State.READY}, LIMIT_S)
        for one in (await first.list()).items
        if one.id != views[0].id
    ]
    await first.close()
    async with make_service() as second:
        assert second.counts()[State.READY] == 20
        assert (await second.create(body, OTHER)).id == views[0].id
        with pytest.raises(Conflict):
            await second.create(body.model_copy(update={"labels": {}}), OTHER)
        handle: Sandbox = await second.handle(views[1].id)
        assert (await handle.run(Command(argv=("true",)))).ok
        ended = await second.delete_many([view.id for view in views])
        assert [view.end for view in ended if isinstance(view, SandboxView)] == [End.DELETED] * 20


async def test_what_another_process_made_is_listed_too(
    service: SandboxService, settings: Settings, driver: LocalDriver
) -> None:
    image = (await service.get((await ready(service)).id)).digest
    made = await driver.create(
        SandboxSpec(lease=Lease(ttl_s=60)), await StoreResolver(settings).resolve(IMAGE)
    )
    async for event in service.events(after=0):
        if event.id == made.id:
            break
    assert (await service.get(made.id)).digest == image
    await made.close()


@pytest.mark.fault("lease-over-in-service")
async def test_an_end_that_nobody_asked_for_appears_by_itself(service: SandboxService) -> None:
    view = await ready(service, BODY.model_copy(update={"lease": LeaseBody(ttl_s=1.0)}))
    ended = await service.wait(view.id, (), LIMIT_S)
    assert (ended.state, ended.end) == (State.ENDED, End.TTL)


@pytest.mark.fault("start-fails-in-service")
async def test_a_start_that_fails_is_an_end_with_its_error(service: SandboxService) -> None:
    made = await service.create(BODY.model_copy(update={"image": "not-here:1"}))
    view = await service.wait(made.id, {State.READY}, LIMIT_S)
    assert view.end is End.START_FAILED
    assert view.error is not None
    assert view.error.code == "user/not_found"


async def test_one_that_waits_can_be_cancelled(make_service: MakeService) -> None:
    async with make_service(starts_at_once=1) as service:
        views = await service.create_many([BODY] * 5)
        last = views[-1]
        assert isinstance(last, SandboxView)
        assert (await service.delete(last.id)).end is End.CANCELLED
        await service.delete_many([view.id for view in views if isinstance(view, SandboxView)])
        assert set(service.counts()) == {State.ENDED}


async def test_pause_and_resume_are_states(service: SandboxService) -> None:
    view = await ready(service)
    assert (await service.pause(view.id)).state is State.PAUSED
    assert (await service.resume(view.id)).state is State.READY


@pytest.mark.fault("heartbeat-not-the-services")
async def test_the_service_does_not_beat_for_its_client(service: SandboxService) -> None:
    lease = LeaseBody(ttl_s=None, heartbeat_s=1.0)
    view = await ready(service, BODY.model_copy(update={"lease": lease}))
    await service.heartbeat(view.id)
    assert (await service.wait(view.id, (), LIMIT_S)).state is State.ENDED


async def test_what_is_not_built_is_refused_by_name(service: SandboxService) -> None:
    sidecars = CreateBody(image=IMAGE, sidecars={"db": SandboxBody(image=IMAGE)})
    for body in (sidecars, BODY.model_copy(update={"command": ("true",)})):
        with pytest.raises(PlanRefused):
            await service.create(body)
    assert not service.counts()
