"""``cloche image``: what goes to standard output, what beside it, and the exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloche.sandbox.images import ImageStore
from cloche.sandbox.spec import PreparedImage

ROOT = Path(__file__).resolve().parents[3]


def cloche(store: ImageStore, *arguments: str, stdin: bytes = b"", status: int = 0) -> tuple[str, str]:
    """Run the command on this store; return what it printed and what it said."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "CLOCHE_STATE_DIR": str(store.settings.state_dir),
        "CLOCHE_RUN_DIR": str(store.settings.run_dir),
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "cloche", "image", *arguments],
        input=stdin,
        env=env,
        capture_output=True,
        check=False,
    )
    assert done.returncode == status, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


def test_a_folder_a_tar_and_a_stream_are_imported(store: ImageStore, rootfs: Path, tmp_path: Path) -> None:
    printed, said = cloche(
        store, "import", str(rootfs), "one:1", "--user", "joe", "--env", "A=b", "-w", "/home"
    )
    image = store.resolve("one:1")
    assert printed == f"{image.digest}\n"
    assert said == "one:1  imported\n"
    assert (image.config.user, dict(image.config.env), image.config.workdir) == ("joe", {"A": "b"}, "/home")
    archive = tmp_path / "root.tar"
    subprocess.run(["tar", "-C", rootfs, "-cf", archive, "."], check=True)
    cloche(store, "import", str(archive), "two")
    cloche(store, "import", "-", "three", stdin=archive.read_bytes())
    assert store.resolve("two").layers == store.resolve("three").layers == image.layers


def test_images_are_listed_for_people_and_for_programs(store: ImageStore, base: PreparedImage) -> None:
    printed, _ = cloche(store, "ls")
    head, row = printed.splitlines()
    assert head.split() == ["NAME", "DIGEST", "ORIGIN", "SIZE", "LAYERS", "AGE"]
    assert row.split()[:3] == ["base:1", base.digest[7:19], "imported"]
    printed, _ = cloche(store, "ls", "--json")
    assert json.loads(printed)["digest"] == base.digest


def test_an_empty_store_prints_nothing(store: ImageStore) -> None:
    assert cloche(store, "ls") == ("", "none\n")
    assert cloche(store, "ls", "--json") == ("", "")
    assert not store.settings.state_dir.exists()


def test_a_dockerfile_is_built_and_removed(store: ImageStore, base: PreparedImage, tmp_path: Path) -> None:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM base:1\nARG WHAT\nRUN echo $WHAT > /what\n")
    printed, _ = cloche(store, "build", str(folder), "--name", "made", "--build-arg", "WHAT=this")
    image = store.resolve("made")
    assert printed == f"{image.digest}\n"
    assert any(
        (layer / "what").exists() and (layer / "what").read_text() == "this\n" for layer in image.layers
    )
    cloche(store, "rm", "made")
    assert [row.name for row in store.list()] == ["base:1"]
    assert not image.layers[-1].exists()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["rm", "none:1"], 2, "there is no image none:1"),
        (["build", "."], 2, "cannot read the Dockerfile"),
        (["bootstrap", "debian:9"], 2, "cannot be bootstrapped"),
        (["import", "/etc/passwd", "x"], 2, "not a readable archive"),
        (["import", "/etc/passwd", "X Y"], 2, "not an image name"),
        (["import", "/no/such/path", "x"], 2, "does not exist"),
        (["build", "/etc", "--build-arg", "x"], 2, "NAME=VALUE"),
    ],
)
def test_errors_say_what_and_have_a_status(
    store: ImageStore, arguments: list[str], status: int, said: str
) -> None:
    printed, error = cloche(store, *arguments, status=status)
    assert printed == ""
    assert said in error


def test_gc_prints_what_it_removed_and_says_how_much(store: ImageStore, base: PreparedImage) -> None:
    assert cloche(store, "gc", "--budget", "1GiB")[0] == ""
    printed, said = cloche(store, "gc", "--budget", "0")
    assert printed == "base:1\n"
    assert said.startswith("freed ")
    assert said.endswith("kept 0.0 MB\n")
    assert store.list() == ()
