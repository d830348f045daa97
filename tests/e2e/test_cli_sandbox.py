"""The sandbox, image and doctor commands as a person types them, each in a process of its own."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)


class Cli:
    """Runs ``cloche`` with an installation of its own."""

    def __init__(self, folder: Path) -> None:
        self.env = {
            **os.environ,
            "CLOCHE_STATE_DIR": str(folder / "state"),
            "CLOCHE_RUN_DIR": str(folder / "run"),
            "NO_COLOR": "1",
        }

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "cloche", *arguments]

    def __call__(
        self, *arguments: str, check: int | None = 0, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            self.argv(*arguments), env=self.env, input=stdin, capture_output=True, check=False
        )
        if check is not None:
            assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done


def _rootfs(folder: Path) -> Path:
    busybox = shutil.which("busybox")
    assert busybox, "the package busybox-static is part of the test set-up"
    folder.chmod(0o755)  # pytest makes its folders 0700, and an image's root keeps its mode
    for name in ("bin", "etc", "tmp", "root", "home/ann"):
        (folder / name).mkdir(parents=True)
    shutil.copy(busybox, folder / "bin" / "busybox")
    for applet in (
        "sh",
        "cat",
        "id",
        "pwd",
        "sleep",
        "stty",
        "echo",
        "true",
        "env",
        "yes",
        "head",
        "ls",
        "mkdir",
    ):
        (folder / "bin" / applet).symlink_to("busybox")
    (folder / "etc" / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n"
    )
    (folder / "etc" / "group").write_text("root:x:0:\nann:x:1000:\n")
    os.chown(folder / "home/ann", 1000, 1000)
    return folder


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    folder = Path("/var/tmp") / f"cloche-e2e-{os.getpid()}"
    command = Cli(folder)
    try:
        source = _rootfs(tmp_path_factory.mktemp("rootfs"))
        command("image", "import", str(source), "busybox:1")
        yield command
        command("sandbox", "rm", "--all")
        assert command("doctor", "--leaks").stdout == b""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sandbox(cli: Cli) -> Iterator[str]:
    name = (
        cli("sandbox", "create", "busybox:1", "--label", "who=test", "-e", "COLOUR=green")
        .stdout.decode()
        .strip()
    )
    yield name
    cli("sandbox", "rm", name, check=None)


def test_a_command_runs_with_its_streams_and_status(cli: Cli, sandbox: str) -> None:
    done = cli("sandbox", "exec", sandbox, "--", "sh", "-c", "echo out; echo err >&2; exit 7", check=7)
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


def test_environment_user_and_folder(cli: Cli, sandbox: str) -> None:
    line = "id -un; pwd; echo $COLOUR $SIZE"
    done = cli("sandbox", "exec", "-u", "ann", "-w", "/tmp", "-e", "SIZE=big", sandbox, "sh", "-c", line)
    assert done.stdout == b"ann\n/tmp\ngreen big\n"


def test_standard_input_reaches_the_command(cli: Cli, sandbox: str) -> None:
    data = bytes(range(256)) * 1000
    assert cli("sandbox", "exec", "-i", sandbox, "cat", stdin=data).stdout == data


@pytest.mark.parametrize(
    ("options", "argv", "status"),
    [
        (["--timeout", "0.3s"], ["sleep", "60"], 124),
        ([], ["sh", "-c", "kill -9 $$"], 137),
        ([], ["no-such-program"], 127),
    ],
)
def test_exit_statuses_follow_the_shells(
    cli: Cli, sandbox: str, options: list[str], argv: list[str], status: int
) -> None:
    cli("sandbox", "exec", *options, sandbox, *argv, check=status)


def test_files_go_in_and_out(cli: Cli, sandbox: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "räksmörgås.bin").write_bytes(os.urandom(300_000))
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    cli("sandbox", "cp", str(tree), f"{sandbox}:/data")
    assert cli("sandbox", "exec", sandbox, "/data/run.sh").stdout == b"ran\n"
    cli("sandbox", "cp", f"{sandbox}:/data", str(tmp_path / "back"))
    for name in ("deep/räksmörgås.bin", "run.sh"):
        assert (tmp_path / "back" / name).read_bytes() == (tree / name).read_bytes()


def test_a_folder_is_copied_into_a_folder_that_is_there(cli: Cli, sandbox: str, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "leaf").write_text("green\n")
    cli("sandbox", "cp", str(tmp_path / "tree"), f"{sandbox}:/tmp")
    cli("sandbox", "cp", str(tmp_path / "tree" / "leaf"), f"{sandbox}:/tmp")
    shown = cli("sandbox", "exec", sandbox, "--", "cat", "/tmp/tree/leaf", "/tmp/leaf").stdout
    assert shown == b"green\ngreen\n"


def test_a_shell_without_a_terminal_says_what_to_use(cli: Cli, sandbox: str) -> None:
    done = cli("sandbox", "shell", sandbox, check=2)
    assert b"needs a terminal" in done.stderr
    assert b"exec -i" in done.stderr


def test_a_listing_shows_it_and_removing_ends_it(cli: Cli) -> None:
    name = (
        cli("sandbox", "create", "busybox:1", "--name", "by-hand", "--label", "who=me")
        .stdout.decode()
        .strip()
    )
    assert name == "by-hand"
    rows = [json.loads(line) for line in cli("sandbox", "ls", "--json").stdout.splitlines()]
    row = next(row for row in rows if row["id"] == "by-hand")
    assert (row["state"], row["labels"]["who"]) == ("ready", "me")
    cli("sandbox", "rm", "by-hand")
    assert b"by-hand" not in cli("sandbox", "ls").stdout
    done = cli("sandbox", "exec", "by-hand", "true", check=2)
    assert b"by-hand" in done.stderr
    assert cli("sandbox", "ls", "--orphans").stdout == b""


def test_a_sandbox_is_paused_waited_for_and_looked_through(cli: Cli, sandbox: str) -> None:
    cli("sandbox", "exec", sandbox, "--", "sh", "-c", "echo new > /etc/new; echo root > /etc/group")
    shown = cli("sandbox", "diff", sandbox).stdout.splitlines()
    assert {b"A /etc/new", b"M /etc/group"} <= set(shown)
    kinds = {
        json.loads(line)["kind"] for line in cli("sandbox", "diff", "--json", sandbox).stdout.splitlines()
    }
    assert {"added", "modified"} <= kinds
    cli("sandbox", "pause", sandbox)
    assert cli("sandbox", "wait", "--state", "paused", sandbox).stdout == b"paused\n"
    cli("sandbox", "resume", sandbox)
    done = cli("sandbox", "wait", "--timeout", "0.1", sandbox, check=124)
    assert b"not there yet" in done.stderr
    assert json.loads(cli("sandbox", "net", sandbox).stdout)["mode"] == "none"
    assert b"for an allowlist" in cli("sandbox", "net", "--allow", "x.org", sandbox, "public", check=2).stderr
    assert b"needs a service" in cli("sandbox", "url", sandbox, "80", check=2).stderr
    assert b"no state" in cli("sandbox", "wait", "--state", "dancing", sandbox, check=2).stderr


def test_a_configured_default_and_a_flag_over_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cloche.toml").write_text('[sandbox]\nmemory = "48m"\npids = 77\n')
    program = [sys.executable, "-m", "cloche", "sandbox", "create", "busybox:1", "--pids", "88", "--json"]
    env = {**cli.env, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(program, env=env, cwd=tmp_path, capture_output=True, check=True)
    made = json.loads(done.stdout)
    cli("sandbox", "rm", made["id"])
    assert (made["resources"]["memory_bytes"], made["resources"]["pids"]) == (48 << 20, 88)


def test_contexts_are_kept_and_their_keys_never_shown(cli: Cli, tmp_path: Path) -> None:
    env = {**cli.env, "XDG_CONFIG_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}

    def context(*arguments: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run(cli.argv(*arguments), env=env, input=stdin, capture_output=True, check=True)
        return done.stdout + done.stderr

    said = context("context", "add", "team", "https://team.example", "--key-stdin", "--use", stdin=b"clk_1\n")
    said += context("context", "ls") + context("context", "ls", "--json") + context("config", "show")
    assert b"https://team.example" in said
    assert b"clk_1" not in said
    assert b"this machine" not in said
    context("context", "use", "--none")
    assert b"this machine" in context("config", "show")
    assert context("context", "rm", "team") == b"team\n"


def test_a_name_is_taken_only_once(cli: Cli, sandbox: str) -> None:
    done = cli("sandbox", "create", "busybox:1", "--name", sandbox, check=2)
    assert sandbox.encode() in done.stderr


@pytest.mark.fault("image-missing")
def test_an_image_that_is_not_there(cli: Cli) -> None:
    done = cli("sandbox", "create", "busyboz:1", check=2)
    assert b"busyboz" in done.stderr
    assert b"hint:" in done.stderr


def test_a_shell_on_a_terminal(cli: Cli, sandbox: str) -> None:
    """A person opens a shell, resizes nothing, types two lines and leaves."""
    pid, master = pty.fork()
    if pid == 0:
        os.execvpe(sys.executable, cli.argv("sandbox", "shell", sandbox), cli.env)
    seen = b""

    def until(wanted: bytes) -> None:
        nonlocal seen
        limit = time.monotonic() + 60
        while wanted not in seen:
            assert time.monotonic() < limit, seen
            if select.select([master], [], [], 0.2)[0]:
                seen += os.read(master, 4096)

    try:
        until(b"# ")
        os.write(master, b"stty size; echo $((6*7))\n")
        until(b"42")
        seen = b""
        os.write(master, b"exit 3\n")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 3
    finally:
        os.close(master)


def test_doctor_names_what_it_looked_at(cli: Cli) -> None:
    rows = [json.loads(line) for line in cli("doctor", "--json").stdout.splitlines()]
    names = {row["name"] for row in rows}
    assert {"user namespaces", "overlay", "cgroups"} <= names
    assert all(row["status"] and row["detail"] for row in rows)
