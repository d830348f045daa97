from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloche.core.errors import Domain
from cloche.tasks import rewards
from cloche.tasks.rewards import (
    RewardEmpty,
    RewardInvalid,
    RewardMissing,
    VerifierError,
    VerifierFailed,
    VerifierTimeout,
    parse_json,
    parse_text,
    read_rewards,
)


def write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"1", 1.0), (b" 0.25\n", 0.25), (b"-3e2\r\n", -300.0), (b"0", 0.0), ("١".encode(), 1.0)],
)
def test_a_text_reward_is_one_number(content: bytes, value: float) -> None:
    assert parse_text(content) == {"reward": value}


def test_a_json_reward_is_a_flat_object_of_numbers() -> None:
    assert parse_json(b'{"reward": 1, "speed": 0.5}') == {"reward": 1, "speed": 0.5}
    assert parse_json('{"größe": -1e9}'.encode()) == {"größe": -1e9}


def test_json_counts_before_text(tmp_path: Path) -> None:
    write(tmp_path, reward_json=b'{"reward": 0.5}', reward_txt=b"1")
    assert read_rewards(tmp_path) == {"reward": 0.5}


def test_text_counts_where_there_is_no_json(tmp_path: Path) -> None:
    assert read_rewards(write(tmp_path, reward_txt=b"1\n")) == {"reward": 1.0}


def test_a_broken_json_is_not_passed_over_for_the_text(tmp_path: Path) -> None:
    with pytest.raises(RewardInvalid):
        read_rewards(write(tmp_path, reward_json=b"{", reward_txt=b"1"))


@pytest.mark.fault("reward-missing")
def test_a_missing_reward_is_a_failure_of_the_verifier(tmp_path: Path) -> None:
    with pytest.raises(RewardMissing, match="neither") as caught:
        read_rewards(tmp_path)
    assert (caught.value.code, caught.value.domain) == ("verifier/reward_missing", Domain.VERIFIER)


@pytest.mark.fault("reward-empty")
@pytest.mark.parametrize("name", ["reward_txt", "reward_json"])
def test_an_empty_reward_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(RewardEmpty, match="is empty") as caught:
        read_rewards(write(tmp_path, **{name: b""}))
    assert caught.value.code == "verifier/reward_empty"
    assert caught.value.where == str(tmp_path / name.replace("_", "."))


@pytest.mark.fault("reward-unparsable")
@pytest.mark.parametrize("content", [b"one", b" \n", b"1 2", b"0x1", b"1,5", b"\xff", b"1\0", b"{}", b"True"])
def test_a_text_that_is_no_number_is_refused(content: bytes) -> None:
    with pytest.raises(RewardInvalid) as caught:
        parse_text(content)
    assert caught.value.code == "verifier/reward_invalid"


@pytest.mark.fault("reward-not-finite")
@pytest.mark.parametrize("content", [b"nan", b"inf", b"-Infinity", b"1e999"])
def test_a_text_reward_must_be_finite(content: bytes) -> None:
    with pytest.raises(RewardInvalid, match="finite"):
        parse_text(content)


@pytest.mark.parametrize(
    "content",
    [
        b'{"reward": NaN}',
        b'{"reward": Infinity}',
        b'{"a": 1, "b": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": 1' + b"0" * 400 + b"}",
    ],
)
def test_a_json_reward_must_be_finite(content: bytes) -> None:
    with pytest.raises(RewardInvalid, match="finite"):
        parse_json(content)


@pytest.mark.fault("reward-nested")
@pytest.mark.parametrize("content", [b'{"reward": {"a": 1}}', b'{"reward": [1]}', b'{"a": 1, "b": {}}'])
def test_a_nested_reward_is_refused(content: bytes) -> None:
    with pytest.raises(RewardInvalid, match=r"is (a list|an object), not a number"):
        parse_json(content)


@pytest.mark.fault("reward-boolean")
@pytest.mark.parametrize("content", [b'{"reward": true}', b'{"a": 1, "reward": false}'])
def test_a_boolean_is_no_reward(content: bytes) -> None:
    with pytest.raises(RewardInvalid, match="is a boolean, not a number"):
        parse_json(content)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"1.0", "holds a number, not an object"),
        (b"[1]", "holds a list, not an object"),
        (b"null", "holds null, not an object"),
        (b"{}", "holds no reward"),
        (b'{"a": null}', "is null, not a number"),
        (b'{"a": "1"}', "is a text, not a number"),
        (b'{"\\ud800": 1}', "is not a name"),
        (b"{", "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b"\xfe{}", "is not UTF-8 at byte 0"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b" " * (rewards.REWARD_BYTES_MAX + 1), "is larger than 1024 KiB"),
        (json.dumps({str(n): n for n in range(1001)}).encode(), "more than 1000 rewards"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_other_json_is_refused_with_its_reason(content: bytes, says: str) -> None:
    with pytest.raises(RewardInvalid, match=says):
        parse_json(content)


def test_a_folder_in_place_of_the_reward_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reward.json").mkdir()
    with pytest.raises(RewardInvalid, match="is not a file"):
        read_rewards(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("1")
    (tmp_path / "reward.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RewardMissing):
        read_rewards(tmp_path)


def test_errors_carry_the_name_that_harbor_records() -> None:
    kinds = [RewardMissing, RewardEmpty, RewardInvalid, VerifierTimeout, VerifierFailed]
    assert [kind.harbor_name for kind in kinds] == [
        "RewardFileNotFoundError",
        "RewardFileEmptyError",
        "VerifierOutputParseError",
        "VerifierTimeoutError",
        "RewardFileNotFoundError",
    ]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(kind.domain is Domain.VERIFIER for kind in kinds)


@given(st.binary() | st.text().map(str.encode) | st.floats().map(lambda x: str(x).encode()))
@example(b"1_0")
def test_any_bytes_are_a_number_or_a_verifier_error(content: bytes) -> None:
    try:
        found = parse_text(content)
    except VerifierError:
        return
    assert list(found) == ["reward"]
    assert math.isfinite(found["reward"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_json_is_rewards_or_a_verifier_error(content: bytes) -> None:
    try:
        found = parse_json(content)
    except VerifierError:
        return
    assert found
    assert all(type(value) in {int, float} and math.isfinite(value) for value in found.values())
    json.dumps(found, ensure_ascii=False).encode()


@given(st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_what_is_written_is_read(values: dict[str, float]) -> None:
    assert parse_json(json.dumps(values).encode()) == values
