"""Command lines as people type them who come from other programs: what they are here, by the tables of `names`."""

from __future__ import annotations

import difflib
import logging
import re
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Literal, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from octavo.cli.foreign_options import (
    ANSWERED,
    ANSWERED_OF,
    COMMANDS,
    ELSEWHERE,
    MEANT,
    MODEL_ARGUMENTS,
    MODELS,
    OF_OTHERS,
    OF_SERVE,
    OPTIONS,
    PROMPTS,
    VALUES,
    Option,
)
from octavo.errors import UsageError

ROWS = (*OPTIONS, *OF_SERVE, *OF_OTHERS)
ANSWERS = {name: answer for names, answer in (ANSWERED | ELSEWHERE).items() for name in names.split()}
IDLE = frozenset(name for name, answer in ANSWERS.items() if "leave it out" in answer)
"""Options without which a line does the same."""

SETTING = re.compile(r"\d[\d.e+-]*|on|off|auto|true|false|none|linear|yarn|distribute|isolate|numactl", re.IGNORECASE)
"""What is a value behind one of these."""

VERBOSE = ("-v", "--verbose")
OF_VALUES = ("-ctv", "--cache-type-v")
KINDS = {"str": "TEXT", "int": "N", "float": "NUMBER", "bool": ""}
"""What help calls values, by Python's types."""
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
NEAR = 0.8
"""How alike an option is to the one that is suggested, as difflib counts it."""


def plain(name: str) -> str:
    """An option's name with dashes alone: `--max-tokens` for `--max_tokens`."""
    return name.replace("_", "-") if name.startswith("--") else name


class Names:
    """The options of a command by all of their names: `path` is the command as it is typed, with "octavo".

    `wanted` is told of a `-v`, which stands before commands.
    """

    def __init__(self, path: str, parameters: Sequence[Any], wanted: Callable[[], None] = lambda: None) -> None:
        self._path, self._wanted = path, wanted
        self._own = {name: p for p in parameters for name in (*p.opts, *p.secondary_opts) if name.startswith("-")}
        self._other = {other: row.name for row in reversed(ROWS) if row.name in self._own for other in row.others()}
        self._other = {name: here for name, here in self._other.items() if name not in self._own}
        self._arguments = sum(p.param_type_name == "argument" for p in parameters)
        self._model = any(p.name in MODEL_ARGUMENTS for p in parameters)

    def __contains__(self, name: str) -> bool:
        name = plain(name)
        return name in self._own or name in self._other or self._read(name) is not None or name in OF_VALUES

    def here(self, words: Sequence[str]) -> list[str]:
        """A command line in the names of this command. Raises UsageError for an option that it has under no name."""
        if self._model:
            strange = [word for word in words if _name(word) not in self._own]
            answers = ANSWERED_OF.get(self._path.split()[-1], {})
            for name in filter(answers.__contains__, map(_name, strange)):
                raise UsageError(f"no option {name} here: {answers[name]}")
            self._require_room(strange, words)
            require_arguments(self._path, strange, words)
        rest, made, of_values = deque(words), list[str](), list[str]()
        while rest:
            word = rest.popleft()
            if word == "--":
                return [*made, word, *rest]
            if not re.match(r"--?[a-zA-Z?]", word):
                made.append(word)
                continue
            name, sign, value = word.partition("=")
            if sign:
                rest.appendleft(value)
            name = plain(name)
            if name in OF_VALUES and "--cache-type" in self._own:
                of_values.append(self._value(name, rest))
            elif name == "--lora-scaled" and "--lora" in self._own:
                made += ["--lora", self._scaled(rest)]
            elif name not in self._own and (kinds := self._read(name)) is not None:
                made += self._valued(name, kinds, self._value(name, rest))
            else:
                made += self._option(name, bool(sign), rest)
        self._require_one_type(made, of_values)
        return made

    def _require_room(self, strange: Sequence[str], words: Sequence[str]) -> None:
        """Raises UsageError for a model behind an option where all arguments are there, the model too."""
        first = next((name for name in map(_name, strange) if name in MODELS), None)
        given = list(takewhile(lambda word: not word.startswith("-"), words))
        if first is not None and len(given) == self._arguments > 2:
            raise UsageError(f"no option {first} here: the model is the first argument, here {given[0]}: leave it out")

    def _option(self, typed: str, has_value: bool, rest: deque[str]) -> list[str]:
        """An option of the command, with its values, which are taken from what follows."""
        name = typed
        if name not in self._own:
            name = self._other.get(name, name)
        parameter = self._own.get(name)
        if parameter is None:
            return self._others(name, rest)
        if getattr(parameter, "is_flag", False):
            return [self._flag(parameter, name, rest.popleft())] if has_value else [name]
        meant = next((MEANT[opt] for opt in parameter.opts if opt in MEANT), {})
        values = [self._value(typed, rest) for _ in range(parameter.nargs)]
        if len(values) == 1 and values[0].lower() in meant:
            return meant[values[0].lower()].split()
        return [name, *values]

    def _others(self, name: str, rest: deque[str]) -> list[str]:
        """What is not an option under this name: a short one with its number, flags in one word, or a mistake."""
        if name in VERBOSE:
            self._wanted()
            return []
        short, tail = name[:2], name[2:]
        if not name.startswith("--") and tail:
            parameter = self._own.get(short)
            if parameter is not None and re.match(r"-?\d", tail):
                rest.appendleft(tail)
                return self._option(short, False, rest)
            if all(getattr(self._own.get(f"-{letter}"), "is_flag", False) for letter in name[1:]):
                return [f"-{letter}" for letter in name[1:]]
        known = [*self._own, *self._other]
        if name in (*MODELS, *PROMPTS) and not self._model:
            raise UsageError(f"No such option: {name}")
        raise unknown(name, self._path, known, [word for word in rest if _name(word) not in known])

    def _flag(self, parameter: Any, name: str, value: str) -> str:
        """A flag that is given as `--flag=true` or `--flag=false`."""
        sides = {"true": name, "false": next(iter(parameter.secondary_opts), "")}
        if value.lower() not in sides or not sides[value.lower()]:
            raise UsageError(f"{name} takes no value, and has {value!r}")
        return sides[value.lower()]

    def _read(self, name: str) -> dict[str, str] | None:
        """What values of such an option stand for in this command."""
        for kinds in VALUES.get(name, ()):
            if all(words.split()[0] in self._own for words in kinds.values() if words):
                return dict(kinds)
        return None

    def _valued(self, name: str, kinds: dict[str, str], value: str) -> list[str]:
        if value not in kinds:
            raise UsageError(f"{name} is {value!r} (allowed: {', '.join(kinds)})")
        return kinds[value].split()

    def _value(self, name: str, rest: deque[str]) -> str:
        if not rest:
            raise UsageError(f"Option {name!r} requires an argument.")
        return rest.popleft()

    def _scaled(self, rest: deque[str]) -> str:
        """llama.cpp's two forms of an adapter with a scale: `FILE SCALE`, and `FILE:SCALE`."""
        path = self._value("--lora-scaled", rest)
        number = re.compile(r"-?\d*\.?\d+")
        if rest and number.fullmatch(rest[0]):
            return f"{path}={rest.popleft()}"
        file, sign, scale = path.rpartition(":")
        return f"{file}={scale}" if sign and number.fullmatch(scale) else path

    def _require_one_type(self, made: Sequence[str], of_values: Sequence[str]) -> None:
        """Keys and values have one type here. Raises UsageError for another one of values."""
        names = ("--cache-type", *self._own["--cache-type"].opts) if of_values else ()
        keys = [made[i + 1] for i, word in enumerate(made[:-1]) if word in names] or ["f16"]
        for kind in of_values:
            if kind != keys[-1]:
                raise UsageError(
                    f"keys are {keys[-1]} and values {kind}: use one type, as in --cache-type {kind}"
                )


def require_arguments(path: str, strange: Sequence[str], words: Sequence[str]) -> None:
    """Raises UsageError for a model or a prompt behind an option, with the command line in which it is an argument.

    `strange` are those of the words that the command has no option for.
    """
    rest, found = list(words), dict[str, str]()
    first = next((word for word in strange if word in (*MODELS, *PROMPTS)), None)
    for kind, names in (("model", MODELS), ("prompt", PROMPTS)):
        place = next((i for i, word in enumerate(rest[:-1]) if word in names and word in strange), None)
        if place is not None:
            _, found[kind] = rest.pop(place), rest.pop(place)
    if first is not None and found:
        after = 0 if "model" in found else 1
        rest, idle = without_idle(rest, strange)
        made = [*rest[:after], *found.values(), *rest[after:]]
        more = f", without {_listed(idle)}, which it does not need" if idle else ""
        raise UsageError(f"no option {first} here: write `{path} {shlex.join(made)}`{more}")


def without_idle(words: Sequence[str], strange: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line without those of the words `strange` that it needs not, and what these are."""
    rest, kept, idle = deque(words), list[str](), list[str]()
    while rest:
        word = rest.popleft()
        if word == "--":
            return [*kept, word, *rest], idle
        if _name(word) not in IDLE or word not in strange:
            kept.append(word)
            continue
        idle.append(_name(word))
        if rest and "=" not in word and SETTING.fullmatch(rest[0]):
            rest.popleft()
    return kept, idle


def _name(word: str) -> str:
    return plain(word.partition("=")[0])


def _listed(names: Sequence[str]) -> str:
    *others, last = dict.fromkeys(names)
    return f"{', '.join(others)} and {last}" if others else last


def unknown(name: str, command: str, names: Sequence[str], strange: Sequence[str] = ()) -> UsageError:
    """The error of an option that is not there: what to write instead, or which one is nearly the same.

    `strange` are words after it that the command has no option for.
    """
    if name in ANSWERS:
        idle = [other for other in without_idle(strange, strange)[1] if other != name] if name in IDLE else []
        too = f" ({_listed(idle)} too)" if idle else ""
        return UsageError(f"no option {name} here: {ANSWERS[name].format(command)}{too}")
    near = difflib.get_close_matches(name, names, 1, NEAR)
    return UsageError(f"No such option: {name}" + (f" (did you mean {near[0]}?)" if near else ""))


def in_words(parameters: Sequence[Any]) -> list[Any]:
    """Parameters whose help says TEXT, N and NUMBER for values, where Typer has the names of Python's types."""
    for parameter in parameters:
        shown = getattr(parameter, "display_type", None)  # not in every release, nor needed there
        if shown is not None and "display_type" not in vars(parameter):
            names = {} if parameter.param_type_name == "argument" else KINDS
            parameter.display_type = lambda ctx, shown=shown, names=names: _in_words(shown(ctx), names)
        reader = getattr(parameter, "get_runtime_param", None)  # as above
        if reader is not None and "get_runtime_param" not in vars(parameter):
            parameter.get_runtime_param = partial(_Reader, reader)
    return list(parameters)


class _Reader:
    """Reads plain values at once. For all others Typer reads them, which imports pydantic: a twentieth of a start."""

    def __init__(self, reader: Callable[[], Any]) -> None:
        self._reader = reader

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """What Typer makes of a value."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        kind, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        limits = (getattr(info, name, None) for name in ("min", "max", "parser", "click_type"))
        found = None if any(limit is not None for limit in limits) else _plain_value(kind, value)
        return self._reader().coerce(value, param=param, ctx=ctx) if found is None else found


def _plain_value(kind: Any, value: Any) -> Any:
    """A value that is of its kind, or plain text for one; None where that is not so."""
    if kind in (int, float) and isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value, re.ASCII):
        return kind(value)
    if kind is float and isinstance(value, str) and re.fullmatch(r"-?\d{1,9}\.\d{1,9}", value, re.ASCII):
        return float(value)
    if kind in (str, int, float) and type(value) is kind:
        return value
    if kind == list[str] and isinstance(value, list | tuple) and value and all(type(word) is str for word in value):
        return list(value)
    return value if get_origin(kind) is Literal and value in get_args(kind) else None


def _in_words(shown: str, names: Mapping[str, str]) -> str:
    kind = re.sub(r"list\[(.*)\]", r"\1", shown.strip("<>")).removesuffix(" range")
    return names.get(kind, "" if kind in KINDS else kind)


class Command(TyperCommand):
    """A command that takes options by others' names too."""

    def get_params(self, ctx: Any) -> list[Any]:
        return in_words(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            args = Names(ctx.command_path, self.get_params(ctx), say_more).here(args)
        return super().parse_args(ctx, args)


class Commands(TyperGroup):
    """Commands; what others call one is answered by the one here."""

    def get_params(self, ctx: Any) -> list[Any]:
        return in_words(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            known = {name for p in self.get_params(ctx) for name in (*p.opts, *p.secondary_opts)}
            if self.name == "octavo" and args and args[0] in (*MODELS, *PROMPTS):
                require_arguments("octavo run", args, args)
            for word in args:
                if not word.startswith("-") or plain(word.partition("=")[0]) in ("--help", "-h"):
                    break
                if (name := plain(word.partition("=")[0])) not in known:
                    raise _before(name, known, self.name or "octavo")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if self.name == "octavo" and name in COMMANDS and name not in self.commands:
            raise UsageError(f"No such command '{name}': there is {COMMANDS[name]}")
        if self.name != "octavo" and not name.startswith("-") and name not in self.commands:
            raise UsageError(f"No such command '{ctx.command_path} {name}' (allowed: {', '.join(self.commands)})")
        return super().resolve_command(ctx, args)


def _before(name: str, known: set[str], group: str) -> UsageError:
    """The error of an option that stands before the command."""
    if name not in ANSWERS and any(name in (*row.own, *row.others()) for row in ROWS):
        return UsageError(f"{name} comes before the command: put it after, as in `octavo run MODEL {name} ...`")
    return unknown(name, "octavo run" if group == "octavo" else f"octavo {group} COMMAND", sorted(known))


def say_more() -> None:
    """As `octavo -v` does: also say what is chosen and why."""
    logging.getLogger("octavo").setLevel(logging.INFO)


class App(typer.Typer):
    """Typer, whose commands are those of this file."""

    def command(self, name: str | None = None, **more: Any) -> Callable[[Decorated], Decorated]:
        return super().command(name, cls=Command, **more)


def options_of(argument: str) -> list[Option]:
    """The rows of an argument's name in Python, where that of windows of a text is `context`."""
    argument = "n_ctx" if argument == "context" else argument
    names = ((row, f"{row.python} {row.name[2:]}".replace("-", "_")) for row in ROWS)
    return [row for row, words in names if argument and re.search(rf"\b{argument}\b", words)]
