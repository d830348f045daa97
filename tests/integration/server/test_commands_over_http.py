"""Commands through the service: started, joined, waited for, streamed, fed, ended."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from typing import Any

import aiohttp
import pytest


def url(box: str, rest: str = "") -> str:
    return f"/v1/sandboxes/{box}/commands{rest}"


async def test_a_command_is_answered_when_it_is_over(api: Any, box: str) -> None:
    done = await api.run(box, "echo out; echo err >&2; exit 3")
    assert (done["reason"], done["exit_code"], done["running"]) == ("exit", 3, False)
    assert (done["stdout"]["data"], done["stderr"]["data"]) == ("out\n", "err\n")


async def test_bytes_that_are_no_text_come_as_base64(api: Any, box: str) -> None:
    done = await api.run(box, r"printf '\377\000\200'")
    assert done["stdout"]["encoding"] == "base64"
    assert base64.b64decode(done["stdout"]["data"]) == b"\xff\x00\x80"


async def test_a_login_shell_reads_its_profile(api: Any, box: str) -> None:
    await api.run(box, "echo 'export FROM_PROFILE=yes' >/home/.profile")
    plain = await api.run(box, "echo $FROM_PROFILE", env={"HOME": "/home"})
    login = await api.run(box, "echo $FROM_PROFILE", env={"HOME": "/home"}, login=True)
    assert (plain["stdout"]["data"], login["stdout"]["data"]) == ("\n", "yes\n")


async def test_the_same_id_is_the_same_command(api: Any, box: str) -> None:
    first = await api.run(box, "echo run >>/log; wc -l </log", id="once")
    again = await api.run(box, "echo run >>/log; wc -l </log", id="once")
    assert first["stdout"]["data"] == again["stdout"]["data"]
    assert (await api.run(box, "cat /log"))["stdout"]["data"] == "run\n"


async def test_detached_then_waited_for(api: Any, box: str) -> None:
    status, view, _ = await api.ask(
        "POST",
        url(box),
        json={"shell": "read line; echo got $line", "id": "d", "wait": False, "interactive": True},
    )
    assert (status, view["running"]) == (202, True)
    status, view, _ = await api.ask("GET", url(box, "/d?wait_s=0.01"))
    assert (status, view["running"]) == (202, True)
    await api.ask("PUT", url(box, "/d/stdin?close=1"), data=b"hello\n", status=204)
    status, view, _ = await api.ask("GET", url(box, "/d?wait_s=60"))
    assert (status, view["stdout"]["data"]) == (200, "got hello\n")
    _, page, _ = await api.ask("GET", url(box), status=200)
    assert [item["id"] for item in page["items"]] == ["d"]


async def test_input_in_parts_stays_in_order(api: Any, box: str) -> None:
    await api.ask(
        "POST", url(box), json={"argv": ["sha256sum"], "id": "sum", "wait": False, "interactive": True}
    )
    part = bytes(range(256)) * 2048
    for _ in range(4):
        await api.ask("PUT", url(box, "/sum/stdin"), data=part, status=204)
    await api.ask("PUT", url(box, "/sum/stdin?close=1"), status=204)
    _, view, _ = await api.ask("GET", url(box, "/sum?wait_s=60"), status=200)
    assert view["stdout"]["data"].split()[0] == hashlib.sha256(part * 4).hexdigest()


@pytest.mark.fault("http-client-leaves")
async def test_a_client_that_leaves_neither_ends_nor_repeats_its_command(api: Any, box: str) -> None:
    line = "echo began >>/log; read go </fifo; echo done >>/log"
    await api.run(box, "mkfifo /fifo")
    with pytest.raises(asyncio.TimeoutError):
        await api.ask(
            "POST", url(box), json={"shell": line, "id": "left"}, timeout=aiohttp.ClientTimeout(total=0.5)
        )
    _, view, _ = await api.ask("GET", url(box, "/left"))
    assert view["running"]
    joining = asyncio.create_task(api.ask("POST", url(box), json={"shell": line, "id": "left"}))
    await api.run(box, "echo go >/fifo")
    assert (await joining)[1]["exit_code"] == 0
    assert (await api.run(box, "cat /log"))["stdout"]["data"] == "began\ndone\n"


async def test_output_from_an_offset_raw_and_as_events(api: Any, box: str) -> None:
    await api.run(box, "printf 0123456789", id="digits")
    _, data, response = await api.ask("GET", url(box, "/digits/output?offset=4"), status=200)
    assert (data, response.headers["X-Output-Offset"]) == (b"456789", "4")
    headers = {"Accept": "text/event-stream"}
    _, text, _ = await api.ask("GET", url(box, "/digits/output"), headers=headers, status=200)
    events = _events(text)
    assert (events[0]["event"], events[-1]["event"]) == ("output", "end")
    assert base64.b64decode(json.loads(events[0]["data"])["data"]) == b"0123456789"
    assert json.loads(events[-1]["data"])["exit_code"] == 0
    headers["Last-Event-ID"] = "7"
    _, text, _ = await api.ask("GET", url(box, "/digits/output"), headers=headers, status=200)
    assert base64.b64decode(json.loads(_events(text)[0]["data"])["data"]) == b"789"


def _events(text: bytes) -> list[dict[str, str]]:
    blocks = [block for block in text.decode().split("\n\n") if block and not block.startswith(":")]
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]  # type: ignore[misc]


async def test_output_of_what_runs_is_what_there_is_so_far(api: Any, box: str) -> None:
    await api.ask("POST", url(box), json={"shell": "printf abc; sleep 600", "id": "s", "wait": False})
    async with api.http.get(api.base + url(box, "/s/output")) as response:
        assert await response.content.readexactly(3) == b"abc"
    _, data, _ = await api.ask("GET", url(box, "/s/output?follow=0"), status=200)
    assert data == b"abc"
    _, view, _ = await api.ask("POST", url(box, "/s/cancel"), status=200)
    assert view["reason"] == "cancelled"


async def test_a_signal_and_its_end(api: Any, box: str) -> None:
    await api.ask("POST", url(box), json={"argv": ["sleep", "600"], "id": "s", "wait": False})
    await api.ask("POST", url(box, "/s/signal"), json={"signal": 15}, status=204)
    _, view, _ = await api.ask("GET", url(box, "/s?wait_s=60"), status=200)
    assert (view["reason"], view["signal"]) == ("signal", 15)


async def test_a_large_output_is_cut_in_the_answer_and_whole_in_the_stream(api: Any, box: str) -> None:
    line = "head -c 3000000 /dev/zero | tr '\\0' x"
    done = await api.run(box, line, id="big", output_cap_bytes=8 << 20)
    assert (done["stdout"]["truncated"], done["stdout"]["total_bytes"]) == (True, 3_000_000)
    _, data, _ = await api.ask("GET", url(box, "/big/output"), status=200)
    assert data == b"x" * 3_000_000


async def test_many_commands_at_once(api: Any, box: str) -> None:
    found = await asyncio.gather(*(api.run(box, f"echo {number}") for number in range(100)))
    assert [one["stdout"]["data"] for one in found] == [f"{number}\n" for number in range(100)]


async def test_what_is_not_there_is_said(api: Any, box: str) -> None:
    for method, rest in (("GET", "/no"), ("GET", "/no/output"), ("POST", "/no/cancel")):
        _, body, _ = await api.ask(method, url(box, rest), status=404)
        assert body["error"]["code"] == "user/not_found"
