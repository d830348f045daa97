"""The service over real sandboxes: create, find, follow, use and end them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cloche.api.models import (
    CreateBody,
    End,
    ExtendBody,
    ForkBody,
    LeaseBody,
    ResourcesBody,
    SandboxBody,
    SandboxView,
    State,
)
from cloche.core.admission import Limits
from cloche.core.errors import Conflict, NotFound, PlanRefused, SandboxLost
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.images.resolve import StoreResolver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, Lease, SandboxSpec
from cloche.service.caller import LOCAL, Caller, Quota, Scope
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
    assert made.state in {State.QUEUED, State.STARTING}
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
    async with make_service(events_max=3) as service:
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
    async with make_service(starts=1) as service:
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


async def test_a_sidecar_comes_and_goes_with_its_main_one(service: SandboxService) -> None:
    body = CreateBody(image=IMAGE, sidecars={"db": SandboxBody(image=IMAGE, command=("sleep", "1000"))})
    view = await ready(service, body)
    side = await service.get(view.sidecars["db"])
    assert (side.state, side.unit) == (State.READY, view.id)
    running = [status.id for status in await (await service.handle(side.id)).commands()]
    assert running == ["server"]
    handle = await service.handle(view.id)
    assert (await handle.run(Command(argv=("nslookup", "db"), timeout_s=20))).ok
    await service.delete(view.id)
    assert (await service.get(side.id)).end is End.UNIT


async def test_a_unit_ends_when_one_of_it_does(service: SandboxService) -> None:
    body = CreateBody(image=IMAGE, sidecars={"db": SandboxBody(image=IMAGE)})
    view = await ready(service, body)
    await (await service.handle(view.sidecars["db"])).extend(0.01)
    ended = await service.wait(view.id, (), LIMIT_S)
    assert (ended.state, ended.end) == (State.ENDED, End.UNIT)
    assert (await service.get(view.sidecars["db"])).end is End.TTL


@pytest.mark.parametrize(
    ("lease", "end"),
    [
        (LeaseBody(ttl_s=0.3), End.TTL),
        (LeaseBody(idle_s=0.3), End.IDLE),
        (LeaseBody(heartbeat_s=0.3), End.HEARTBEAT),
    ],
)
async def test_the_end_says_which_limit_ran_out(service: SandboxService, lease: LeaseBody, end: End) -> None:
    view = await service.create(BODY.model_copy(update={"lease": lease}))
    assert (await service.wait(view.id, (), LIMIT_S)).end is end


def limited(**bounds: object) -> Caller:
    scopes = frozenset({Scope.READ, Scope.WRITE})
    return Caller(owner="tenant", key="tenant", scopes=scopes, quota=Quota(**bounds))  # type: ignore[arg-type]


@pytest.mark.fault("quota-of-sandboxes")
async def test_a_shortage_is_a_place_in_the_queue(service: SandboxService) -> None:
    caller = limited(sandboxes=1)
    first = await ready(service, BODY, caller)
    second = await service.create(BODY, caller)
    third = await service.create(BODY, caller)
    assert (second.state, second.waiting_for, second.position) == (State.QUEUED, "quota", 1)
    assert third.position == 2
    fit = await service.would_fit(BODY, caller)
    assert (fit.fits, fit.ever, fit.waiting_for, fit.position) == (False, True, "quota", 3)
    await service.delete(first.id, caller)
    assert (await service.wait(second.id, {State.READY}, LIMIT_S, caller)).state is State.READY
    await service.delete(third.id, caller)
    await service.delete(second.id, caller)


async def test_what_can_never_be_is_refused(service: SandboxService) -> None:
    huge = BODY.model_copy(update={"resources": ResourcesBody(cpus=8000.0)})
    with pytest.raises(PlanRefused, match="in all"):
        await service.create(huge)
    assert not (await service.would_fit(huge)).ever
    with pytest.raises(PlanRefused, match="quota"):
        await service.create(huge, limited(cpus=1.0))


async def test_a_keys_longest_life_holds(service: SandboxService) -> None:
    caller = limited(ttl_s=30.0)
    view = await ready(service, BODY.model_copy(update={"lease": LeaseBody(ttl_s=None)}), caller)
    assert view.lease.ttl_s == 30.0
    longer = await service.extend(view.id, ExtendBody(ttl_s=3600.0), caller)
    assert longer.lease.ttl_s is not None
    assert longer.lease.ttl_s < 100.0
    await service.delete(view.id, caller)


@pytest.mark.fault("queued-create-survives")
async def test_what_was_accepted_survives_a_service_that_is_gone(make_service: MakeService) -> None:
    first = make_service(capacity=Limits(sandboxes=1))
    await first.start()
    keyed = BODY.model_copy(update={"idempotency_key": "later"})
    made = await first.create(BODY, OTHER)
    await first.wait(made.id, {State.READY}, LIMIT_S, OTHER)
    queued = await first.create(keyed, OTHER)
    assert queued.state is State.QUEUED
    await first.close()
    async with make_service() as second:
        view = await second.wait(queued.id, {State.READY}, LIMIT_S, OTHER)
        assert (view.state, view.times[State.QUEUED]) == (State.READY, queued.times[State.QUEUED])
        assert (await second.create(keyed, OTHER)).id == queued.id
        with pytest.raises(Conflict):
            await second.create(keyed.model_copy(update={"env": {"A": "1"}}), OTHER)
        await second.delete_many([made.id, queued.id], OTHER)


@pytest.mark.fault("burst-of-creates")
async def test_a_burst_of_creates_is_queued_and_comes_up(make_service: MakeService) -> None:
    async with make_service(capacity=Limits(sandboxes=20)) as service:
        views = await service.create_many([BODY] * 100)
        ids = [view.id for view in views if isinstance(view, SandboxView)]
        assert len(set(ids)) == 100
        for name in ids:
            assert (await service.wait(name, {State.READY}, LIMIT_S)).state is State.READY
            await service.delete(name)
        assert service.counts() == {State.ENDED: 100}


async def test_a_fork_waits_like_any_other(service: SandboxService) -> None:
    source = await ready(service)
    await (await service.handle(source.id)).write_file("/state", b"one")
    forks = await service.fork(source.id, ForkBody(count=3))
    for fork in forks:
        await service.wait(fork.id, {State.READY}, LIMIT_S)
        assert await (await service.handle(fork.id)).read_file("/state") == b"one"
