"""Names of trials: the same plan gives the same names, so that a record can be found again.

Must never depend on the time, on chance or on the order of a plan.
"""

from __future__ import annotations

import hashlib
import re

NAME_LIMIT_CHARS = 64
_HASH_CHARS = 6
_SAFE = re.compile(r"[^a-z0-9.]+")


def slug(text: str) -> str:
    """Return ``text`` in lower-case letters, digits, points and single hyphens; ``x`` if nothing is left."""
    return _SAFE.sub("-", text.lower()).strip("-.") or "x"


def trial_name(task: str, agent: str, model: str | None, repeat: int, *, key: str = "") -> str:
    """Return ``<task>__<agent>[-<model>]__k<repeat>-<hash>``, at most 64 characters, safe as a folder.

    The hash covers everything in full, so that names cut short stay apart. ``key`` tells two tasks of one
    name apart (a digest of what they hold, say).
    """
    identity = "\0".join((task, key, agent, model or "", str(repeat)))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:_HASH_CHARS]
    end = f"__k{repeat}-{digest}"
    room = NAME_LIMIT_CHARS - len(end) - 2
    who = slug(agent if model is None else f"{agent}-{model}")[: room // 2].rstrip("-.")
    what = slug(task.rsplit("/", 1)[-1])[: room - len(who)].rstrip("-.")
    return f"{what}__{who}{end}"
