"""What goes wrong while images are made: each says what and why, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloche.core.errors import ClocheError, EnvironmentUnusable, ImageError, InvalidInput
from cloche.sandbox.images import ImageStore, bootstrap, build, collect, pull, tool_status
from cloche.sandbox.images import debian as debian_module
from cloche.sandbox.images import tools as tools_module
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import ImageConfig, PreparedImage

BUILT_STEP = "RUN echo starting; sleep 1000 & setsid sleep 1000 & sleep 1000"


def context(tmp_path: Path, dockerfile: str) -> Path:
    folder = tmp_path / "context"
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    return folder


def processes_of(store: ImageStore) -> list[str]:
    """Return the command lines that have to do with this store, and sleeps whose root lies in it."""
    found = []
    marker = str(store.settings.state_dir)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text().replace("\0", " ")
            root = str((folder / "root").readlink())
        except OSError:
            continue
        if root.startswith(marker) or (marker in command and folder.name != str(os.getpid())):
            found.append(f"{folder.name} {command}")
    return found


def log_of(error: ClocheError) -> str:
    return Path(str(error.where)).read_text()


def containers(store: ImageStore) -> list[object]:
    path = store.settings.state_dir / "buildah" / "overlay-containers" / "containers.json"
    rows: list[object] = json.loads(path.read_text()) if path.exists() else []
    return rows


def nothing_is_left(store: ImageStore) -> None:
    assert processes_of(store) == []
    assert containers(store) == []
    assert str(store.settings.state_dir) not in Path("/proc/self/mounts").read_text()
    assert list((store.settings.state_dir / "staging").iterdir()) == []


async def step_is_running(store: ImageStore, sleeps: int = 3) -> None:
    async with asyncio.timeout(60):
        while sum(" sleep 1000" in line for line in processes_of(store)) < sleeps:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)


@pytest.mark.fault("dockerfile-fails")
@pytest.mark.usefixtures("base")
async def test_a_step_that_fails_shows_the_logs_end_and_keeps_it_all(
    store: ImageStore, tmp_path: Path
) -> None:
    folder = context(tmp_path, "FROM base:1\nRUN echo first words; echo the reason >&2; exit 7\n")
    with pytest.raises(ImageError) as caught:
        await build(store, folder)
    assert "failed" in caught.value.message.splitlines()[0]
    assert "the reason" in caught.value.message
    assert "exit status 7" in caught.value.message
    assert "first words" in log_of(caught.value)
    assert [row.name for row in store.list()] == ["base:1"]
    nothing_is_left(store)


@pytest.mark.usefixtures("base")
async def test_a_dockerfile_that_is_none_fails_with_buildahs_reason(
    store: ImageStore, tmp_path: Path
) -> None:
    with pytest.raises(ImageError, match=r"(?i)unknown instruction.*FRUN"):
        await build(store, context(tmp_path, "FROM base:1\nFRUN x\n"))
    nothing_is_left(store)


@pytest.mark.usefixtures("base")
async def test_callers_that_wait_for_a_build_share_its_failure_and_later_ones_try_again(
    store: ImageStore, tmp_path: Path
) -> None:
    folder = context(tmp_path, "FROM base:1\nRUN exit 7\n")
    results = await asyncio.gather(*(build(store, folder) for _ in range(4)), return_exceptions=True)
    assert {type(result) for result in results} == {ImageError}
    assert len({result.where for result in results if isinstance(result, ClocheError)}) == 1
    with pytest.raises(ImageError) as caught:
        await build(store, folder)
    assert caught.value.where not in {result.where for result in results if isinstance(result, ClocheError)}


@pytest.mark.fault("base-image-missing")
@pytest.mark.usefixtures("base")
@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("debian:12", "the base image debian:12 is not here", "cloche image bootstrap debian:12"),
        ("bose:1", "the base image bose:1 is not here", "there is base:1"),
        ("base:1@sha256:" + "0" * 64, "is not here", "there is base:1"),
    ],
)
async def test_a_base_that_is_not_here_is_named_with_its_line(
    store: ImageStore, tmp_path: Path, name: str, message: str, hint: str
) -> None:
    folder = context(tmp_path, f"# one\nFROM base:1 AS x\nFROM {name}\n")
    with pytest.raises(ImageError, match=message) as caught:
        await build(store, folder)
    assert hint in str(caught.value.hint)
    assert caught.value.where == f"{folder / 'Dockerfile'}:3"


async def test_a_dockerfile_that_is_not_there_is_said(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read the Dockerfile") as caught:
        await build(store, tmp_path)
    assert caught.value.where == str(tmp_path / "Dockerfile")


@pytest.mark.fault("build-timeout")
@pytest.mark.usefixtures("base")
async def test_a_build_that_takes_too_long_is_ended_with_its_whole_tree(
    store: ImageStore, tmp_path: Path
) -> None:
    with pytest.raises(ImageError, match="took longer than 2 s") as caught:
        await build(store, context(tmp_path, f"FROM base:1\n{BUILT_STEP}\n"), timeout_s=2)
    assert "starting" in caught.value.message
    nothing_is_left(store)


@pytest.mark.fault("build-cancelled")
@pytest.mark.usefixtures("base")
async def test_a_cancelled_build_leaves_no_process_mount_or_container(
    store: ImageStore, tmp_path: Path
) -> None:
    task = asyncio.ensure_future(build(store, context(tmp_path, f"FROM base:1\n{BUILT_STEP}\n")))
    await step_is_running(store)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # whoever is impatient presses Ctrl-C twice
    with pytest.raises(asyncio.CancelledError):
        await task
    nothing_is_left(store)


async def test_another_caller_takes_over_a_build_whose_caller_left(
    store: ImageStore, base: PreparedImage, tmp_path: Path
) -> None:
    folder = context(tmp_path, "FROM base:1\nRUN [ -e /go ] || sleep 1000\n")
    first = asyncio.ensure_future(build(store, folder, name="first"))
    await step_is_running(store, sleeps=1)
    second = asyncio.ensure_future(build(store, folder, name="second"))
    (base.layers[0] / "go").touch()  # seen by steps that start from now on
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    image = await second
    assert image.name == "second:latest"
    nothing_is_left(store)


def builder_process(store: ImageStore, folder: Path) -> subprocess.Popen[bytes]:
    program = (
        "import asyncio, sys; from pathlib import Path; from cloche.sandbox.images import ImageStore, build;"
        "from cloche.sandbox.settings import Settings;"
        "s = ImageStore(Settings(state_dir=Path(sys.argv[1]), run_dir=Path(sys.argv[2])));"
        "asyncio.run(build(s, Path(sys.argv[3])))"
    )
    arguments = [str(store.settings.state_dir), str(store.settings.run_dir), str(folder)]
    return subprocess.Popen([sys.executable, "-c", program, *arguments])


@pytest.mark.fault("builder-killed")
@pytest.mark.usefixtures("base")
async def test_a_killed_builders_tree_dies_with_it_and_the_next_use_cleans_up(
    store: ImageStore, tmp_path: Path
) -> None:
    folder = context(tmp_path, f"FROM base:1\n{BUILT_STEP}\n")
    with builder_process(store, folder) as builder:
        await step_is_running(store)
        builder.send_signal(signal.SIGKILL)
    async with asyncio.timeout(10):
        while processes_of(store):  # noqa: ASYNC110  # the kernel ends them, in its own time
            await asyncio.sleep(0.02)
    assert len(containers(store)) == 1
    await collect(store)
    store.staging.sweep()
    nothing_is_left(store)


@pytest.mark.usefixtures("base")
async def test_the_next_build_cleans_up_after_a_killed_one(store: ImageStore, tmp_path: Path) -> None:
    await build(store, context(tmp_path, "FROM base:1\nRUN true\n"))
    left = store.settings.state_dir / "staging" / "build-left"
    left.mkdir()
    (left / "file").touch()
    await build(store, context(tmp_path, "FROM base:1\nRUN true # again\n"))
    nothing_is_left(store)


@pytest.mark.usefixtures("base")
async def test_what_a_sandbox_could_not_hold_is_refused(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="device node /disk"):
        await build(store, context(tmp_path, "FROM base:1\nRUN mknod /disk b 8 0\n"))
    with pytest.raises(ImageError, match="/f belongs to 70000:0"):
        await build(store, context(tmp_path, "FROM base:1\nRUN touch /f && chown 70000 /f\n"))
    nothing_is_left(store)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.fault("disk-full-import")
def test_a_full_disk_ends_an_import_and_leaves_nothing(
    small_disk: Path, rootfs: Path, tmp_path: Path
) -> None:
    store = ImageStore(Settings(state_dir=small_disk / "state", run_dir=tmp_path / "run"))
    with pytest.raises(ImageError, match="no space left") as caught:
        store.import_dir(rootfs, "large")
    assert "CLOCHE_STATE_DIR" in str(caught.value.hint)
    assert store.list() == ()
    assert list((small_disk / "state" / "staging").iterdir()) == []
    small = tmp_path / "small"
    small.mkdir()
    (small / "file").write_text("fits")
    assert store.import_dir(small, "small").layers[0].is_dir()


@pytest.fixture
def tight_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 megabytes: enough for the base image and for buildah."""
    place = tmp_path / "tight"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.fault("disk-full-build")
async def test_a_full_disk_ends_a_build_and_says_what_to_do(
    tight_disk: Path, rootfs: Path, tmp_path: Path
) -> None:
    store = ImageStore(Settings(state_dir=tight_disk / "state", run_dir=tmp_path / "run"))
    store.import_dir(rootfs, "base:1", config=ImageConfig(env={"PATH": "/bin"}))
    with pytest.raises(ImageError, match=r"(?i)no space left") as caught:
        await build(store, context(tmp_path, "FROM base:1\nRUN cat /dev/zero > /big\n"))
    assert "CLOCHE_STATE_DIR" in str(caught.value.hint)
    nothing_is_left(store)
    assert (await build(store, context(tmp_path, "FROM base:1\nRUN echo x > /small\n"))).origin == "built"


@pytest.mark.fault("buildah-missing")
async def test_a_missing_buildah_is_said_with_what_to_install(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = context(tmp_path, "FROM scratch\nCOPY Dockerfile /\n")
    monkeypatch.setattr(tools_module, "search_path", lambda: "/nowhere")
    assert tool_status() == {"buildah": None, "mmdebstrap": None}
    with pytest.raises(EnvironmentUnusable, match="needs buildah") as caught:
        await build(store, folder)
    assert caught.value.hint == "apt-get install buildah"
    await collect(store)


@pytest.mark.fault("mmdebstrap-missing")
async def test_a_missing_mmdebstrap_is_said_with_what_to_install(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools_module, "search_path", lambda: "/nowhere")
    with pytest.raises(EnvironmentUnusable, match="needs mmdebstrap") as caught:
        await bootstrap(store, "debian:12")
    assert caught.value.hint == "apt-get install mmdebstrap"


@pytest.mark.fault("images-need-root")
@pytest.mark.parametrize("make", ["build", "bootstrap", "pull"])
async def test_without_root_it_is_said(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: str
) -> None:
    folder = context(tmp_path, "FROM scratch\nCOPY Dockerfile /\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    makers = {
        "build": lambda: build(store, folder),
        "bootstrap": lambda: bootstrap(store, "debian:12"),
        "pull": lambda: pull(store, "host.example/tool:1"),
    }
    with pytest.raises(EnvironmentUnusable, match="needs root"):
        await makers[make]()


@pytest.mark.parametrize(
    ("release", "packages", "message"),
    [
        ("ubuntu:22.04", [], "cannot be bootstrapped"),
        ("debian:9", [], "cannot be bootstrapped"),
        ("debian:12", ["jq", "--include=x"], "'--include=x' is not the name"),
        ("debian:12", ["a/b"], "'a/b' is not the name"),
    ],
)
async def test_what_cannot_be_bootstrapped_is_refused_before_anything_is_made(
    store: ImageStore, release: str, packages: list[str], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        await bootstrap(store, release, packages)
    assert not store.settings.state_dir.exists()


@pytest.fixture
def fake_mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """A program in mmdebstrap's place that prints its version, and else runs what it is given."""
    program = tmp_path / "mmdebstrap"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo fake 1 && exit\n. {tmp_path}/body "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(debian_module, "require", lambda *_: str(program))
    monkeypatch.setenv("CLOCHE_CACHE_DIR", str(tmp_path / "cache"))
    return (tmp_path / "body").write_text


@pytest.mark.fault("bootstrap-fails")
async def test_a_bootstrap_that_fails_shows_the_logs_end(
    store: ImageStore, fake_mmdebstrap: Callable[[str], object]
) -> None:
    fake_mmdebstrap("echo E: Unable to locate package nonsense; exit 100\n")
    with pytest.raises(ImageError, match="Unable to locate package nonsense") as caught:
        await bootstrap(store, "debian:12", ["nonsense"])
    assert "Unable" in log_of(caught.value)
    assert store.list() == ()
    nothing_is_left(store)


@pytest.mark.fault("bootstrap-timeout")
async def test_a_bootstrap_that_hangs_is_ended(
    store: ImageStore, fake_mmdebstrap: Callable[[str], object]
) -> None:
    fake_mmdebstrap("sleep 1000 & sleep 1000\n")
    with pytest.raises(ImageError, match=r"took longer than 0\.5 s"):
        await bootstrap(store, "debian:12", timeout_s=0.5)
    nothing_is_left(store)
    assert list(Path("/dev/shm").glob("cloche-bootstrap-*")) == []  # noqa: ASYNC240


@pytest.mark.fault("bootstrap-cache-damaged")
async def test_a_damaged_cache_is_made_again(
    store: ImageStore, fake_mmdebstrap: Callable[[str], object], rootfs: Path, tmp_path: Path
) -> None:
    # the archive is the argument after the suite
    fake_mmdebstrap(f'while [ "$1" != bookworm ]; do shift; done; tar -C {rootfs} -cf "$2" .\n')
    said: list[str] = []
    first = await bootstrap(store, "debian:12", say=said.append)
    cached = next((tmp_path / "cache" / "bootstrap").glob("*.tar"))
    cached.write_bytes(cached.read_bytes()[:5000])
    said.clear()
    assert (await bootstrap(store, "debian:12", say=said.append)).digest == first.digest
    assert any("damaged" in line for line in said)
    said.clear()
    fake_mmdebstrap("exit 1\n")
    assert (await bootstrap(store, "debian:12", say=said.append)).digest == first.digest
    assert any("made before" in line for line in said)


async def test_without_a_cache_it_works_and_says_so(
    store: ImageStore,
    fake_mmdebstrap: Callable[[str], object],
    rootfs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("CLOCHE_CACHE_DIR", str(blocked))
    fake_mmdebstrap(f'while [ "$1" != bookworm ]; do shift; done; tar -C {rootfs} -cf "$2" .\n')
    said: list[str] = []
    image = await bootstrap(store, "debian:12", say=said.append)
    assert image.origin == "bootstrapped"
    assert any("nothing will be cached" in line for line in said)


async def test_a_cancelled_import_ends_before_the_cancellation_is_passed_on(
    store: ImageStore, fake_mmdebstrap: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mmdebstrap("exit 0\n")
    began, ended = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(*_: object, check: Callable[[], None], **__: object) -> None:
        loop.call_soon_threadsafe(began.set)
        try:
            while not ended.wait(0.01):
                check()
        finally:
            ended.set()

    monkeypatch.setattr(store, "import_tar", slow)
    task = asyncio.ensure_future(bootstrap(store, "debian:12"))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    nothing_is_left(store)
