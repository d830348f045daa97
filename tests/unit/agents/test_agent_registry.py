"""Agents are found by name, and a wrong name is answered with the nearest."""

from __future__ import annotations

import pytest

from cloche.agents.base import Agent, agent_names, get_agent
from cloche.core.errors import InvalidInput


def test_the_names() -> None:
    assert agent_names() == ("loop", "nop", "oracle")


@pytest.mark.parametrize("name", agent_names())
def test_every_agent_says_who_it_is(name: str) -> None:
    agent: Agent = get_agent(name)
    assert agent.name == name
    assert agent.version
    assert agent.needs_model == (name == "loop")


@pytest.mark.fault("agent-unknown")
@pytest.mark.parametrize(
    ("name", "hint"), [("orcale", "did you mean `oracle`?"), ("zzz", "there are: loop, nop, oracle")]
)
def test_an_unknown_name(name: str, hint: str) -> None:
    with pytest.raises(InvalidInput, match=f"no agent `{name}`") as caught:
        get_agent(name)
    assert caught.value.hint == hint
