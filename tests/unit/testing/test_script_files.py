"""Scripts are read strictly: what is wrong is named, with its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.testing.model_server import Script, Turn, load_scripts
from cloche.testing.model_server.script import find_script, load_script

GOOD = """
match = "say hello"
[[turns]]
text = "Let me look."
first_chunk_s = 0.5
calls = [{ name = "bash", arguments = { command = "ls" } }]
[[turns]]
text = "hello"
[turns.fault]
kind = "status"
status = 429
retry_after_s = 2
times = 1
"""


def write(folder: Path, text: str, name: str = "hello.toml") -> Path:
    path = folder / "some-model" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_script_is_named_after_its_folder_and_file(tmp_path: Path) -> None:
    script = load_script(write(tmp_path, GOOD))
    assert (script.model, script.name, script.match) == ("some-model", "hello", "say hello")
    assert script.turns[0].calls[0].arguments == {"command": "ls"}
    assert script.turns[1].fault is not None
    assert script.turns[1].fault.status == 429
    assert [turn.ending for turn in script.turns] == ["tool_calls", "stop"]


def test_a_script_may_name_its_model(tmp_path: Path) -> None:
    assert load_script(write(tmp_path, 'model = "org/m:free"\n' + GOOD)).model == "org/m:free"


@pytest.mark.fault("script-broken")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('match = "x"\n', "`turns`"),
        ('match = ""\n[[turns]]\n', "`match`"),
        ("[[turns]]\n", "`match`"),
        ('match = "x"\nturns = []\n', "`turns`"),
        ('match = "x"\n[[turns]]\ntxet = "y"\n', "`turns.0.txet`"),
        ('match = "x"\n[[turns]]\nusage = "sometimes"\n', "`turns.0.usage`"),
        ('match = "x"\n[[turns]]\n[turns.fault]\nkind = "flood"\n', "`turns.0.fault.kind`"),
        ('match = "x"\n[[turns]]\n[turns.fault]\nkind = "status"\nstatus = 200\n', "`turns.0.fault.status`"),
        ('match = "x"\n[[turns]]\nfirst_chunk_s = -1\n', "`turns.0.first_chunk_s`"),
        ('match = "x"\n[[turns]]\ncalls = [{name="a", id="i"}, {name="b", id="i"}]\n', "share an id"),
        ("match = \n", "line 1"),
        ("match = '\\xff", "cannot be read"),
    ],
)
def test_a_broken_script_says_where(text: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidInput) as caught:
        load_script(path)
    assert said in caught.value.message
    assert caught.value.where == str(path)


def test_a_folder_without_scripts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no script"):
        load_scripts(tmp_path)


def test_all_below_a_folder_are_read(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "b.toml")
    write(tmp_path, GOOD.replace("hello", "bye"), "a.toml")
    assert [script.name for script in load_scripts(tmp_path)] == ["a", "b"]


def test_a_conversation_has_exactly_one_script() -> None:
    turns = (Turn(text="x"),)
    scripts = [
        Script(model="m", name="one", match="apple", turns=turns),
        Script(model="m", name="two", match="pear", turns=turns),
        Script(model="other", name="three", match="apple", turns=turns),
    ]
    assert find_script(scripts, "m", "eat an apple").name == "one"
    with pytest.raises(LookupError, match="no script matches"):
        find_script(scripts, "m", "eat a plum")
    with pytest.raises(LookupError, match="several scripts match the first user message: one, two"):
        find_script(scripts, "m", "apple and pear")
