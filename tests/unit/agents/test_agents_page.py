"""docs/agents.md says what there is, and its examples work."""

from __future__ import annotations

import re
import tomllib
import typing
from dataclasses import fields
from pathlib import Path

import pytest

from cloche.agents import chat, errors
from cloche.agents.base import Limits, agent_names
from cloche.agents.tools import TOOLS
from cloche.core.errors import ClocheError, ModelError
from cloche.core.failures import FAILURES
from cloche.testing.model_server import Fault, Script, Totals, Turn

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "agents.md").read_text()
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def literals(model: typing.Any, name: str) -> tuple[str, ...]:
    return typing.get_args(model.model_fields[name].annotation)


CODES = {
    value.code
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, ClocheError) and value is not ModelError
} - {ClocheError.code}
WORDS = {
    *agent_names(),
    *CODES,
    *(field.name for field in fields(Limits)),
    *(field.name for field in fields(Totals) if not field.name.endswith("_tokens")),
    *(tool["function"]["name"] for tool in TOOLS),
    *(name for tool in TOOLS for name in tool["function"]["parameters"]["properties"]),
    *literals(Fault, "kind"),
}


@pytest.mark.parametrize("word", sorted(WORDS))
def test_it_names(word: str) -> None:
    assert f"`{word}`" in PAGE


def test_its_codes_are_real() -> None:
    assert set(re.findall(r"`((?:infra|agent|budget|user)/\w+)`", PAGE)) <= set(FAILURES)


def test_its_figures_are_the_defaults() -> None:
    limits = Limits()
    assert f"`steps` ({limits.steps})" in PAGE
    assert f"`command_s` ({limits.command_s:g})" in PAGE
    assert f"at most {chat.WAIT_LIMIT_S:g} s" in PAGE
    assert chat.ATTEMPTS == 4
    assert "At most four requests" in PAGE


def test_its_script_is_one_and_shows_every_key() -> None:
    (text,) = TOML
    script = Script.model_validate({"model": "m", "name": "n", **tomllib.loads(text)})
    assert script.turns[1].fault is not None
    keys = set(Turn.model_fields) | set(Fault.model_fields)
    assert {key for key in keys if not re.search(rf"\b{key}\b", text)} == {"after_chunks"}
    assert all(kind in text for kind in literals(Turn, "usage"))
