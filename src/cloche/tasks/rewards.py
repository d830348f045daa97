"""The verdict that a verifier leaves behind: ``reward.json`` or ``reward.txt``.

Must never guess: a verdict that is missing, empty or not a number is a failure of the verifier, and no
score. The contract is Harbor's, with one difference: ``true`` and ``false`` are not numbers here. The
errors carry the name under which Harbor records them. The tree::

    VerifierError
     ├── RewardMissing     neither file is there                     RewardFileNotFoundError
     ├── RewardEmpty       the file has no bytes                     RewardFileEmptyError
     ├── RewardInvalid     not a number, or not a flat object of them  VerifierOutputParseError
     ├── VerifierTimeout   the script ran out of time and was ended  VerifierTimeoutError
     └── VerifierFailed    the script could not be started           RewardFileNotFoundError
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar

from cloche.core.errors import ClocheError, Domain

REWARD_JSON = "reward.json"
REWARD_TEXT = "reward.txt"
REWARD_BYTES_MAX = 1 << 20
REWARDS_MAX = 1000

Rewards = dict[str, float]


class VerifierError(ClocheError):
    """The verifier gave no verdict."""

    code = "verifier/error"
    domain = Domain.VERIFIER
    http_status = 502
    harbor_name: ClassVar[str] = "VerifierOutputParseError"


class RewardMissing(VerifierError):
    """The verifier wrote neither reward.json nor reward.txt."""

    code = "verifier/reward_missing"
    harbor_name = "RewardFileNotFoundError"


class RewardEmpty(VerifierError):
    """The verifier's reward file is empty."""

    code = "verifier/reward_empty"
    harbor_name = "RewardFileEmptyError"


class RewardInvalid(VerifierError):
    """The verifier's reward file cannot be understood."""

    code = "verifier/reward_invalid"
    harbor_name = "VerifierOutputParseError"


class VerifierTimeout(VerifierError):
    """The verifier ran out of time and was ended."""

    code = "verifier/timeout"
    harbor_name = "VerifierTimeoutError"


class VerifierFailed(VerifierError):
    """The verifier's script could not be run."""

    code = "verifier/not_run"
    harbor_name = "RewardFileNotFoundError"


def read_rewards(folder: Path) -> Rewards:
    """Return the rewards in a verifier's folder; ``reward.json`` counts before ``reward.txt``.

    Raises RewardMissing, RewardEmpty or RewardInvalid, with the file in ``where``.
    """
    for name, parse in ((REWARD_JSON, parse_json), (REWARD_TEXT, parse_text)):
        path = folder / name
        if path.is_symlink() or not path.exists():
            continue
        if not path.is_file():
            raise RewardInvalid(f"{name} is not a file", where=str(path))
        with path.open("rb") as file:
            content = file.read(REWARD_BYTES_MAX + 1)
        try:
            return parse(content)
        except VerifierError as error:
            error.where = str(path)
            raise
    raise RewardMissing(where=str(folder))


def _text(content: bytes, name: str) -> str:
    if not content:
        raise RewardEmpty(f"{name} is empty")
    if len(content) > REWARD_BYTES_MAX:
        raise RewardInvalid(f"{name} is larger than {REWARD_BYTES_MAX >> 10} KiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RewardInvalid(f"{name} is not UTF-8 at byte {error.start}") from error


def parse_text(content: bytes) -> Rewards:
    """Return ``{"reward": x}`` from the bytes of ``reward.txt``: one number and white space around it."""
    text = _text(content, REWARD_TEXT).strip()
    try:
        value = float(text)
    except ValueError as error:
        raise RewardInvalid(f"{REWARD_TEXT} holds {_short(text)}, not a number") from error
    if not math.isfinite(value):
        raise RewardInvalid(f"{REWARD_TEXT} holds {_short(text)}, which is not a finite number")
    return {"reward": value}


def parse_json(content: bytes) -> Rewards:
    """Return the rewards from the bytes of ``reward.json``: a flat object of finite numbers."""
    text = _text(content, REWARD_JSON)
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise RewardInvalid(f"{REWARD_JSON} is nested too deeply") from error
    except ValueError as error:
        raise RewardInvalid(f"{REWARD_JSON} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise RewardInvalid(f"{REWARD_JSON} holds {_kind(data)}, not an object")
    if not data:
        raise RewardInvalid(f"{REWARD_JSON} holds no reward")
    if len(data) > REWARDS_MAX:
        raise RewardInvalid(f"{REWARD_JSON} holds more than {REWARDS_MAX} rewards")
    return {key: _number(key, value) for key, value in data.items()}


def _number(key: str, value: Any) -> float:
    if any("\ud800" <= character <= "\udfff" for character in key):
        raise RewardInvalid(f"{REWARD_JSON}: {_short(key)} is not a name")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RewardInvalid(f"{REWARD_JSON}: {_short(key)} is {_kind(value)}, not a number")
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an integer beyond what a float can hold
        finite = False
    if not finite:
        raise RewardInvalid(f"{REWARD_JSON}: {_short(key)} is not a finite number")
    return value


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def _short(text: str) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 60 else shown[:57] + "..."
