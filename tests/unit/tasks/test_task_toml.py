from __future__ import annotations

import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloche.tasks.toml import TomlError, decode, parse


def lines(text: str) -> dict[tuple[str | int, ...], int]:
    return parse(text).lines


def test_keys_and_tables_have_their_lines() -> None:
    text = 'a = 1\n\n[environment]\n# cpus = 9\ncpus = 2 # two\n[agent]\nuser = "x"\n'
    assert lines(text) == {
        ("a",): 1,
        ("environment",): 3,
        ("environment", "cpus"): 5,
        ("agent",): 6,
        ("agent", "user"): 7,
    }


@pytest.mark.parametrize(
    ("before", "path"),
    [
        ('s = """\n[fake]\nx = 1\n"""\n', ("k",)),
        ("s = '''\n[fake]\n'''\n", ("k",)),
        ('s = """a""""\n', ("k",)),
        ("s = [\n  1, # ]\n  2,\n]\n", ("k",)),
        ('s = "# not a comment"\n', ("k",)),
        ('s = "\\"["\n', ("k",)),
        ("s = '['\n", ("k",)),
        ("s = {a = [1], b = {c = 1}}\n", ("k",)),
        ("[t]\ns = 1\n", ("t", "k")),
        ('["t.u"]\ns = 1\n', ("t.u", "k")),
        ('["t]"]\ns = 1\n', ("t]", "k")),
        ("[ t . u ]\n", ("t", "u", "k")),
        ("[[s]]\n[[s]]\nx = 1\n", ("s", 1, "k")),
        ("[[s]]\n[s.agent]\n", ("s", 0, "agent", "k")),
        ("[[s]]\n[[s.t]]\n[[s]]\n[[s.t]]\n", ("s", 1, "t", 0, "k")),
        ("", ("k",)),
        ("\r\n\r\n", ("k",)),
    ],
)
def test_what_stands_before_a_key_does_not_mislead(before: str, path: tuple[str | int, ...]) -> None:
    text = before.replace("\r\n", "\n") + "k = 1\n"
    assert lines(text)[path] == text.count("\n")


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a.b", ("a", "b")),
        ('"a=b"', ("a=b",)),
        ("'a.b'", ("a.b",)),
        ('"a\\u0041"', ("aA",)),
        ('a."b"', ("a", "b")),
    ],
)
def test_keys_of_every_spelling_are_found(key: str, path: tuple[str, ...]) -> None:
    assert lines(f"\n{key} = 1\n")[path] == 2


def test_a_key_without_a_line_has_that_of_its_table() -> None:
    document = parse("x = 1\n[t]\nu = {v = 1, w = 2}\n")
    assert document.line(("t", "u", "w")) == 3
    assert document.line(("t", "gone")) == 2
    assert document.line(("nowhere", "at", "all")) == 1


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a = \n", 1, 5),
        ("a = 1\nb = [1,\n", 3, 1),
        ('a = "x', 1, 7),
        ("a = 1\na = 2\n", 2, 6),
        ("[t]\n[t]\n", 2, 3),
        ("a = 1\n\n  = 3\n", 3, 3),
    ],
)
def test_an_error_has_line_and_column(text: str, line: int, column: int) -> None:
    with pytest.raises(TomlError) as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert "line" not in str(caught.value)


def test_deep_nesting_and_impossible_values_are_errors() -> None:
    for text in ("a = " + "[" * 50_000, "a = " + "9" * 5000, "a = 2024-02-31"):
        with pytest.raises(TomlError):
            parse(text)


def test_bytes_that_are_no_text_are_located() -> None:
    with pytest.raises(TomlError, match="0xff") as caught:
        decode("ä = 1\nü = ".encode() + b"\xff\n")
    assert (caught.value.line, caught.value.column) == (2, 5)
    with pytest.raises(TomlError, match="byte order mark"):
        decode(b"\xef\xbb\xbfa = 1\n")
    assert decode(b"a\r\nb\r\n") == "a\nb\n"


@given(st.text() | st.text(alphabet="ab.=[]{}\"'\\#\n 1,-_tuU0"))
@example('a = """\\""""')
@example("[[a]]\n[a.b]\n[[a]]\n")
@example("a={b={c=[{d=1}]}}")
def test_any_text_parses_or_is_a_located_error(text: str) -> None:
    try:
        document = parse(text)
    except TomlError as error:
        position = (error.line, error.column)
    else:
        position = (1, 1)
        assert document.data == tomllib.loads(text)
        assert all(1 <= line <= text.count("\n") + 1 for line in document.lines.values())
    assert min(position) >= 1


KEYS = st.text(alphabet="abc", min_size=1, max_size=3)
VALUES = st.sampled_from(
    ["1", '"x"', "[1, 2]", "[\n1,\n2\n]", '"""\n[a]\nb = 1\n"""', "'''\n#\n'''", "{a = 1}", "true", "1.5"]
)


@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=4), max_size=4))
def test_every_key_of_a_written_document_is_found_on_its_line(tables: dict[str, dict[str, str]]) -> None:
    text, expected = "", {}
    for name, values in tables.items():
        expected[name,] = text.count("\n") + 1
        text += f"[{name}]\n"
        for key, value in values.items():
            expected[name, key] = text.count("\n") + 1
            text += f"{key} = {value}\n"
    assert lines(text) == expected


@given(st.binary())
def test_any_bytes_decode_or_are_a_located_error(content: bytes) -> None:
    try:
        text, position = decode(content), (1, 1)
    except TomlError as error:
        text, position = "", (error.line, error.column)
    assert "\r\n" not in text
    assert min(position) >= 1
