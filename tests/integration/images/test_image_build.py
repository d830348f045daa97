"""Dockerfiles built by buildah, on layers that are used where they lie."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cloche.sandbox.images import BuildRequest, ImageStore, build, collect, prepare
from cloche.sandbox.images.builds import layers_max
from cloche.sandbox.spec import PreparedImage

Merged = Callable[[PreparedImage], AbstractContextManager[Path]]

pytestmark = pytest.mark.usefixtures("base")


def context(tmp_path: Path, dockerfile: str, **files: str) -> Path:
    folder = tmp_path / "context"
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


async def test_what_a_dockerfile_says_is_what_an_image_has(
    store: ImageStore, tmp_path: Path, merged: Merged
) -> None:
    folder = context(
        tmp_path,
        """\
        FROM base:1
        COPY --chown=1000:1000 file /data/file
        RUN echo "$BASE" > /base && chmod 4755 /base
        ENV TWO=2 THREE="a b"
        USER joe
        WORKDIR /srv/site
        ENTRYPOINT ["sh", "-c"]
        CMD ["echo hello"]
        """,
        file="content",
    )
    image = await build(store, folder, name="made:1")
    assert image.origin == "built"
    assert image.name == "made:1"
    assert image.config.user == "joe"
    assert image.config.workdir == "/srv/site"
    assert image.config.entrypoint == ("sh", "-c")
    assert image.config.cmd == ("echo hello",)
    assert image.config.env["TWO"] == "2"
    assert image.config.env["THREE"] == "a b"
    assert image.config.env["BASE"] == 'a $HOME "b" \\c'
    with merged(image) as root:
        assert (root / "data" / "file").read_text() == "content"
        assert (root / "data" / "file").stat().st_uid == 1000
        assert (root / "base").read_text() == 'a $HOME "b" \\c\n'
        assert stat.S_IMODE((root / "base").stat().st_mode) == 0o4755
        assert (root / "etc" / "motd").read_text() == "welcome\n"
        assert (root / "srv" / "site").is_dir()
        assert not (root / ".cloche-base").exists()


async def test_the_bases_layer_is_not_copied(store: ImageStore, base: PreparedImage, tmp_path: Path) -> None:
    image = await build(store, context(tmp_path, "FROM base:1\nRUN echo x > /x\n"), name="made:1")
    assert image.layers[0] == base.layers[0]
    assert all(layer.is_relative_to(store.settings.state_dir) for layer in image.layers)
    again = await build(store, context(tmp_path, "FROM made:1\nRUN echo y > /y\n"), name="made:2")
    assert again.layers[: len(image.layers)] == image.layers
    programs = [
        path
        for path in (store.settings.state_dir / "buildah").rglob("busybox")
        if not path.resolve().is_relative_to(base.layers[0])
    ]
    assert programs == []


async def test_what_a_step_deletes_is_gone_and_a_folder_made_anew_is_empty(
    store: ImageStore, tmp_path: Path, merged: Merged
) -> None:
    anew = "rm -rf /usr/share/doc && mkdir /usr/share/doc && echo new > /usr/share/doc/new"
    image = await build(store, context(tmp_path, f"FROM base:1\nRUN rm /etc/motd\nRUN {anew}\n"))
    uppers = [layer for layer in image.layers if (layer / "usr" / "share" / "doc" / "new").exists()]
    assert os.getxattr(uppers[0] / "usr" / "share" / "doc", "trusted.overlay.opaque") == b"y"
    with merged(image) as root:
        assert not (root / "etc" / "motd").exists()
        assert [path.name for path in (root / "usr" / "share" / "doc").iterdir()] == ["new"]


async def test_stages_and_other_images_lend_files(
    store: ImageStore, rootfs: Path, tmp_path: Path, merged: Merged
) -> None:
    (rootfs / "etc" / "tool").write_text("from another image\n")
    store.import_dir(rootfs, "tools:2")
    text = """\
    ARG BASE=base
    FROM ${BASE}:1 AS maker
    RUN mkdir /out && echo made > /out/made && echo left > /left
    FROM base:1
    COPY --from=maker /out/made /made
    COPY --from=tools:2 /etc/tool /tool
    """
    image = await build(store, context(tmp_path, text))
    with merged(image) as root:
        assert (root / "made").read_text() == "made\n"
        assert (root / "tool").read_text() == "from another image\n"
        assert not (root / "left").exists()
    row = next(row for row in store.list() if row.digest == image.digest)
    assert {item["name"] for item in row.details["bases"].values()} == {"base:1", "tools:2"}
    assert {item["origin"] for item in row.details["bases"].values()} == {"imported"}


async def test_a_build_from_nothing_has_only_what_is_copied(store: ImageStore, tmp_path: Path) -> None:
    image = await build(store, context(tmp_path, "FROM scratch\nCOPY file /file\n", file="x"))
    assert [path.name for layer in image.layers for path in layer.iterdir()] == ["file"]


async def test_the_same_content_is_built_once_and_gets_each_name(store: ImageStore, tmp_path: Path) -> None:
    folder = context(tmp_path, "FROM base:1\nRUN cat /proc/sys/kernel/random/uuid > /uuid\n")
    first = await build(store, folder, name="a:1")
    second = await build(store, folder, name="b:1")
    third = await prepare(store, BuildRequest(context=folder))
    assert first.digest == second.digest == third.digest
    assert third.name.startswith("build:")
    assert {row.name for row in store.list()} == {"a:1", "b:1", "base:1", third.name}
    assert len(list((store.root / "logs").iterdir())) == 1


async def test_a_build_is_made_again_when_what_it_sees_changes(
    store: ImageStore, rootfs: Path, tmp_path: Path
) -> None:
    text = "ARG WHAT=x\nFROM base:1\nARG WHAT\nCOPY . /all\nRUN echo $WHAT > /what\n"
    folder = context(tmp_path, text, **{".dockerignore": "noise\n", "file": "one"})
    digests = {(await build(store, folder)).digest}
    (folder / "noise").write_text("not seen")
    assert (await build(store, folder)).digest in digests

    async def differs(**build_args: str) -> None:
        image = await build(store, folder, build_args=build_args)
        assert image.digest not in digests
        digests.add(image.digest)

    (folder / "file").write_text("two")
    await differs()
    await differs(WHAT="y")
    (rootfs / "etc" / "motd").write_text("another base\n")
    store.import_dir(rootfs, "base:1")
    await differs()


async def test_what_is_ignored_does_not_reach_the_image(
    store: ImageStore, tmp_path: Path, merged: Merged
) -> None:
    ignore = "*\n!kept\n!Dockerfile.dockerignore\n"
    folder = context(tmp_path, "FROM base:1\nCOPY . /all/\n", kept="k", secret="s")
    (folder / "Dockerfile.dockerignore").write_text(ignore)
    with merged(await build(store, folder)) as root:
        assert sorted(path.name for path in (root / "all").iterdir()) == ["Dockerfile.dockerignore", "kept"]


async def test_a_dockerfile_may_lie_elsewhere(store: ImageStore, tmp_path: Path, merged: Merged) -> None:
    folder = context(tmp_path, "FROM no-such:1\n", file="x")
    other = tmp_path / "Other"
    other.write_text("FROM base:1\nCOPY file /here\n")
    with merged(await build(store, folder, other)) as root:
        assert (root / "here").read_text() == "x"


async def test_many_callers_at_once_build_once(store: ImageStore, tmp_path: Path) -> None:
    folder = context(tmp_path, "FROM base:1\nRUN cat /proc/sys/kernel/random/uuid > /uuid\n")
    images = await asyncio.gather(*(build(store, folder, name=f"n:{number}") for number in range(6)))
    assert len({image.digest for image in images}) == 1
    assert [image.name for image in images] == [f"n:{number}" for number in range(6)]
    assert len(list((store.root / "logs").iterdir())) == 1


async def test_different_builds_run_at_once(store: ImageStore, tmp_path: Path) -> None:
    """One waits for a connection that only the other makes, so that both end only if they run together."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    steps = {
        "listens": f"busybox nc -l -p {port} < /dev/null",
        "connects": f"until busybox nc 127.0.0.1 {port} < /dev/null; do sleep 0.05; done",
    }
    folders = []
    for name, step in steps.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "Dockerfile").write_text(f"FROM base:1\nRUN {step}\n")
        folders.append(folder)
    images = await asyncio.gather(*(build(store, folder, timeout_s=60) for folder in folders))
    assert images[0].name != images[1].name


def _build_in_another_process(store: ImageStore, folder: Path, name: str) -> subprocess.Popen[bytes]:
    program = (
        "import asyncio, sys; from pathlib import Path; from cloche.sandbox.images import ImageStore, build;"
        "from cloche.sandbox.settings import Settings;"
        "s = ImageStore(Settings(state_dir=Path(sys.argv[1]), run_dir=Path(sys.argv[2])));"
        "print(asyncio.run(build(s, Path(sys.argv[3]), name=sys.argv[4])).digest)"
    )
    arguments = [str(store.settings.state_dir), str(store.settings.run_dir), str(folder), name]
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)


def test_several_processes_build_once(store: ImageStore, tmp_path: Path) -> None:
    folder = context(tmp_path, "FROM base:1\nRUN cat /proc/sys/kernel/random/uuid > /uuid\n")
    processes = [_build_in_another_process(store, folder, f"n:{number}") for number in range(3)]
    printed = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(printed) == 1
    assert len(list((store.root / "logs").iterdir())) == 1


async def test_removing_a_built_image_frees_its_layers_but_not_its_bases(
    store: ImageStore, base: PreparedImage, tmp_path: Path
) -> None:
    first = await build(store, context(tmp_path, "FROM base:1\nRUN echo 1 > /1\n"), name="first")
    second = await build(
        store, context(tmp_path, "FROM base:1\nRUN echo 1 > /1\nRUN echo 2 > /2\n"), name="second"
    )
    assert second.layers[:2] == first.layers
    store.remove("first")
    await collect(store)
    assert all(layer.is_dir() for layer in second.layers)
    store.remove("second")
    await collect(store)
    assert base.layers[0].is_dir()
    assert not any(layer.exists() for layer in second.layers[1:])
    assert list((store.root / "builds").glob("*.json")) == []


async def test_a_base_may_go_while_what_was_built_on_it_stays(
    store: ImageStore, base: PreparedImage, tmp_path: Path, merged: Merged
) -> None:
    folder = context(tmp_path, "FROM base:1\nRUN echo 1 > /1\n")
    image = await build(store, folder, name="made")
    store.remove("base:1")
    await collect(store)
    with merged(store.resolve("made")) as root:
        assert (root / "bin" / "busybox").exists()
    store.remove("made")
    await collect(store)
    assert not any(layer.exists() for layer in image.layers)
    assert json.loads((store.settings.state_dir / "buildah/overlay-images/images.json").read_text()) == []


async def test_a_removed_image_is_built_again(store: ImageStore, tmp_path: Path) -> None:
    folder = context(tmp_path, "FROM base:1\nRUN echo 1 > /1\n")
    await build(store, folder, name="made")
    store.remove("made")
    await collect(store)
    image = await build(store, folder, name="made")
    assert all(layer.is_dir() for layer in image.layers)


def _host() -> tuple[list[tuple[str, int]], str]:
    shared = Path("/var/lib/containers").rglob("*")
    return sorted((str(path), path.stat().st_mtime_ns) for path in shared), Path(
        "/proc/self/mounts"
    ).read_text()


async def test_a_build_touches_nothing_outside_of_the_store(store: ImageStore, tmp_path: Path) -> None:
    before = _host()
    await build(store, context(tmp_path, "FROM base:1\nRUN echo 1 > /1\n"))
    assert _host() == before
    assert list((store.settings.state_dir / "staging").iterdir()) == []


async def test_a_working_folder_is_made_even_through_a_symlink(
    store: ImageStore, rootfs: Path, tmp_path: Path, merged: Merged
) -> None:
    (rootfs / "srv").symlink_to("home")
    store.import_dir(rootfs, "linked:1")
    image = await build(store, context(tmp_path, "FROM linked:1\nWORKDIR /srv/$HOME/a\nUSER joe\n"))
    assert image.config.workdir == "/srv/a"
    assert image.config.user == "joe"
    with merged(image) as root:
        assert (root / "home" / "a").is_dir()
        assert (root / "srv").readlink() == Path("home")


@pytest.mark.parametrize(
    ("kernel", "limit"), [("6.1.0-38-amd64", 14), ("6.5.0", 500), ("6.18.44", 500), ("7.0", 500), ("odd", 14)]
)
def test_how_many_layers_a_kernel_merges(kernel: str, limit: int) -> None:
    assert layers_max(kernel) == limit


async def test_a_build_of_too_many_steps_for_the_kernel_makes_one_layer(
    store: ImageStore, base: PreparedImage, tmp_path: Path, merged: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = "".join(f"RUN echo {number} > /{number}\n" for number in range(6))
    folder = context(tmp_path, f"FROM base:1\n{steps}ENV A=b\nWORKDIR /w\n")
    monkeypatch.setattr("cloche.sandbox.images.builds.LAYERS_MAX", 5)
    image = await build(store, folder)
    assert image.layers[0] == base.layers[0]
    assert len(image.layers) == 2
    assert image.config.env["A"] == "b"
    with merged(image) as root:
        assert [(root / str(number)).read_text() for number in range(6)] == [
            f"{number}\n" for number in range(6)
        ]
        assert (root / "w").is_dir()
