"""Debian made by mmdebstrap from this machine's own sources, and real packages built on it."""

from __future__ import annotations

import hashlib
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.images import ImageStore, bootstrap, build
from cloche.sandbox.images import authorities as host_authorities
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec

Merged = Callable[[PreparedImage], AbstractContextManager[Path]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def debian_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageStore]:
    """One store for the tests of this file; the bootstrapped tar comes from the usual cache."""
    root = tmp_path_factory.mktemp("debian")
    yield ImageStore(Settings(state_dir=root / "state", run_dir=root / "run"))
    shutil.rmtree(root)


async def debian(store: ImageStore) -> PreparedImage:
    """Return the base, made once for all tests: a second call imports what is already there."""
    if store.find("debian:12") is None:
        await bootstrap(store, "debian:12")
    return store.resolve("debian:12")


def context(tmp_path: Path, dockerfile: str) -> Path:
    (tmp_path / "Dockerfile").write_text(dockerfile)
    return tmp_path


async def test_the_base_is_a_plain_debian_that_says_where_it_came_from(
    debian_store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = await debian(debian_store)
    root = image.layers[0]
    assert image.origin == "bootstrapped"
    assert "VERSION_CODENAME=bookworm" in (root / "usr/lib/os-release").read_text()
    assert stat.S_IMODE((root / "usr/bin/passwd").stat().st_mode) == 0o4755
    assert not any((root / "usr/share/man").rglob("*.gz"))
    assert (root / "etc/resolv.conf").read_text() == ""
    assert (root / "etc/hostname").read_text() == "localhost\n"
    assert not (root / "dev/null").exists()
    row = next(row for row in debian_store.list() if row.name == "debian:12")
    assert row.details["suite"] == "bookworm"
    assert row.details["packages"] == []
    sources = (root / "etc/apt/sources.list").read_text()
    assert all(line in sources for line in row.details["sources"])
    assert debian_store.resolve("debian:bookworm-slim").digest == image.digest

    # what was made once is not made again
    monkeypatch.setattr("cloche.sandbox.images.debian.run_contained", None)
    again = await bootstrap(debian_store, "debian:bookworm", name="other:1")
    assert again.digest == image.digest


async def test_authorities_of_this_machine_are_in_the_image_only_where_there_are_any(
    debian_store: ImageStore,
) -> None:
    image = await debian(debian_store)
    root = image.layers[0]
    extra = host_authorities.extra()
    added = sorted((root / "usr/local/share/ca-certificates").glob("cloche-host-*.crt"))
    assert [path.read_text() for path in added] == extra
    row = next(row for row in debian_store.list() if row.name == "debian:12")
    assert row.details["authorities"] == [hashlib.sha256(pem.encode()).hexdigest() for pem in extra]
    assert ("PIP_CERT" in image.config.env) is bool(extra)
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    inside = host_authorities.certificates(bundle.read_text()) if bundle.exists() else []
    assert all(host_authorities.certificates(pem)[0] in inside for pem in extra)


async def test_packages_are_installed_in_a_build_and_https_works_there(
    debian_store: ImageStore, tmp_path: Path, merged: Merged
) -> None:
    await debian(debian_store)
    text = """\
    FROM debian:12-slim AS tools
    RUN apt-get update && apt-get install -y --no-install-recommends jq python3-pip ca-certificates \\
        && rm -rf /var/lib/apt/lists/*
    RUN pip download --no-deps --no-cache-dir --dest /wheels six && rm -rf /usr/share/perl5
    FROM debian:12
    RUN apt-get update && apt-get install -y --no-install-recommends jq && rm -rf /var/lib/apt/lists/*
    COPY --from=tools /wheels /wheels
    RUN useradd --create-home --base-dir /srv joe && rm /etc/motd
    USER joe
    WORKDIR /srv/joe
    ENV GREETING=hello
    ENTRYPOINT ["jq"]
    """
    image = await build(debian_store, context(tmp_path, text), name="tools")
    assert (image.config.user, image.config.workdir) == ("joe", "/srv/joe")
    assert image.config.entrypoint == ("jq",)
    assert image.config.env["GREETING"] == "hello"
    with merged(image) as root:
        assert (root / "usr/bin/jq").is_file()
        assert list((root / "wheels").glob("six-*.whl"))
        assert not (root / "etc/motd").exists()
        assert (root / "usr/share/perl5").is_dir()
        assert (root / "srv/joe").stat().st_uid == 1000
    driver = LocalDriver(debian_store.settings)
    async with await driver.create(SandboxSpec(), image) as sandbox:
        line = "jq -n --arg user $(id -un) '{$user, here: env.PWD, greeting: env.GREETING}' -c"
        done = await sandbox.run(Command(shell=line))
        assert done.stdout.text == '{"user":"joe","here":"/srv/joe","greeting":"hello"}\n', done.stderr.text
    assert await driver.leftovers() == []
    await driver.close()
    row = next(row for row in debian_store.list() if row.name == "tools:latest")
    assert {item["origin"] for item in row.details["bases"].values()} == {"bootstrapped"}
