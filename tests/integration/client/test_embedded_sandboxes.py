"""``Sandbox.create()`` with nothing configured: real sandboxes of this machine, by both faces."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from cloche import AsyncSandbox, Sandbox
from cloche.api.models import State
from cloche.client import request
from cloche.client.embedded import open_embedded
from cloche.client.pool import close
from cloche.client.portal import portal
from cloche.core.errors import InvalidInput, NotFound, PlanRefused
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import EndReason

pytestmark = pytest.mark.usefixtures("here")

IMAGE = "busybox:1"


def test_from_nothing_to_output_and_back() -> None:
    with Sandbox.create(IMAGE, memory="64m", env={"GREETING": "hello"}, labels={"task": "t"}) as box:
        done = box.run("echo $GREETING; echo oh >&2; exit 4")
        assert (done.stdout.text, done.stderr.text, done.exit_code, done.ok) == ("hello\n", "oh\n", 4, False)
        assert box.view.resources.memory_bytes == 64 << 20
        assert [view.id for view in Sandbox.list(labels={"task": "t"})] == [box.id]
        assert Sandbox.list(labels={"task": "other"}) == []
    assert Sandbox.list() == []
    with pytest.raises(NotFound):
        Sandbox.connect(box.id)
    portal().run(close)


def test_files_and_their_changes(tmp_path: Path) -> None:
    with Sandbox.create(IMAGE) as box:
        box.files.write("/srv/a.txt", "one\ntwo\n")
        assert box.files.read_text("/srv/a.txt") == "one\ntwo\n"
        box.files.apply_patch("--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n", "/srv")
        assert box.files.read("/srv/a.txt") == b"one\nthree\n"
        assert b"".join(box.files.stream("/srv/a.txt")) == b"one\nthree\n"
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "b").write_bytes(bytes(300_000))
        box.files.upload(tmp_path / "in", "/srv/in")
        box.files.download("/srv", tmp_path / "out")
        assert (tmp_path / "out" / "in" / "b").read_bytes() == bytes(300_000)
        box.files.move("/srv/in", "/srv/moved")
        box.files.mkdir("/srv/new/deep")
        box.files.remove("/srv/moved", recursive=True)
        assert [info.name for info in box.files.list("/srv")] == ["a.txt", "new"]
        assert [info.path for info in box.files.glob("/srv/*.txt")] == ["/srv/a.txt"]
        assert not box.files.exists("/srv/moved")
        assert {(item.path, item.kind) for item in box.files.diff() if item.type == "file"} == {
            ("/srv/a.txt", "added")
        }
        with pytest.raises(NotFound, match="/nowhere"):
            box.files.read("/nowhere")
    portal().run(close)


def test_a_process_is_followed_fed_and_ended() -> None:
    with Sandbox.create(IMAGE) as box:
        process = box.start("read line; echo got $line; sleep 60", interactive=True)
        process.write("this\n")
        assert next(process.text()) == "got this\n"
        assert process.cancel().reason is EndReason.CANCELLED
        again = box.process(process.id).wait()
        assert (again.reason, again.stdout.text) == (EndReason.CANCELLED, "got this\n")
        shell = box.terminal(40, 10)
        shell.resize(41, 11)
        shell.write("stty size; exit 5\n")
        assert "11 41" in "".join(shell.text())
        assert shell.wait().exit_code == 5
        assert {status.id for status in box.commands()} >= {process.id, shell.id}
    portal().run(close)


async def test_many_at_once_and_the_same_key_twice() -> None:
    bodies = [request(IMAGE, labels={"n": str(number)}) for number in range(4)]
    made = await AsyncSandbox.create_many([*bodies, request("no-such:1"), bodies[0]])
    boxes = [box for box in made if isinstance(box, AsyncSandbox)]
    assert isinstance(made[4], NotFound)
    assert made[5].id == made[0].id if isinstance(made[5], AsyncSandbox) else False
    ids = {box.id for box in boxes}
    assert len(ids) == 4
    outputs = await asyncio.gather(*(box.run("hostname") for box in boxes))
    assert all(done.ok for done in outputs)
    await asyncio.gather(*(box.delete() for box in boxes[:4]))
    await boxes[4].close()


async def test_a_create_is_awaited_or_entered() -> None:
    async with AsyncSandbox.create(IMAGE, id="by-name") as box:
        assert (await box.run("true")).ok
        async with asyncio.timeout(30):
            await box.pause()
            assert (await box.refresh()).state == "paused"
            await box.resume()
        assert (await box.run("true")).ok
    other = await AsyncSandbox.create(IMAGE, ttl_s=None)
    await other.delete()
    assert (await other.delete()).state == "ended"


@pytest.mark.parametrize(
    ("options", "where"),
    [({"cpus": -1}, "resources.cpus"), ({"ports": [0]}, "ports.0"), ({"id": "Not A Name"}, "id")],
)
def test_what_cannot_be_asked_for_names_its_field(options: dict[str, object], where: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        request(IMAGE, **options)  # type: ignore[arg-type]
    assert caught.value.where == where
    with pytest.raises(InvalidInput, match="size"):
        request(IMAGE, memory="much")


def test_what_needs_a_service_is_refused_by_name() -> None:
    with pytest.raises(PlanRefused, match="sidecars needs a service"):
        Sandbox.create(IMAGE, sidecars={"db": request(IMAGE)})
    with Sandbox.create(IMAGE) as box, pytest.raises(PlanRefused, match="port needs a service"):
        box.port_url(80)
    portal().run(close)


async def test_heartbeats_are_sent_by_themselves() -> None:
    async with AsyncSandbox.create(IMAGE, heartbeat_s=0.5) as box:
        assert (await box.run("sleep 2")).ok  # four times the limit


@pytest.mark.fault("client-killed")
async def test_a_sandbox_ends_after_its_client_was_killed(settings: Settings) -> None:
    program = (
        "from cloche import Sandbox\n"
        f"print(Sandbox.create({IMAGE!r}, heartbeat_s=1.0).id, flush=True)\n"
        "input()\n"
    )
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert client.stdout is not None
    sandbox_id = (await client.stdout.readline()).decode().strip()
    client.kill()
    await client.wait()
    backend = open_embedded()
    async with asyncio.timeout(60):
        assert (await backend.wait(sandbox_id, {State.ENDED})).state is State.ENDED
    await backend.delete_many([sandbox_id])
    await backend.close()
