"""What a registry wants to see before it answers (RFC 9110, 11.6.1).

Must never fail on what it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

WAIT_MAX_S = 86_400.0

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9_-]*)(?:\s+|$)")
_PARAMETER = re.compile(r'\s*,?\s*([A-Za-z][A-Za-z0-9_-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))')


@dataclass(frozen=True, slots=True)
class Challenge:
    """A scheme in lower case, and its parameters."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)


def challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """Read ``WWW-Authenticate`` headers, each with one challenge; what is not understood is left out."""
    found = []
    for header in headers:
        match = _SCHEME.match(header)
        if match is None:
            continue
        parameters = {}
        for name, quoted, plain in _PARAMETER.findall(header, match.end()):
            parameters[name.lower()] = re.sub(r"\\(.)", r"\1", quoted) or plain
        found.append(Challenge(match[1].lower(), parameters))
    return tuple(found)


def wait_asked_s(header: str | None, *, now: datetime | None = None) -> float | None:
    """Read ``Retry-After`` (seconds or a date; RFC 9110, 10.2.3); None if there is none that makes sense."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), WAIT_MAX_S)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max((moment - (now or datetime.now(UTC))).total_seconds(), 0.0), WAIT_MAX_S)
