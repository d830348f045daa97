"""The frame of the command line: help, errors and exit codes."""

from __future__ import annotations

import click
import pytest

import cloche.cli
from cloche.cli import app, main
from cloche.core.errors import EnvironmentUnusable, InvalidInput


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert isinstance(end.value.code, int)
    return end.value.code


def test_every_command_can_be_loaded_and_says_what_it_does() -> None:
    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        assert command.help


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--help") == 0
    shown = capsys.readouterr().out
    for name in app.list_commands(click.Context(app)):
        assert f"  {name} " in shown


def test_an_unknown_command_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("rnu") == 2
    shown = capsys.readouterr().err
    assert "rnu" in shown
    assert "hint: did you mean run?" in shown


def test_a_folder_that_only_root_may_enter_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def closed() -> None:
        raise PermissionError(13, "Permission denied", "/var/lib/cloche")

    monkeypatch.setattr(cloche.cli._LazyGroup, "resolve_command", lambda *_: ("closed", closed, []))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert _run("closed") == 5
    shown = capsys.readouterr().err
    assert "as root" in shown
    assert "/var/lib/cloche" in shown
    assert "hint: run the same command with sudo" in shown


@pytest.mark.parametrize(("error", "status"), [(InvalidInput, 2), (EnvironmentUnusable, 5)])
def test_an_error_is_shown_with_code_place_and_hint(
    error: type[InvalidInput],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def broken() -> None:
        raise error("it broke", where="task.toml:14", hint="mend it")

    monkeypatch.setattr(cloche.cli._LazyGroup, "resolve_command", lambda *_: ("broken", broken, []))
    assert _run("broken") == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [f"error: it broke  [{error.code}]", "  task.toml:14", "hint: mend it"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--version") == 0
    assert capsys.readouterr().out == f"cloche {cloche.__version__}\n"
