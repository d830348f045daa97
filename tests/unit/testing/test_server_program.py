"""The scripted server as a program: its command gets the address, and its exit status is the program's."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPT = 'match = "hello"\n[[turns]]\ntext = "Hello yourself"\n'
ASK = """
import json, os, sys, urllib.request
request = urllib.request.Request(
    os.environ["MODEL_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode(),
    {"Authorization": "Bearer " + os.environ["MODEL_API_KEY"]},
)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
sys.exit(7)
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts" / "m"
    folder.mkdir(parents=True)
    (folder / "hello.toml").write_text(SCRIPT)
    return tmp_path / "scripts"


def program(scripts: Path, *arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", "cloche.testing.model_server", "--scripts", str(scripts), *arguments]


def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)


def test_with_a_command(scripts: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"
    done = run(program(scripts, "--ledger", str(ledger), "--", sys.executable, "-c", ASK))
    assert done.returncode == 7, done.stderr
    assert done.stdout == "Hello yourself\n"
    assert done.stderr.startswith("scripted models at http://127.0.0.1:")
    assert json.loads(ledger.read_text())["by_model"]["m"]["reported"] == 1


def test_the_command_may_have_a_double_dash_of_its_own(scripts: Path) -> None:
    done = run(program(scripts, "--", "sh", "-c", 'echo "$@"', "sh", "--", "-x"))
    assert (done.returncode, done.stdout) == (0, "-- -x\n")


def test_a_command_ended_by_a_signal(scripts: Path) -> None:
    assert run(program(scripts, "--", "sh", "-c", "kill -9 $$")).returncode == 128 + 9


def test_being_told_to_stop_tells_the_command(scripts: Path) -> None:
    command = ["sh", "-c", "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.05; done"]
    with subprocess.Popen(program(scripts, "--", *command), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)  # a terminal's, which the command gets by itself
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "told\n"
        assert process.wait(timeout=30) == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_command_it_serves_until_it_is_stopped(number: signal.Signals, scripts: Path) -> None:
    with subprocess.Popen(program(scripts), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("scripted models at ")
        with urllib.request.urlopen(f"{url}/models") as response:
            assert json.load(response)["data"][0]["id"] == "m"
        process.send_signal(number)
        assert process.wait(timeout=30) == 0


@pytest.mark.fault("script-server-unusable")
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--scripts", "/nowhere"], 2, "there is no script"),
        (["--", "no-such-program-anywhere"], 127, "no-such-program-anywhere"),
        (["--port", "http"], 2, "invalid int value"),
    ],
)
def test_what_cannot_be_is_said(arguments: list[str], status: int, said: str, scripts: Path) -> None:
    done = run(program(scripts, *arguments))
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_script_is_named(scripts: Path) -> None:
    (scripts / "m" / "broken.toml").write_text("match = 3\n")
    done = run(program(scripts))
    assert done.returncode == 2
    assert "broken.toml" in done.stderr
