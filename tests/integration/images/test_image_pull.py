"""Images from Debian's real registry, with authentication: merged, shared, recorded, and used."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.images import BuildRequest, ImageStore, RegistrySettings, build, collect, prepare, pull
from cloche.sandbox.images.registry.manifests import Platform
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec
from cloche.testing.registries import (
    MANIFEST_TYPE,
    DockerRegistry,
    Made,
    auth_file,
    docker_registry,
    entry,
    make_image,
    tar_of,
)

ROOT = Path(__file__).resolve().parents[3]
Merged = Callable[[PreparedImage], AbstractContextManager[Path]]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def access(registry: DockerRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RegistrySettings:
    """Credentials for the registry, as the environment names them."""
    monkeypatch.setenv("CLOCHE_REGISTRY_AUTH", str(auth_file(tmp_path / "auth.json", registry.host)))
    return RegistrySettings.from_environment()


@pytest.fixture
async def driver(store: ImageStore) -> AsyncIterator[LocalDriver]:
    driver = LocalDriver(store.settings)
    yield driver
    for info in await driver.list():
        await driver.delete(info.id)
    assert await driver.leftovers() == []
    await driver.close()


@pytest.fixture
def system_layer(rootfs: Path) -> bytes:
    """The tiny root file system as a layer."""
    return subprocess.run(["tar", "-C", rootfs, "-cf", "-", "."], stdout=subprocess.PIPE, check=True).stdout


HERE = Platform.here().architecture
CONFIG = {
    "Env": ["PATH=/bin", "GREETING=hello there"],
    "User": "joe",
    "WorkingDir": "/srv/site",
    "Entrypoint": ["sh"],
    "Cmd": ["-c", "true"],
}
UPPER = tar_of(
    entry("etc/", mode=0o755),
    entry("etc/.wh.motd"),
    entry("usr/share/doc/.wh..wh..opq"),
    entry("usr/share/doc/new", "new\n"),
    entry("tmp/left", "left\n"),
    entry("one", "one\n", mode=0o4755),
)
TOP = tar_of(entry(".wh.one"), entry("two", "two\n", uid=1000, gid=1000))


def made_of(*layers: bytes, **more: object) -> Made:
    return make_image(*layers, architecture=HERE, **more)


async def said(sandbox: Sandbox, line: str) -> str:
    completed = await sandbox.run(Command(shell=line))
    assert completed.ok, completed.stderr.text + completed.message
    return completed.stdout.text


async def test_a_sandbox_over_a_pulled_image_sees_merged_layers_without_what_was_deleted(
    store: ImageStore,
    registry: DockerRegistry,
    access: RegistrySettings,
    driver: LocalDriver,
    system_layer: bytes,
) -> None:
    name = registry.push("team/tool:1", made_of(system_layer, UPPER, TOP, config=CONFIG))
    image = await pull(store, name, settings=access)
    assert (image.origin, image.name) == ("pulled", name)
    async with await driver.create(SandboxSpec(), image) as sandbox:
        assert "motd" not in await said(sandbox, "ls /etc")
        assert await said(sandbox, "cat /usr/share/doc/*") == "new\n"
        assert await said(sandbox, "ls /one || cat /two") == "two\n"
        assert await said(sandbox, "id -un; pwd; echo $GREETING") == "joe\n/srv/site\nhello there\n"
        assert await said(sandbox, "touch /tmp/mine && cat /tmp/left") == "left\n"  # it is still 1777
        with pytest.raises(InvalidInput, match="used by sandbox"):
            store.remove(name)
    store.remove(name)
    assert list(store.settings.layers_dir.iterdir()) == []


async def test_the_record_says_which_digest_a_tag_was(
    store: ImageStore, registry: DockerRegistry, access: RegistrySettings
) -> None:
    first = made_of(UPPER)
    name = registry.push("team/moving:1", first)
    old = await pull(store, name, settings=access)
    record = store.find(name)
    assert record is not None
    assert record.details == {
        "registry": registry.host,
        "repository": "team/moving",
        "version": "1",
        "digest": first.digest,
        "index_digest": "",
        "platform": f"linux/{HERE}",
    }
    assert await prepare(store, f"{registry.host}/team/moving@{first.digest}") == old
    registry.push("team/moving:1", made_of(UPPER, TOP))
    assert await prepare(store, name) == old  # what is here is taken
    new = await pull(store, name, settings=access)
    assert new.digest != old.digest
    assert new.layers[0] == old.layers[0]


@pytest.mark.parametrize(
    ("pack", "media_type"),
    [
        ("gzip", MANIFEST_TYPE),
        ("", MANIFEST_TYPE),
        ("gzip", "application/vnd.oci.image.manifest.v1+json"),
        ("zstd", "application/vnd.oci.image.manifest.v1+json"),
    ],
)
async def test_each_way_of_packing_gives_the_same_layers(
    store: ImageStore, registry: DockerRegistry, access: RegistrySettings, pack: str, media_type: str
) -> None:
    made = made_of(UPPER, TOP, pack=pack, media_type=media_type)
    image = await pull(store, registry.push(f"pack/{pack or 'plain'}:1", made), settings=access)
    plain = made_of(UPPER, TOP)
    assert image.digest == (await pull(store, registry.push("pack/same:1", plain), settings=access)).digest
    assert (image.layers[0] / "usr/share/doc/new").read_text() == "new\n"


async def test_an_index_gives_the_image_for_the_platform(
    store: ImageStore, registry: DockerRegistry, access: RegistrySettings
) -> None:
    images = {
        "linux/arm64/v8": make_image(TOP, architecture="arm64"),
        "linux/amd64": make_image(UPPER, architecture="amd64"),
        "unknown/unknown": make_image(TOP, UPPER, architecture="unknown"),
    }
    digest = registry.push_index("many:1", images)
    name = f"{registry.host}/many@{digest}"
    arm = await pull(store, name, platform="linux/arm64", settings=access)
    record = store.find(name)
    assert record is not None
    assert record.details["index_digest"] == digest
    assert record.details["digest"] == images["linux/arm64/v8"].digest
    amd = await pull(store, f"{registry.host}/many:1", platform="linux/amd64", settings=access)
    assert (arm.layers[0] / "two").is_file()
    assert (amd.layers[0] / "one").is_file()


async def test_many_callers_make_one_pull_and_images_share_their_layers(
    store: ImageStore, registry: DockerRegistry, access: RegistrySettings, system_layer: bytes
) -> None:
    one = registry.push("share/one:1", made_of(system_layer, UPPER))
    two = registry.push("share/two:1", made_of(system_layer, TOP))
    lines: list[str] = []
    images = await asyncio.gather(
        *(pull(store, name, if_missing=True, settings=access, say=lines.append) for name in [one, two] * 8)
    )
    assert len(lines) == 2
    assert len({image.digest for image in images}) == 2
    assert len({layer for image in images for layer in image.layers[:1]}) == 1
    assert list((store.settings.state_dir / "staging").iterdir()) == []


@pytest.mark.usefixtures("access")
async def test_a_dockerfile_may_begin_with_a_pulled_image_and_gets_one_that_is_not_here(
    store: ImageStore,
    registry: DockerRegistry,
    system_layer: bytes,
    tmp_path: Path,
    merged: Merged,
) -> None:
    made = made_of(system_layer, UPPER, TOP, config={"Env": ["PATH=/bin"]})
    name = registry.push("team/base:1", made)
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text(
        f"FROM {name}\nRUN test ! -e /one && test ! -e /etc/motd && cat /two > /three && rm /two\n"
    )
    image = await prepare(store, BuildRequest(context=folder))
    assert image.layers[:3] == store.resolve(name).layers[:3]
    with merged(image) as root:
        assert (root / "three").read_text() == "two\n"
        assert not (root / "two").exists()
        assert [path.name for path in (root / "usr/share/doc").iterdir()] == ["new"]
        assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    record = store.find(image.name)
    assert record is not None
    assert record.details["bases"][name]["origin"] == "pulled"
    assert (await build(store, folder, name="again")).digest == image.digest
    pinned = f"{registry.host}/team/base@{made.digest}"
    (folder / "Dockerfile").write_text(
        f"FROM {pinned} AS first\nFROM {pinned}\nCOPY --from=first /two /four\n"
    )
    assert (await build(store, folder)).layers[:3] == image.layers[:3]
    for row in store.list():
        store.remove(row.name)
    await collect(store)
    assert list(store.settings.layers_dir.iterdir()) == []


async def test_a_name_without_host_is_looked_for_in_the_default_registry(
    store: ImageStore,
    registry: DockerRegistry,
    access: RegistrySettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry.push("plain/tool:2", made_of(UPPER))
    monkeypatch.setenv("CLOCHE_REGISTRY", registry.host)
    image = await prepare(store, "plain/tool:2")
    record = store.find("plain/tool:2")
    assert record is not None
    assert (image.origin, record.details["registry"]) == ("pulled", registry.host)


@pytest.mark.fault("mirror-fails")
async def test_a_mirror_is_asked_first_and_the_registry_where_it_has_nothing(
    store: ImageStore,
    registry: DockerRegistry,
    access: RegistrySettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry.push("hub/team/mirrored:1", made_of(UPPER))
    registry.push("team/only-here:1", made_of(TOP))
    mirrors = f"far.example={registry.host}/hub,{registry.host}=127.0.0.1:9/nobody"
    monkeypatch.setenv("CLOCHE_REGISTRY_MIRRORS", mirrors)
    image = await prepare(store, "far.example/team/mirrored:1")
    record = store.find("far.example/team/mirrored:1")
    assert record is not None
    assert record.digest == image.digest
    assert (record.details["registry"], record.details["mirror"]) == (
        "far.example",
        f"{registry.host}/hub/team/mirrored",
    )
    await prepare(store, f"{registry.host}/team/only-here:1")
    record = store.find(f"{registry.host}/team/only-here:1")
    assert record is not None
    assert "mirror" not in record.details


def test_the_command_pulls_and_says_what_it_did(
    store: ImageStore, registry: DockerRegistry, access: RegistrySettings, tmp_path: Path
) -> None:
    name = registry.push("team/cli:1", made_of(UPPER, TOP))
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "CLOCHE_STATE_DIR": str(store.settings.state_dir),
        "CLOCHE_RUN_DIR": str(store.settings.run_dir),
        "NO_COLOR": "1",
    }

    def cloche(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cloche", "image", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    done = cloche("pull", name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{store.resolve(name).digest}\n"
    assert f"pulling {name}: 2 layers" in done.stderr
    assert f"{name}  pulled" in done.stderr
    assert json.loads(cloche("ls", "--json").stdout)["details"]["repository"] == "team/cli"
    wrong = cloche("pull", name, "--platform", "linux/s390x")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert f"it is for linux/{HERE}" in wrong.stderr
    nowhere = cloche("pull", "team/cli:1")
    assert nowhere.returncode == 2
    assert "has no registry" in nowhere.stderr
