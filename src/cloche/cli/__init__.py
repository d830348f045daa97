"""The command line: one module per noun, each imported only when it is used.

This module finds the sub-command and shows errors. It must never import more than click at the top,
so that ``cloche --help`` answers at once.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Any

import click

from cloche import __version__
from cloche.core.errors import ClocheError, EnvironmentUnusable, UsageError

_COMMANDS = {
    "config": ("cloche.cli.config:config", "Look at the configuration."),
    "context": ("cloche.cli.context:context", "Keep services by name, and say which one is used."),
    "dataset": ("cloche.cli.dataset:dataset", "Look at sets of tasks."),
    "doctor": ("cloche.cli.doctor:doctor", "Say what this machine can do, and mend what can be mended."),
    "store": ("cloche.cli.store:store", "Where images and files are kept, and what is enforced."),
    "image": ("cloche.cli.image:image", "Make, list and remove images."),
    "key": ("cloche.cli.key:key", "Make, list and revoke the keys of a service."),
    "report": ("cloche.cli.report:report", "Show the result table of a finished run."),
    "run": ("cloche.cli.run:run", "Run agents on tasks, each in a fresh sandbox."),
    "sandbox": ("cloche.cli.sandbox:sandbox", "Make and use sandboxes by hand."),
    "serve": ("cloche.cli.serve:serve", "Serve sandboxes over HTTP."),
    "task": ("cloche.cli.task:task", "Look at tasks, check them, begin new ones."),
    "version": ("cloche.cli.version:version", "Print the version."),
}


class _LazyGroup(click.Group):
    """A group whose sub-commands are imported when called; their short help stands here."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry[0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else "cloche --help lists the commands"
            raise UsageError(f"there is no command {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(_COMMANDS.items())])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cloche", message="%(prog)s %(version)s")
def app() -> None:
    """Run every agent, model and task in its own clean, isolated sandbox."""


def show_error(error: ClocheError) -> None:
    """Print an error the way all commands do: what happened, where, and what to do."""
    click.echo(f"{click.style('error', fg='red', bold=True)}: {error.message}  [{error.code}]", err=True)
    if error.where:
        click.echo(f"  {error.where}", err=True)
    if error.hint:
        click.echo(f"{click.style('hint', fg='cyan', bold=True)}: {error.hint}", err=True)


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line and exit with the documented status."""
    try:
        status = app.main(args=arguments, prog_name="cloche", standalone_mode=False)
    except ClocheError as error:
        show_error(error)
        status = error.exit_code
    except click.exceptions.Abort:
        status = 130
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone: no message can reach them
        status = 141
    except PermissionError as error:
        if os.geteuid() == 0:
            raise
        show_error(
            EnvironmentUnusable(
                f"cloche makes its sandboxes as root: {error.strerror}: {error.filename}",
                hint="run the same command with sudo, or as root",
            )
        )
        status = EnvironmentUnusable.exit_code
    sys.exit(status if isinstance(status, int) else 0)
