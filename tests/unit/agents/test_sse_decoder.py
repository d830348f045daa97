"""Events come out the same however the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.agents import sse
from cloche.agents.sse import EventDecoder, EventTooLong


def decode(*chunks: bytes) -> list[str]:
    decoder = EventDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: one\n\ndata: two\n\n", ["one", "two"]),
        (b"data:one\r\n\r\n", ["one"]),
        (b"data: one\r\rx", ["one"]),
        (b"data: one\ndata: more\n\n", ["one\nmore"]),
        (b": still there\n\ndata: x\n\n", ["x"]),
        (b"event: message\nid: 7\nretry: 10\ndata: x\n\n", ["x"]),
        (b"data\n\n", [""]),
        (b"data: not ended", []),
        (b"data:  two spaces\n\n", [" two spaces"]),
        ("data: é👩🏽‍🌾\n\n".encode(), ["é👩🏽‍🌾"]),
        (b"data: \xff\n\n", ["\ufffd"]),
        (b"<html>\nno events\n\n", []),
    ],
)
def test_events(data: bytes, events: list[str]) -> None:
    assert decode(data) == events


LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=12)


@given(st.lists(LINES, max_size=6), st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_a_cut_anywhere_changes_nothing(texts: list[str], end: str, data: st.DataObject) -> None:
    raw = "".join(f": note{end}data: {text}{end}{end}" for text in texts).encode() + b"\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    edges = [0, *cuts, len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(edges)]
    assert decode(*pieces) == texts


@pytest.mark.fault("model-stream-endless-event")
@pytest.mark.parametrize("piece", [b"data: xxxxxxxxxxxxxxxxxxxx", b"data: xxxxxxxxxxxxxxxxxxxx\n"])
def test_an_event_without_an_end_is_bounded(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LINE_LIMIT_BYTES", 1000)
    with pytest.raises(EventTooLong):
        decode(*[piece] * 100)
