"""A store of images and a driver of this test run's own, and sandboxes made the way a trial makes them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.images import BuildRequest, ImageStore, bootstrap, prepare
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import ImageConfig, PreparedImage, Resources, SandboxSpec
from cloche.tasks import Task
from cloche.tasks.refuse import resolve_env
from cloche.tasks.verify import prepare_paths

MakeSandbox = Callable[[Task, PreparedImage], AbstractAsyncContextManager[Sandbox]]

_APPLETS = "sh cat chmod chown echo env id ln ls mkdir mv rm setsid sleep stat test touch true wc"


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """An installation of its own, removed when all is done."""
    folder = tmp_path_factory.mktemp("tasks")
    yield Settings(state_dir=folder / "state", run_dir=folder / "run")
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def store(settings: Settings) -> ImageStore:
    """Its images."""
    return ImageStore(settings)


@pytest.fixture
def small_image(store: ImageStore, tmp_path: Path) -> PreparedImage:
    """An image of nothing but busybox, with a user ``ann`` and no bash."""
    busybox = shutil.which("busybox")
    assert busybox, "the package busybox-static is part of the test set-up"
    root = tmp_path / "root"
    for name in ("bin", "etc", "tmp", "home/ann"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy(busybox, root / "bin" / "busybox")
    for applet in _APPLETS.split():
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\nann:x:700:700::/home/ann:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nann:x:700:\n")
    return store.import_dir(root, "small", config=ImageConfig(env={"PATH": "/bin"}, workdir="/tmp"))


@pytest.fixture(scope="session")
def built(store: ImageStore) -> Callable[[Task], AbstractAsyncContextManager[PreparedImage]]:
    """Return a function that makes a task's image, from a base system that is made once."""

    @asynccontextmanager
    async def build(task: Task) -> AsyncIterator[PreparedImage]:
        if store.find("debian:12") is None:
            await bootstrap(store, "debian:12")
        context = task.environment.context
        assert context is not None
        yield await prepare(store, BuildRequest(context=context, timeout_s=task.environment.build_timeout_s))

    return build


@pytest.fixture
def forwarding() -> Iterator[None]:
    """Let this host forward packets, which public networks need, and put it back as it was."""
    switch = Path("/proc/sys/net/ipv4/ip_forward")
    before = switch.read_text()
    switch.write_text("1")
    yield
    switch.write_text(before)


@pytest.fixture
async def driver(settings: Settings) -> AsyncIterator[LocalDriver]:
    """A driver; when the test is over nothing of it is left on the host."""
    driver = LocalDriver(settings)
    yield driver
    assert await driver.list() == []
    assert await driver.leftovers() == []
    await driver.close()


@pytest.fixture
def sandbox_for(driver: LocalDriver) -> MakeSandbox:
    """Return a function that makes the sandbox of a trial, its folders prepared."""

    @asynccontextmanager
    async def make(task: Task, image: PreparedImage) -> AsyncIterator[Sandbox]:
        environment = task.environment
        spec = SandboxSpec(
            resources=Resources(cpus=environment.cpus, memory_bytes=environment.memory_bytes),
            network=environment.policy,
            env=resolve_env(environment.env, {}),
            workdir=environment.workdir,
        )
        async with await driver.create(spec, image) as sandbox:
            await prepare_paths(sandbox, task)
            yield sandbox

    return make
