"""Files through the service: raw bytes both ways, ranges, checksums, trees, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

ALL_BYTES = bytes(range(256)) * 4096


def url(box: str, rest: str = "") -> str:
    return f"/v1/sandboxes/{box}/files{rest}"


@pytest.mark.parametrize("size", [0, 1, 18_000, 18_001, 1 << 20, (5 << 20) + 3])
async def test_bytes_come_back_as_they_went(api: Any, box: str, size: int) -> None:
    data = (ALL_BYTES * (size // len(ALL_BYTES) + 1))[:size]
    _, view, _ = await api.ask("PUT", url(box, "?path=/d/file&mode=640"), data=io.BytesIO(data), status=200)
    assert (view["size_bytes"], view["mode"], view["kind"]) == (size, "640", "file")
    _, got, response = await api.ask("GET", url(box, "?path=/d/file&sha256=1"), status=200)
    assert got == data
    assert response.headers["X-Checksum-SHA256"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("range_", "begin", "end"),
    [("bytes=0-0", 0, 1), ("bytes=10-19", 10, 20), ("bytes=90-", 90, 100), ("bytes=-7", 93, 100)],
)
async def test_a_range(api: Any, box: str, range_: str, begin: int, end: int) -> None:
    data = bytes(range(100))
    await api.ask("PUT", url(box, "?path=/f"), data=data, status=200)
    _, got, response = await api.ask("GET", url(box, "?path=/f"), headers={"Range": range_}, status=206)
    assert got == data[begin:end]
    assert response.headers["Content-Range"] == f"bytes {begin}-{end - 1}/100"


async def test_a_range_that_is_not_there(api: Any, box: str) -> None:
    await api.ask("PUT", url(box, "?path=/f"), data=b"abc", status=200)
    _, body, _ = await api.ask("GET", url(box, "?path=/f"), headers={"Range": "bytes=3-"}, status=416)
    assert body["error"]["code"] == "user/range"


async def test_head_tells_without_the_bytes(api: Any, box: str) -> None:
    await api.ask("PUT", url(box, "?path=/f"), data=b"abc", status=200)
    _, data, response = await api.ask("HEAD", url(box, "?path=/f"), status=200)
    assert (data, response.headers["Content-Length"], response.headers["X-File-Mode"]) == (b"", "3", "644")
    assert response.headers["ETag"].startswith('W/"')


async def test_a_file_of_proc_is_read_although_it_says_that_it_is_empty(api: Any, box: str) -> None:
    _, data, _ = await api.ask("GET", url(box, "?path=/proc/self/status"), status=200)
    assert data.startswith(b"Name:")


@pytest.mark.fault("upload-checksum")
async def test_a_body_that_is_not_what_its_checksum_says_changes_nothing(api: Any, box: str) -> None:
    await api.ask("PUT", url(box, "?path=/f"), data=b"before", status=200)
    headers = {"X-Checksum-SHA256": hashlib.sha256(b"other").hexdigest()}
    _, body, _ = await api.ask("PUT", url(box, "?path=/f"), data=b"after", headers=headers, status=422)
    assert body["error"]["where"] == "X-Checksum-SHA256"
    assert (await api.ask("GET", url(box, "?path=/f")))[1] == b"before"
    headers = {"X-Checksum-SHA256": hashlib.sha256(b"after").hexdigest().upper()}
    await api.ask("PUT", url(box, "?path=/f"), data=b"after", headers=headers, status=200)


@pytest.mark.fault("upload-cut")
async def test_an_upload_that_is_cut_leaves_no_part_of_it(api: Any, box: str) -> None:
    await api.ask("PUT", url(box, "?path=/f"), data=b"before", status=200)
    half = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield ALL_BYTES
        half.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(api.ask("PUT", url(box, "?path=/f"), data=body()))
    await half.wait()
    task.cancel()
    with pytest.raises((asyncio.CancelledError, aiohttp.ClientError)):
        await task
    assert (await api.ask("GET", url(box, "?path=/f")))[1] == b"before"
    _, page, _ = await api.ask("GET", url(box, "/list?path=/"), status=200)
    assert not [item["path"] for item in page["items"] if item["path"].startswith("/.")]


async def test_names_that_are_not_utf_8(api: Any, box: str) -> None:
    await api.ask("PUT", url(box, "?path=/d/%FF%FEname"), data=b"x", status=200)
    _, page, _ = await api.ask("GET", url(box, "/list?path=/d"), status=200)
    assert [item["path"] for item in page["items"]] == ["/d/%FF%FEname"]
    assert (await api.ask("GET", url(box, "?path=/d/%FF%FEname"), status=200))[1] == b"x"


async def test_folders_links_and_what_else_paths_do(api: Any, box: str) -> None:
    await api.ask("POST", url(box, "/mkdir?path=/a/b&mode=700"), status=200)
    await api.ask("PUT", url(box, "?path=/a/b/one.txt"), data=b"1", status=200)
    await api.ask(
        "POST", url(box, "/move"), json={"source": "/a/b/one.txt", "target": "/a/two.txt"}, status=204
    )
    await api.run(box, "ln -s two.txt /a/link")
    _, view, _ = await api.ask("GET", url(box, "/stat?path=/a/link&follow=0"), status=200)
    assert (view["kind"], view["target"]) == ("link", "two.txt")
    _, view, _ = await api.ask("GET", url(box, "/stat?path=/a/link&sha256=1"), status=200)
    assert view["sha256"] == hashlib.sha256(b"1").hexdigest()
    _, page, _ = await api.ask("GET", url(box, "/glob?path=/a&pattern=*.txt"), status=200)
    assert [item["path"] for item in page["items"]] == ["/a/two.txt"]
    _, page, _ = await api.ask("GET", url(box, "/list?path=/a&limit=1"), status=200)
    assert ([item["path"] for item in page["items"]], page["next"]) == (["/a/b"], "/a/b")
    await api.ask("DELETE", url(box, "?path=/a"), status=422)
    await api.ask("DELETE", url(box, "?path=/a&recursive=1"), status=204)
    await api.ask("GET", url(box, "/stat?path=/a"), status=404)


async def test_a_tree_goes_out_and_in(api: Any, box: str) -> None:
    await api.run(box, "mkdir -p /t/sub; echo one >/t/one; echo two >/t/sub/two; chmod 711 /t/sub")
    _, data, _ = await api.ask("GET", f"/v1/sandboxes/{box}/tree?path=/t", status=200)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert sorted(tar.getnames()) == [".", "one", "sub", "sub/two"]
    await api.ask("PUT", f"/v1/sandboxes/{box}/tree?path=/u", data=data, status=204)
    done = await api.run(box, "cat /u/one /u/sub/two; stat -c %a /u/sub")
    assert done["stdout"]["data"] == "one\ntwo\n711\n"


async def test_a_patch_is_applied_or_nothing_is(api: Any, box: str) -> None:
    await api.ask("PUT", url(box, "?path=/w/f"), data=b"a\nb\n", status=200)
    patch = b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    _, view, _ = await api.ask("POST", f"/v1/sandboxes/{box}/patch?path=/w", data=patch, status=200)
    assert (view["items"][0]["path"], view["items"][0]["kind"]) == ("f", "modified")
    assert (await api.ask("GET", url(box, "?path=/w/f")))[1] == b"a\nc\n"
    await api.ask("POST", f"/v1/sandboxes/{box}/patch?path=/w", data=patch, status=422)


async def test_what_is_no_file_is_said(api: Any, box: str) -> None:
    _, body, _ = await api.ask("GET", url(box, "?path=/bin"), status=422)
    assert body["error"]["where"] == "path"
    await api.ask("GET", url(box, "?path=/nothing"), status=404)
    _, body, _ = await api.ask("GET", url(box), status=422)
    assert body["error"]["where"] == "path"
    _, body, _ = await api.ask("GET", url(box, "?path=/f&colour=red"), status=422)
    assert body["error"]["where"] == "colour"
