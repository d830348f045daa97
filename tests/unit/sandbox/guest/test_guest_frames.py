"""The codec: what is encoded is decoded, in whatever pieces it arrives; torn bytes are told apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.sandbox.guest import frames
from cloche.sandbox.guest.frames import (
    BODY_BYTES_MAX,
    Code,
    FrameReader,
    Tag,
    TornFrame,
    Type,
    decode_fields,
    encode,
    encode_credit,
    encode_data,
    encode_fields,
    number,
    split_data,
)

HEADER = Path(__file__).resolve().parents[4] / "guest" / "protocol.h"
VALUES = st.one_of(
    st.binary(max_size=200),
    st.integers(0, 2**64 - 1),
    st.text(st.characters(exclude_categories=()), max_size=50).filter(
        lambda text: not any(0xD800 <= ord(letter) <= 0xDFFF for letter in text)
    ),
)
FIELDS = st.lists(st.tuples(st.integers(0, 65535), VALUES), max_size=12)
FRAMES = st.lists(
    st.tuples(st.integers(0, 65535), st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=8
)


def _as_bytes(value: bytes | int | str) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(8, "little")
    return value.encode() if isinstance(value, str) else value


@given(FIELDS)
def test_fields_come_back_in_order(fields: list[tuple[int, bytes | int | str]]) -> None:
    assert decode_fields(encode_fields(fields)) == [(tag, _as_bytes(value)) for tag, value in fields]


@given(FIELDS, st.data())
def test_a_body_that_is_cut_is_torn_or_shorter(
    fields: list[tuple[int, bytes | int | str]], data: st.DataObject
) -> None:
    body = encode_fields(fields)
    cut = body[: data.draw(st.integers(0, len(body)))]
    try:
        decoded = decode_fields(cut)
    except TornFrame:
        return
    assert decoded == decode_fields(body)[: len(decoded)]
    assert encode_fields(list(decoded)) == cut


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_frames_are_put_together_from_any_pieces(
    sent: list[tuple[int, int, bytes]], sizes: list[int]
) -> None:
    stream = b"".join(encode(*frame) for frame in sent)
    reader, received, at, turn = FrameReader(), [], 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        received += reader.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert received == sent


@given(FRAMES, FRAMES)
def test_an_unfinished_frame_waits(
    first: list[tuple[int, int, bytes]], second: list[tuple[int, int, bytes]]
) -> None:
    stream = b"".join(encode(*frame) for frame in first + second)
    for cut in range(0, len(stream) + 1, max(1, len(stream) // 7)):
        reader = FrameReader()
        assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == first + second


@given(st.binary(max_size=100))
def test_any_bytes_are_frames_or_torn(data: bytes) -> None:
    reader = FrameReader()
    try:
        received = reader.feed(data)
    except TornFrame:
        return
    rebuilt = b"".join(encode(*frame) for frame in received)
    assert data.startswith(rebuilt)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=100))
def test_data_frames(request_id: int, offset: int, data: bytes) -> None:
    ((kind, got_id, body),) = FrameReader().feed(encode_data(request_id, offset, data))
    assert (kind, got_id, split_data(body)) == (Type.DATA, request_id, (offset, data))


def test_credit_frames() -> None:
    ((kind, request_id, body),) = FrameReader().feed(encode_credit(7, 123))
    assert (kind, request_id, number(body)) == (Type.CREDIT, 7, 123)


@pytest.mark.parametrize(
    "header", [b"\xff" * 12, b"\x01\x00\x10\x00" + bytes(8), bytes(6) + b"\x01" + bytes(5)]
)
def test_a_header_that_lies_is_torn(header: bytes) -> None:
    with pytest.raises(TornFrame):
        FrameReader().feed(header)


def test_a_body_has_a_limit() -> None:
    encode(1, 1, bytes(BODY_BYTES_MAX))
    with pytest.raises(ValueError, match="too long"):
        encode(1, 1, bytes(BODY_BYTES_MAX + 1))


@pytest.mark.parametrize("value", [b"", b"1234567", b"123456789"])
def test_a_number_has_eight_bytes(value: bytes) -> None:
    with pytest.raises(TornFrame):
        number(value)


def test_a_data_body_has_an_offset() -> None:
    with pytest.raises(TornFrame):
        split_data(b"1234567")


def test_names_of_odd_bytes_come_back_as_they_were() -> None:
    ((_, value),) = decode_fields(encode_fields([(Tag.PATH, "a\udcff")]))
    assert value == b"a\xff"


@pytest.mark.parametrize(("enum", "prefix"), [(Type, "T"), (Tag, "F"), (Code, "E")])
def test_the_numbers_are_those_of_the_guest(enum: type[Type] | type[Tag] | type[Code], prefix: str) -> None:
    found = dict(re.findall(rf"^\s+{prefix}_(\w+) = (\d+),", HEADER.read_text(), re.MULTILINE))
    assert {name: int(value) for name, value in found.items()} == {item.name: item.value for item in enum}


@pytest.mark.parametrize("name", ["PROTOCOL_VERSION", "WINDOW_BYTES"])
def test_the_limits_are_those_of_the_guest(name: str) -> None:
    match = re.search(rf"#define {name} (\d+)", HEADER.read_text())
    assert match is not None
    assert int(match[1]) == getattr(frames, name)
