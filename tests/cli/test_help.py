"""What help says of options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import octavo as package
from tests.cli.conftest import Run

SAID = {
    ("run",): (
        "Threads to use (default: all cores).", "(default: the model's, or 0.95)", "(default: the model's, up to 4096)",
    ),
    ("profile",): ("Threads to use (default: all cores).", "(default: with --device auto what fits, with gpu all)"),
    ("report",): ("Threads to use (default: all cores).",),
    ("bench", "model"): ("Threads to use (default: all cores).", "(default: this one)"),
    ("eval", "ppl"): ("Threads to use (default: all cores).", "(default: the whole text)"),
}


@pytest.mark.parametrize("command", SAID, ids=" ".join)
def test_defaults_are_told(octavo: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    shown = octavo(*command, "--help").out
    assert [said for said in SAID[command] if said not in shown] == []


@pytest.mark.parametrize("command", [["run"], ["serve"], ["quantize"], ["eval", "kl"], ["rank"], []], ids=" ".join)
def test_values_have_no_names_of_pythons(octavo: Run, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = octavo(*command, "--help").out
    assert re.findall(r"<(?:str|int|float|bool|list)\b[^>]*>|\{[a-z]\w*\}", shown) == []
    if command == ["run"]:
        assert re.search(r"--max-tokens +-n +N +Maximum number", shown)
        assert re.search(r"--device +auto\|cpu\|gpu\|reference +Where", shown)


@pytest.mark.parametrize("command", ["run", "serve", "embed", "rank"])
def test_options_stand_where_they_belong(octavo: Run, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    panels = dict(re.findall(r"╭─ ([A-Z].*?) ─+╮\n(.*?)\n╰", octavo(command, "--help").out, re.DOTALL))
    place = re.findall(r"│ (--[a-z-]+)", panels["Where to run"])
    assert {"--ctx-size", "--device", "--gpu-layers", "--threads", "--lora"} <= set(place)
    assert "--device" not in panels["Options"]


def test_an_argument_that_may_be_left_out_has_brackets_once(octavo: Run) -> None:
    assert "[PROMPT]..." in octavo("run", "--help").out
    assert "[[" not in octavo("run", "--help").out + octavo("warm", "--help").out


def test_a_terminal_without_a_size(octavo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert "Download a model" in octavo("pull", "--help").out


def test_options_have_their_own_names() -> None:
    """Some releases of Typer name an option by what its help calls the value, where it has no name of its own."""
    from typer.main import get_command

    from octavo.cli import app

    names = [name for name in _option_names(get_command(app)) if name.startswith("--")]
    assert len(names) > 100
    assert [name for name in names if name != name.lower()] == []


def _option_names(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts
    for below in getattr(command, "commands", {}).values():
        yield from _option_names(below)


def test_every_command_with_a_model_takes_the_same_options() -> None:
    from typer.main import get_command

    from octavo.cli import app
    from octavo.cli.foreign_options import OF_SERVE, OPTIONS

    commands: dict[str, Any] = dict(get_command(app).commands)  # type: ignore[attr-defined]
    commands |= {f"eval {name}": command for name, command in commands["eval"].commands.items()}
    names = {name: {opt for p in command.params for opt in p.opts} for name, command in commands.items()}
    for name in ("run", "eval ppl", "eval kl", "eval demo", "profile"):
        assert {"--gpu-layers", "--cache-type", "--threads", "-t", "--device"} <= names[name], name
    for name in ("run", "inspect", "imatrix", "report", "eval ppl", "eval kl"):
        assert {"--ctx-size", "-c"} <= names[name], name
    assert {option.name for option in OPTIONS} <= names["run"]
    assert {name for option in OF_SERVE for name in option.own} <= names["serve"]


def test_the_version(octavo: Run) -> None:
    assert octavo("--version").out == f"octavo {package.__version__}\n"


def test_completion(octavo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_OCTAVO_COMPLETE", "complete_bash"), ("COMP_WORDS", "octavo qu"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    assert octavo().out == "quantize\n"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--temp", "abc", ""), ("--max-tokens", "-3", "0"), ("--top-k", "1.5", ""), ("--cache-type", "q4_0", "q8_0")],
)
def test_values_are_refused_in_plain_words(octavo: Run, option: str, value: str, said: str) -> None:
    error = octavo("run", "demo", "hi", option, value).error()
    assert option in error
    assert said in error
    assert not any(word in error for word in ("Value error", "Input should", "parse string"))


def test_lines_of_help_end_with_sentences() -> None:
    """Typer keeps ends of lines behind the first paragraph: at a terminal's edge a sentence would end twice."""
    from typer.main import get_command

    from octavo.cli import app

    lines = [line for text in _helps(get_command(app)) for part in text.split("\n\n")[1:] for line in part.split("\n")]
    assert len(lines) > 10
    assert [line for line in lines if not line.strip().endswith((".", ":", "`"))] == []


def _helps(command: Any) -> Iterator[str]:
    yield command.help or ""
    for below in getattr(command, "commands", {}).values():
        yield from _helps(below)


@pytest.mark.parametrize("group", [(), ("eval",), ("bench",)])
def test_a_missing_command_is_said_with_where_to_look(octavo: Run, group: tuple[str, ...]) -> None:
    result = octavo(*group)
    assert result.status == 2
    assert f"`{' '.join(('octavo', *group))} --help` lists them" in result.err
