"""A model endpoint that says what a script says: OpenAI's chat format over real HTTP, with delays and faults.

    async with ScriptedModelServer(load_scripts(Path("scripts"))) as server:
        ...  # ask server.base_url; compare with server.ledger

As a program: ``python -m cloche.testing.model_server --scripts DIR [--port N] [-- COMMAND…]``.
Scripts: ``docs/agents.md``. Must never answer what no script says: an unknown conversation is refused.
"""

from cloche.testing.model_server.ledger import Ledger, Totals
from cloche.testing.model_server.script import Fault, Script, ScriptedCall, Turn, load_scripts
from cloche.testing.model_server.server import ScriptedModelServer
from cloche.testing.model_server.tokens import count_tokens, prompt_tokens

__all__ = [
    "Fault",
    "Ledger",
    "Script",
    "ScriptedCall",
    "ScriptedModelServer",
    "Totals",
    "Turn",
    "count_tokens",
    "load_scripts",
    "prompt_tokens",
]
