"""Whether somebody else's firewall drops what public networks send on: a base chain, of nft or iptables.

Must never change a rule: a machine's firewall is its operator's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any


def dropping_chains(ruleset: dict[str, Any]) -> list[str]:
    """Return the base chains that drop forwarded packets by policy, as ``family table chain``.

    ``ruleset`` is what ``nft --json list chains`` says (libnftables-json(5)). A packet must pass every base
    chain of its hook, so one that is ours and accepts does not help.
    """
    found = []
    for entry in ruleset.get("nftables", []):
        chain = entry.get("chain", {})
        drops = chain.get("hook") == "forward" and chain.get("policy") == "drop"
        if drops and chain["family"] in ("ip", "inet") and not chain["table"].startswith("cloche_"):
            found.append(f"{chain['family']} {chain['table']} {chain['name']}")
    return found


def blocked_by() -> list[str] | None:
    """Return the chains of this machine that drop what is forwarded; None where nft cannot say."""
    if shutil.which("nft") is None:
        return None
    listed = subprocess.run(["nft", "--json", "list", "chains"], capture_output=True, check=False, timeout=30)
    if listed.returncode != 0:
        return None
    try:
        return dropping_chains(json.loads(listed.stdout))
    except ValueError:
        return None
