"""Scripts: what a scripted model says in one conversation, turn by turn, read from TOML.

One file is one conversation with one model: ``<folder of the model>/<name>.toml``. Must never accept a key
that it does not know: a misspelt fault would be no fault.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cloche.core.errors import InvalidInput

Seconds = Annotated[float, Field(ge=0, le=3600)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScriptedCall(_Strict):
    """One tool call. ``raw_arguments`` is sent as it stands, for arguments that are not JSON.

    Without an ``id`` it is ``call_<turn>_<position>``.
    """

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    raw_arguments: str | None = None
    id: str | None = None

    @property
    def arguments_text(self) -> str:
        """What goes over the wire."""
        if self.raw_arguments is not None:
            return self.raw_arguments
        return json.dumps(self.arguments, ensure_ascii=False)


class Fault(_Strict):
    """Something that goes wrong with a turn.

    ``status``: an HTTP error (``status``, with ``retry_after_s``, ``error_code`` and ``message``).
    ``hang``: silence after ``after_chunks`` chunks, until the client leaves. ``cut``: the connection breaks
    after ``after_chunks``. ``malformed_json``: the body, or a chunk, is half of one. ``error_body``: status
    200 with an ``error`` object (after ``after_chunks`` when streamed). ``garbage``: bytes that are neither
    JSON nor events. ``times`` lets it happen to the first requests for this turn only, over all conversations
    of the script; 0 is always.
    """

    kind: Literal["status", "hang", "cut", "malformed_json", "error_body", "garbage"]
    status: Annotated[int, Field(ge=300, le=599)] = 500
    retry_after_s: float | str | None = None
    error_code: str | int | None = None
    message: str = "a scripted fault"
    after_chunks: Annotated[int, Field(ge=0)] = 0
    times: Annotated[int, Field(ge=0)] = 0


class Turn(_Strict):
    """One answer: text, calls or both, and how it is delivered.

    ``chunk_chars`` is the size of a streamed piece of text or arguments. ``usage``: in the chunk after the
    last word (``final``), not at all (``absent``), the same but ``late_s`` later (``late``), or as a running
    total with the first piece and again at the end (``twice``). A body that is not streamed has it or not.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None
    first_chunk_s: Seconds = 0.0
    per_chunk_s: Seconds = 0.0
    late_s: Seconds = 0.2
    chunk_chars: Annotated[int, Field(ge=1)] = 24
    usage: Literal["final", "absent", "late", "twice"] = "final"
    fault: Fault | None = None

    @property
    def ending(self) -> str:
        """The ``finish_reason`` that goes over the wire."""
        return self.finish_reason or ("tool_calls" if self.calls else "stop")


class Script(_Strict):
    """One conversation: it is recognised by its model and by ``match``, a piece of the first user message."""

    model: str
    name: str
    match: Annotated[str, Field(min_length=1)]
    turns: Annotated[tuple[Turn, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _calls_have_ids_of_their_own(self) -> Self:
        for turn in self.turns:
            ids = [call.id for call in turn.calls if call.id is not None]
            if len(ids) != len(set(ids)):
                raise ValueError("two calls of one turn share an id")
        return self


def load_script(path: Path) -> Script:
    """Read one file; the model is its folder's name and the script's name its own, unless it says otherwise.

    Raises InvalidInput that names the file, and the field or the line.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the script cannot be read: {error}", where=str(path)) from error
    try:
        return Script.model_validate({"model": path.parent.name, "name": path.stem, **data})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"the script's `{field}`: {first['msg']}", where=str(path)) from error


def load_scripts(folder: Path) -> list[Script]:
    """Read every ``*.toml`` below ``folder``, sorted by path. Raises InvalidInput, also if there is none."""
    scripts = [load_script(path) for path in sorted(folder.rglob("*.toml"))]
    if not scripts:
        raise InvalidInput(f"there is no script (*.toml) in {folder}")
    return scripts


def find_script(scripts: Sequence[Script], model: str, first_user_message: str) -> Script:
    """Return the script of a conversation. Raises LookupError that says why there is not exactly one."""
    found = [script for script in scripts if script.model == model and script.match in first_user_message]
    if len(found) == 1:
        return found[0]
    names = ", ".join(script.name for script in found)
    raise LookupError(
        f"several scripts match the first user message: {names}" if found else "no script matches"
    )
