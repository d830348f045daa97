"""What a START request says: a command over its sandbox's defaults over its image's. Pure.

Must never let an image's ENTRYPOINT into a command: commands run as ``docker exec`` runs them.
"""

from __future__ import annotations

from cloche.core.errors import InvalidInput
from cloche.sandbox.guest.frames import Tag, Value
from cloche.sandbox.spec import Command, ImageConfig, SandboxSpec

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMMAND_ID_BYTES_MAX = 128


def environment(command: Command, spec: SandboxSpec, image: ImageConfig) -> dict[str, str]:
    """Return the command's variables; HOME and TERM are the guest's to add, where they are not set."""
    return {"PATH": DEFAULT_PATH, **image.env, **spec.env, **command.env}


def start_fields(command: Command, spec: SandboxSpec, image: ImageConfig) -> list[tuple[int, Value]]:
    """Return the fields of the request. Raises InvalidInput for a command that cannot be one."""
    _check(command)
    fields: list[tuple[int, Value]] = [(Tag.COMMAND, command.id)]
    if command.shell is not None:
        fields.append((Tag.SHELL, command.shell))
    fields += [(Tag.ARG, argument) for argument in command.argv]
    fields += [(Tag.ENV, f"{name}={value}") for name, value in environment(command, spec, image).items()]
    fields.append((Tag.CWD, command.cwd or spec.workdir or image.workdir or "/"))
    user = command.user if command.user is not None else spec.user
    fields.append((Tag.USER, image.user if user is None else user))
    if command.stdin is not None or command.interactive:
        fields.append((Tag.STDIN, 1))
    if command.terminal is not None:
        fields += [(Tag.COLUMNS, command.terminal.columns), (Tag.ROWS, command.terminal.rows)]
    if command.timeout_s is not None:
        fields.append((Tag.TIMEOUT_MS, max(1, round(command.timeout_s * 1000))))
    fields.append((Tag.GRACE_MS, max(0, round(command.grace_s * 1000))))
    fields.append((Tag.CAP_BYTES, command.output_cap_bytes))
    if command.spill:
        fields.append((Tag.SPILL, 1))
    return fields


def _check(command: Command) -> None:
    if not 0 < len(command.id.encode()) <= COMMAND_ID_BYTES_MAX or "\0" in command.id:
        raise InvalidInput(f"a command's id has 1 to {COMMAND_ID_BYTES_MAX} bytes: {command.id!r}")
    if (command.shell is None) == (not command.argv):
        raise InvalidInput(f"command {command.id}: give either argv or shell")
    texts = (*command.argv, command.shell or "", command.cwd or "", command.user or "")
    if any("\0" in text for text in (*texts, *command.env, *command.env.values())):
        raise InvalidInput(f"command {command.id}: an argument or a variable holds a NUL")
    if any(not name or "=" in name for name in command.env):
        raise InvalidInput(f"command {command.id}: a variable's name is empty or holds '='")
    if command.timeout_s is not None and command.timeout_s <= 0:
        raise InvalidInput(f"command {command.id}: timeout_s must be more than 0")
