"""Glob, tar and patch over a real sandbox: what they find, keep and refuse."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cloche.core.errors import InfraError, InvalidInput
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.guest.glob import glob
from cloche.sandbox.guest.patch import apply_patch
from cloche.sandbox.guest.tar import TarLimits, tar_in, tar_out
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec


@pytest_asyncio.fixture
async def sandbox(driver: LocalDriver, busybox_image: PreparedImage) -> AsyncIterator[Sandbox]:
    async with await driver.create(SandboxSpec(), busybox_image) as made:
        yield made


async def _sh(sandbox: Sandbox, line: str) -> str:
    done = await sandbox.run(Command(shell=line))
    assert done.ok, done.stderr.text
    return done.stdout.text


async def test_glob(sandbox: Sandbox) -> None:
    await _sh(sandbox, "mkdir -p /w/a/b /w/.c; touch /w/1.py /w/a/2.py /w/a/b/3.py /w/a/x.txt /w/.c/4.py")
    await _sh(sandbox, "ln -s a /w/link; ln -s / /w/a/round")

    async def paths(pattern: str) -> list[str]:
        return [info.path for info in await glob(sandbox, pattern)]

    assert await paths("/w/*.py") == ["/w/1.py"]
    assert await paths("/w/**/*.py") == ["/w/.c/4.py", "/w/1.py", "/w/a/2.py", "/w/a/b/3.py"]
    assert await paths("/w/**/b/**") == ["/w/a/b/3.py"]
    assert await paths("/w/link/?.py") == ["/w/link/2.py"]
    assert await paths("/w/[al]*") == ["/w/a", "/w/link"]
    assert await paths("/w/a/b/3.py") == ["/w/a/b/3.py"]
    assert await paths("/nothing/*/here") == []


@pytest.mark.fault("glob-without-bound")
async def test_a_glob_that_matches_too_much_is_refused(sandbox: Sandbox) -> None:
    await _sh(sandbox, "mkdir /w; cd /w; for i in 1 2 3 4 5 6; do touch $i; done")
    with pytest.raises(InvalidInput, match="more than 5"):
        await glob(sandbox, "/w/*", limit=5)
    for pattern in ("w/*", "/w/../*", "/w/a**"):
        with pytest.raises(InvalidInput):
            await glob(sandbox, pattern)


async def _pieces(data: bytes, size: int = 700) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def _packed(sandbox: Sandbox, path: str) -> bytes:
    return b"".join([piece async for piece in tar_out(sandbox, path)])


async def test_a_tree_goes_out_and_in_and_is_the_same(sandbox: Sandbox) -> None:
    await _sh(
        sandbox,
        "mkdir -p /w/d/e; echo hi >/w/d/f; chmod 4755 /w/d/f; chown 1000:1000 /w/d/f; ln -s /etc/passwd /w/l;"
        "head -c 3000000 /dev/urandom >/w/big; mkfifo /w/pipe; chmod 700 /w/d/e; touch /w/é",
    )
    first = await _packed(sandbox, "/w")
    assert first == await _packed(sandbox, "/w")
    assert await tar_in(sandbox, "/v", _pieces(first, 100_000)) == 7
    look = (
        "cd {0}; find . ! -name pipe | sort | xargs stat -c '%n %F %a %u:%g';"
        "cat big d/f | sha256sum; readlink l"
    )
    assert await _sh(sandbox, look.format("/v")) == await _sh(sandbox, look.format("/w"))
    with tarfile.open(fileobj=io.BytesIO(first)) as opened:
        names = opened.getnames()
    assert names == [".", "big", "d", "d/e", "d/f", "l", "é"]


def _archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", **more: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    for key, value in more.items():
        setattr(info, key, value)
    return info


HOSTILE = {
    "absolute": [(_member("/etc/x"), b"x")],
    "dots": [(_member("a/../../etc/x"), b"x")],
    "through a link": [(_member("l", tarfile.SYMTYPE, "/etc"), b""), (_member("l/x"), b"x")],
    "folder over a link": [
        (_member("l", tarfile.SYMTYPE, "/etc"), b""),
        (_member("l", tarfile.DIRTYPE), b""),
    ],
    "hard link out": [(_member("h", tarfile.LNKTYPE, "../etc/passwd"), b"")],
    "hard link to what is there": [(_member("h", tarfile.LNKTYPE, "there"), b"")],
    "device": [(_member("d", tarfile.CHRTYPE), b"")],
    "fifo": [(_member("p", tarfile.FIFOTYPE), b"")],
    "owner": [(_member("o", uid=70_000), b"x")],
}


@pytest.mark.fault("tar-zip-slip")
@pytest.mark.parametrize("case", HOSTILE)
async def test_a_hostile_tar_is_refused_and_writes_nothing_elsewhere(sandbox: Sandbox, case: str) -> None:
    await _sh(sandbox, "mkdir /w; echo secret >/w/there")
    before = await _sh(sandbox, "ls -lR /etc /w/there | sha256sum")
    with pytest.raises(InvalidInput):
        await tar_in(sandbox, "/w", _pieces(_archive(*HOSTILE[case])))
    assert await _sh(sandbox, "ls -lR /etc /w/there | sha256sum") == before


async def test_a_link_that_was_there_is_not_followed(sandbox: Sandbox) -> None:
    await _sh(sandbox, "mkdir /w /o; ln -s /o /w/d")
    with pytest.raises(InvalidInput, match="goes through the link 'd'"):
        await tar_in(sandbox, "/w", _pieces(_archive((_member("d/x"), b"x"))))
    assert await _sh(sandbox, "ls /o") == ""


@pytest.mark.fault("tar-bomb")
async def test_a_tar_that_holds_too_much_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidInput, match="too much"):
        await tar_in(
            sandbox, "/w", _pieces(_archive((_member("x"), bytes(2000)))), limits=TarLimits(total_bytes=1000)
        )
    many = _archive(*((_member(str(at)), b"") for at in range(5)))
    with pytest.raises(InvalidInput, match="too much"):
        await tar_in(sandbox, "/w", _pieces(many), limits=TarLimits(entries=4))
    await _sh(sandbox, "mkdir /t; truncate -s 1024G /t/sparse")
    with pytest.raises(InvalidInput, match="holds more than"):
        await _packed(sandbox, "/t")


@pytest.mark.fault("tar-torn")
async def test_a_torn_tar_and_a_sender_that_fails(sandbox: Sandbox) -> None:
    whole = _archive((_member("x"), bytes(5000)), (_member("y"), bytes(5000)))

    async def fails() -> AsyncIterator[bytes]:
        yield whole[:2000]
        raise InfraError("the sender is gone")

    with pytest.raises(InvalidInput):
        await tar_in(sandbox, "/w", _pieces(whole[:7000]))
    with pytest.raises(InfraError, match="the sender is gone"):
        await tar_in(sandbox, "/v", fails())
    assert not await sandbox.exists("/v/x")


async def test_a_hard_link_within_the_archive_becomes_a_copy(sandbox: Sandbox) -> None:
    data = _archive((_member("a", mode=0o600), b"text"), (_member("b", tarfile.LNKTYPE, "a"), b""))
    await tar_in(sandbox, "/w", _pieces(data), user="1000:1000")
    assert await _sh(sandbox, "cat /w/b; stat -c ' %a %u' /w/b") == "text 600 1000\n"


PATCH = b"""\
--- a/one
+++ b/one
@@ -1,3 +1,3 @@
 1
-2
+two
 3
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-bye
--- /dev/null
+++ b/new/file
@@ -0,0 +1 @@
+made
\\ No newline at end of file
diff --git a/sub/from b/sub/to
rename from sub/from
rename to sub/to
"""


async def test_a_patch_changes_makes_moves_and_deletes(sandbox: Sandbox) -> None:
    await _sh(
        sandbox,
        "mkdir -p /w/sub; cd /w; printf '1\\n2\\n3\\n' >one; chmod 750 one; chown 1000:1000 one;"
        "echo bye >gone; echo same >sub/from",
    )
    done = await apply_patch(sandbox, "/w", PATCH)
    assert [(item.path, item.kind.value) for item in done] == [
        ("one", "modified"),
        ("gone", "deleted"),
        ("new/file", "added"),
        ("sub/to", "renamed"),
    ]
    assert await _sh(sandbox, "cd /w; cat one; stat -c '%a %u' one") == "1\ntwo\n3\n750 1000\n"
    assert (
        await _sh(sandbox, "cd /w; find . -type f | sort; cat new/file")
        == "./new/file\n./one\n./sub/to\nmade"
    )


@pytest.mark.fault("patch-half-applied")
async def test_a_patch_that_fails_has_changed_nothing(sandbox: Sandbox) -> None:
    await _sh(sandbox, "mkdir /w; cd /w; printf '1\\n2\\n3\\n' >one; echo other >gone")
    before = await _sh(sandbox, "cd /w; find . | xargs ls -ld; cat *")
    with pytest.raises(InvalidInput, match=r"'gone'.*does not fit"):
        await apply_patch(sandbox, "/w", PATCH)
    # and where the writing itself fails: a folder cannot be made below a file that the patch makes first
    late = b"--- /dev/null\n+++ b/p\n@@ -0,0 +1 @@\n+x\n--- /dev/null\n+++ b/p/q\n@@ -0,0 +1 @@\n+y\n"
    with pytest.raises(InvalidInput):
        await apply_patch(sandbox, "/w", late)
    assert await _sh(sandbox, "cd /w; find . | xargs ls -ld; cat *") == before


@pytest.mark.fault("patch-path-escape")
@pytest.mark.parametrize("path", ["../out", "/etc/x", "link/x", "link", "./one"])
async def test_a_patch_stays_in_its_folder(sandbox: Sandbox, path: str) -> None:
    await _sh(sandbox, "mkdir /w; ln -s /etc /w/link; echo a >/w/one; cp -r /etc /keep")
    diff = f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n".encode()
    with pytest.raises(InvalidInput):
        await apply_patch(sandbox, "/w", diff)
    assert await _sh(sandbox, "diff -r /etc /keep; cat /w/one") == "a\n"
