"""The client against a guest that says anything: a typed error or a sound answer, in bounded memory."""

# ruff: noqa: ASYNC240  # a test may block its own loop

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloche.core.errors import ClocheError, SandboxLost
from cloche.sandbox.guest.connection import HELD_BYTES_MAX, GuestConnection
from cloche.sandbox.guest.frames import FrameReader, Tag, Type, encode, encode_data, encode_fields
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, ImageConfig, SandboxSpec

MIB = 1 << 20
QUIET_S = 0.002
WINDOW = 1 << 16


class HostileGuest(asyncio.Transport):
    """The other side of a connection: answers each request with what was drawn, then hangs up."""

    def __init__(self, protocol: GuestConnection, answers: list[list[tuple[int, int, bytes]]]) -> None:
        super().__init__()
        self._protocol = protocol
        self._answers = answers
        self._reader = FrameReader()
        self._gone = False
        self._asked = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        loop = asyncio.get_running_loop()
        for kind, request_id, _ in self._reader.feed(bytes(data)):
            if kind in {Type.RESET, Type.DATA, Type.FINISH, Type.CREDIT}:
                continue
            self._asked += 1
            for answer, other_id, body in self._answers.pop(0) if self._answers else ():
                frame = encode(answer, other_id or request_id, body)
                loop.call_soon(self._protocol.data_received, frame)
            loop.call_later(QUIET_S, self._hang_up_if_quiet, self._asked)

    def _hang_up_if_quiet(self, asked: int) -> None:
        if asked == self._asked:
            self.close()

    def is_closing(self) -> bool:
        return self._gone

    def close(self) -> None:
        if not self._gone:
            self._gone = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


def sandbox_over(answers: list[list[tuple[int, int, bytes]]]) -> tuple[Sandbox, GuestConnection]:
    connection = GuestConnection(asyncio.get_running_loop())
    connection.connection_made(HostileGuest(connection, answers))

    async def nothing(_: str) -> bool:
        return False

    spec = SandboxSpec()
    return Sandbox(spec=spec, config=ImageConfig(), connection=connection, deleter=nothing), connection


numbers = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1))
values = st.one_of(numbers, st.binary(max_size=40), st.sampled_from(["..", "a", "a/b", "/", "", "n\0l", "ü"]))
fields = st.lists(st.tuples(st.sampled_from(list(Tag)), values), max_size=8)
entries = st.lists(fields.map(lambda each: (Tag.ENTRY, encode_fields(each))), max_size=3)
bodies = st.one_of(
    fields.map(encode_fields),
    st.tuples(fields, entries).map(lambda pair: encode_fields([*pair[0], *pair[1]])),
    st.binary(max_size=60),
)
kinds = st.one_of(
    st.sampled_from([Type.REPLY, Type.REPLY, Type.REPLY, Type.ERROR, Type.DATA, Type.CREDIT]),
    st.integers(0, 65535),
)
frames = st.tuples(kinds, st.sampled_from([0, 0, 0, 0, 1, 2, 7]), bodies)
conversations = st.lists(st.lists(frames, min_size=1, max_size=3), max_size=6)


async def download(sandbox: Sandbox) -> object:
    with TemporaryDirectory() as folder:
        target = Path(folder) / "inner" / "got"
        await sandbox.download("/x", target, limit_bytes=MIB)
        beside = {path.name for path in Path(folder).iterdir()}
        assert beside <= {"inner"}
        return None


REQUESTS: dict[str, Callable[[Sandbox], Awaitable[object]]] = {
    "ping": lambda sandbox: sandbox.ping(),
    "stat": lambda sandbox: sandbox.stat("/x"),
    "exists": lambda sandbox: sandbox.exists("/x"),
    "list": lambda sandbox: sandbox.list_dir("/x"),
    "read": lambda sandbox: sandbox.read_file("/x"),
    "write": lambda sandbox: sandbox.write_file("/x", b"y" * 1000),
    "commands": lambda sandbox: sandbox.commands(),
    "run": lambda sandbox: sandbox.run(Command(argv=("x",), grace_s=0)),
    "follow": lambda sandbox: sandbox.run(Command(argv=("x",), grace_s=0), on_output=lambda _: None),
    "input": lambda sandbox: sandbox.run(Command(argv=("x",), stdin=b"z" * 1000, grace_s=0)),
    "kill all": lambda sandbox: sandbox.kill_all(),
    "download": download,
}


async def ask(name: str, answers: list[list[tuple[int, int, bytes]]]) -> None:
    sandbox, _ = sandbox_over(answers)
    try:
        await REQUESTS[name](sandbox)
    except ClocheError as error:
        assert str(error)  # noqa: PT017  # it may be refused, or not
    finally:
        await sandbox.close()


@pytest.mark.fault("hostile-guest")
@pytest.mark.parametrize("name", REQUESTS)
@settings(max_examples=25)
@given(conversation=conversations)
def test_whatever_a_guest_answers_is_told_in_words(
    name: str, conversation: list[list[tuple[int, int, bytes]]]
) -> None:
    asyncio.run(ask(name, list(conversation)))


@settings(max_examples=300)
@given(pieces=st.lists(st.binary(max_size=64), max_size=8))
def test_bytes_that_are_no_frames_end_the_connection_and_nothing_else(pieces: list[bytes]) -> None:
    async def talk() -> None:
        _, connection = sandbox_over([])
        call = connection.call(Type.PING)
        for piece in pieces:
            if not connection.lost:
                connection.data_received(piece)
        connection._fail("over")
        with pytest.raises((ClocheError, Exception)):  # noqa: PT012  # a refusal, a loss, or an answer
            await call.result()
            raise SandboxLost

    asyncio.run(talk())


def flooded(*floods: tuple[int, bytes], kind: Type = Type.READ, times: int = 1) -> tuple[str, int]:
    """Send the same data over and over; return why the connection ended, and the bytes held at most."""

    async def talk() -> tuple[str, int]:
        _, connection = sandbox_over([])
        call = connection.call(kind, window=WINDOW)
        tracemalloc.start()
        offset = 0
        for _ in range(times):
            if connection.lost:
                break
            for step, data in floods:
                offset += step
                connection.data_received(encode_data(call.id, offset, data))
                offset += len(data)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        connection._fail("it held out")
        with pytest.raises(SandboxLost) as caught:
            await call.result()
        return str(caught.value), held

    return asyncio.run(talk())


@pytest.mark.fault("guest-floods")
@pytest.mark.parametrize(
    ("floods", "message"),
    [
        ([(0, bytes(32768))], "more data than there was credit for"),
        ([(0, b"x")], "more data than there was credit for"),
        ([(1, b"x")], "more pieces"),
        ([(0, b"xy"), (-1, b"z")], "goes back"),
    ],
    ids=["large", "small", "holes", "backwards"],
)
def test_a_flood_without_credit_ends_the_connection_in_bounded_memory(
    floods: list[tuple[int, bytes]], message: str
) -> None:
    said, held = flooded(*floods, times=3 * WINDOW)
    assert message in said
    assert held < 2 * MIB


def test_a_request_that_wants_no_data_is_given_little() -> None:
    said, held = flooded((0, bytes(32768)), kind=Type.PING, times=1000)
    assert "more data" in said
    assert held < 2 * MIB


def test_empty_pieces_cost_nothing() -> None:
    said, held = flooded((0, b""), times=20_000)
    assert "held out" in said
    assert held < MIB


def test_what_is_asked_for_at_a_stroke_is_bounded_too() -> None:
    async def talk() -> str:
        _, connection = sandbox_over([])
        call = connection.call(Type.OUTPUT, window=HELD_BYTES_MAX)
        piece = bytes(32768)
        for n in range(HELD_BYTES_MAX // len(piece) + 1):
            connection.data_received(encode_data(call.id, n * len(piece), piece))
        with pytest.raises(SandboxLost) as caught:
            await call.result()
        return str(caught.value)

    assert "more data" in asyncio.run(talk())


@pytest.mark.fault("listing-without-end")
def test_a_listing_that_goes_round_is_no_listing() -> None:
    round_and_round = encode_fields([(Tag.NEXT, 512)])

    async def talk(name: str) -> None:
        sandbox, _ = sandbox_over([[(Type.REPLY, 0, round_and_round)]] * 10)
        with pytest.raises(ClocheError, match="does not go on"):
            await REQUESTS[name](sandbox)
        await sandbox.close()

    for name in ("list", "commands"):
        asyncio.run(talk(name))
