"""What ``diff`` tells of a sandbox's file system, and that a workload cannot lead it astray."""

# ruff: noqa: ASYNC110  # an end has no event here

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput, NotFound, SandboxLost
from cloche.sandbox.driver import SandboxState
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.native import store_diff, store_walk
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec

GROUPS = "root:x:0:\ntty:x:5:\nusers:x:1000:\nnogroup:x:65534:\n"


async def _diff(driver: LocalDriver, image: PreparedImage, line: str) -> list[tuple[str, str, str, int]]:
    async with await driver.create(SandboxSpec(), image) as sandbox:
        done = await sandbox.run(Command(shell=line))
        assert done.ok, done.stderr.text
        changes = await driver.diff(sandbox.id)
    return [(item.kind.value, item.type, item.path, item.size_bytes) for item in changes]


async def test_a_sandbox_that_did_nothing_differs_in_nothing(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    assert await _diff(driver, busybox_image, "true") == []


async def test_added_modified_deleted(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    found = await _diff(
        driver,
        busybox_image,
        "mkdir /home/d; echo hello >/home/d/f; ln -s f /home/d/l; mkfifo /home/p; echo x >>/etc/group;"
        "rm /bin/vi; rm -r /opt; chmod 700 /root; echo nope >/etc/hosts",
    )
    group = len(GROUPS) + 2
    assert found == [
        ("deleted", "link", "/bin/vi", 0),
        ("modified", "file", "/etc/group", group),
        ("added", "dir", "/home/d", 0),
        ("added", "file", "/home/d/f", 6),
        ("added", "link", "/home/d/l", 0),
        ("added", "other", "/home/p", 0),
        ("deleted", "dir", "/opt", 0),
        ("modified", "dir", "/root", 0),
    ]


async def test_what_was_written_again_as_it_was_is_no_difference(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    same = "cp -a /etc/passwd /tmp/p; cat /tmp/p >/etc/passwd; rm /tmp/p; touch /etc/group; chmod 755 /home"
    assert await _diff(driver, busybox_image, same) == []


async def test_a_folder_made_anew_hides_what_the_image_had_in_it(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    found = await _diff(driver, busybox_image, "rm -r /usr; mkdir -p /usr/bin; echo new >/usr/bin/x")
    assert found == [("added", "file", "/usr/bin/x", 4), ("deleted", "dir", "/usr/local", 0)]


async def test_a_renamed_folder_is_a_deleted_and_an_added_one(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    found = await _diff(driver, busybox_image, "mv /usr /moved")
    assert [(kind, path) for kind, _, path, _ in found] == [
        ("added", "/moved"),
        ("added", "/moved/bin"),
        ("added", "/moved/local"),
        ("added", "/moved/local/bin"),
        ("deleted", "/usr"),
    ]


async def test_a_folder_in_place_of_a_file(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    found = await _diff(driver, busybox_image, "rm /bin/vi /home -r; mkdir /bin/vi; ln -s /etc /home")
    assert found == [("modified", "dir", "/bin/vi", 0), ("modified", "link", "/home", 0)]


@pytest.mark.fault("diff-follows-a-link")
async def test_links_are_told_and_never_followed(
    driver: LocalDriver, busybox_image: PreparedImage, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("x")
    found = await _diff(driver, busybox_image, f"rm -r /home; ln -s {tmp_path} /home; ln -s / /opt/root")
    assert [path for *_, path, _ in found] == ["/home", "/opt/root"]


@pytest.mark.fault("diff-while-it-changes")
async def test_a_tree_that_changes_meanwhile_does_no_harm(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    churn = (
        "mkdir /w; cd /w; while :; do mkdir a; echo 1 >a/f; rm -r a; ln -s /etc a; rm a; mkfifo a; rm a; done"
    )
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        process = await sandbox.start(Command(shell=churn))
        for _ in range(100):
            found = {change.path for change in await driver.diff(sandbox.id)}
            assert found <= {"/w", "/w/a", "/w/a/f"}
        await process.cancel()


@pytest.mark.fault("diff-without-bound")
async def test_a_tree_that_is_too_deep_or_too_large_is_refused(
    driver: LocalDriver, busybox_image: PreparedImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = "cd /home; i=0; while [ $i -lt 400 ]; do mkdir d; cd d; i=$((i+1)); done; touch end"
    with pytest.raises(InvalidInput, match="folders deep"):
        await _diff(driver, busybox_image, deep)
    monkeypatch.setattr(store_diff, "Budget", lambda: store_walk.Budget(10))
    with pytest.raises(InvalidInput, match="more than 10 entries"):
        await _diff(driver, busybox_image, "cd /home; for i in 1 2 3 4 5 6 7 8 9 10 11; do touch $i; done")


async def test_of_nothing_and_of_one_that_ended(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    with pytest.raises(NotFound):
        await driver.diff("nothing")
    sandbox = await driver.create(SandboxSpec(), busybox_image)
    pid = next(info.pid for info in await driver.list() if info.id == sandbox.id)
    assert pid is not None
    os.kill(pid, 9)
    await sandbox.run(Command(argv=("true",)))
    while (await driver.list())[0].state is not SandboxState.ENDED:
        await asyncio.sleep(0.01)  # its descriptors go before its process does
    with pytest.raises(SandboxLost):
        await driver.diff(sandbox.id)
    await sandbox.delete()


async def test_a_name_that_is_not_utf8(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    found = await _diff(driver, busybox_image, "touch $(printf '/home/\\377')")
    assert found == [("added", "file", "/home/\\xff", 0)]
