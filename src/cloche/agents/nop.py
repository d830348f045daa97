"""The agent that does nothing: what a task's verifier says of an untouched sandbox. Must never touch it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloche.agents.base import AgentContext

if TYPE_CHECKING:
    from cloche.sandbox.handle import Sandbox


class NopAgent:
    """Does nothing."""

    name = "nop"
    version = "1"
    needs_model = False

    async def setup(self, sandbox: Sandbox, context: AgentContext) -> None:
        """Do nothing."""

    async def run(self, instruction: str, sandbox: Sandbox, context: AgentContext) -> None:
        """Note the instruction and do nothing about it."""
        context.trajectory.add_user(instruction)
