"""How the scripted server counts tokens: a rule that anyone can follow, not a tokeniser.

A text has one token for each four bytes of UTF-8, begun ones included. Every message costs three more.
Must never depend on anything but its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MESSAGE_TOKENS = 3
_BYTES_PER_TOKEN = 4


def count_tokens(text: str) -> int:
    """Return the tokens of a text: its UTF-8 bytes by four, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""


def message_tokens(message: Mapping[str, Any]) -> int:
    """Return the tokens of one message: its content, and name and arguments of each call, counted apart."""
    total = MESSAGE_TOKENS + count_tokens(_content_text(message.get("content")))
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        total += count_tokens(str(function.get("name", ""))) + count_tokens(
            str(function.get("arguments", ""))
        )
    return total


def prompt_tokens(request: Mapping[str, Any]) -> int:
    """Return the tokens of a request: its messages, and its tools as compact JSON."""
    return _tools_tokens(request) + sum(message_tokens(message) for message in request["messages"])


def cached_tokens(request: Mapping[str, Any]) -> int:
    """Return what a perfect prefix cache would hold: all that the conversation's last request asked.

    That is the tools and the messages before the last answer; nothing for a first request.
    """
    messages = request["messages"]
    answers = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    if not answers:
        return 0
    return _tools_tokens(request) + sum(message_tokens(message) for message in messages[: answers[-1]])


def _tools_tokens(request: Mapping[str, Any]) -> int:
    tools = request.get("tools")
    if not tools:
        return 0
    return count_tokens(json.dumps(tools, ensure_ascii=False, separators=(",", ":")))
