"""The conversation of `octavo run MODEL`: a line in, a reply out, until /bye."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Unpack, cast

from octavo.cli.run import speeds
from octavo.errors import ContextFullError, OctavoError, UsageError
from octavo.runtime import GenerateOptions, Generation, Model, SamplingParams

HELP = """\
/help              this list
/reset             forget the conversation
/system [TEXT]     set the system message (without TEXT: remove it) and forget the conversation
/set NAME VALUE    max_tokens, temperature, top_k, top_p, min_p, repeat_penalty or seed; without a value: what is set
/stats             print speeds after each reply, or stop doing so
/bye               leave (or Ctrl-D)
Ctrl-C stops a reply. Three double quotes start and end a message of several lines.
"""
SETTINGS: dict[str, type] = {
    "max_tokens": int, "temperature": float, "top_k": int, "top_p": float, "min_p": float,
    "repeat_penalty": float, "seed": int,
}  # fmt: skip


def read_line(prompt: str) -> str | None:
    """A line that the user types; None at the end of input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives input() history and editing)
    try:
        return input(prompt)
    except EOFError:
        return None


class Chat:
    """A conversation with a model. `read` gives a line for a prompt, None at the end; `write` shows text."""

    def __init__(
        self,
        model: Model,
        read: Callable[[str], str | None],
        write: Callable[[str], None],
        *,
        raw: bool = False,
        stats: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> None:
        self._model, self._read, self._write = model, read, write
        self._raw, self._stats, self._options = raw, stats, options
        self._messages: list[dict[str, str]] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: write(HELP),
            "/?": lambda _: write(HELP),
            "/reset": lambda _: self._reset(),
            "/system": self._set_system,
            "/set": self._set,
            "/stats": lambda _: self._toggle_stats(),
        }

    def loop(self) -> None:
        """Talk until /bye or the end of input."""
        self._write("/help lists what you can do here; /bye leaves.\n")
        while True:
            try:
                line = self._read_message()
            except KeyboardInterrupt:
                self._write("\n/bye or Ctrl-D leaves.\n")
                continue
            if line is None:
                self._write("\n")
                return
            if line.strip() in ("/bye", "/exit", "/quit"):
                return
            try:
                self._handle(line)
            except OctavoError as error:
                self._write(f"octavo: error: {error}\n")

    def _read_message(self) -> str | None:
        line = self._read(">>> ")
        if line is None or not line.startswith('"""'):
            return line
        lines = [line.removeprefix('"""')]
        while not lines[-1].endswith('"""') or (len(lines) == 1 and not lines[0]):
            more = self._read("... ")
            if more is None:
                break
            lines.append(more)
        return "\n".join(lines).removesuffix('"""').strip("\n")

    def _handle(self, line: str) -> None:
        name, _, rest = line.strip().partition(" ")
        if name in self._commands:
            self._commands[name](rest.strip())
        elif name.startswith("/") and name[1:].isalpha():
            raise UsageError(f"no command {name} (allowed: {', '.join(self._commands)}, /bye)")
        elif line.strip():
            self._ask(line)

    def _ask(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        try:
            self._reply(self._generate(text))
        except ContextFullError as error:
            raise ContextFullError(f"{error}; /reset starts afresh") from None
        finally:
            if self._messages and self._messages[-1]["role"] == "user":
                self._messages.pop()  # no reply came of it

    def _generate(self, text: str) -> Generation:
        if self._raw or self._model.template is None:
            return self._model.generate(text, raw=True, **self._options)
        return self._model.generate(self._messages, **self._options)

    def _reply(self, generation: Generation) -> None:
        try:
            for piece in generation:
                self._write(piece)
        except KeyboardInterrupt:
            generation.close()
        finally:
            if generation.text_so_far:
                self._messages.append({"role": "assistant", "content": generation.text_so_far})
            self._write("\n")
        if self._stats:
            self._write(f"({speeds(generation)})\n")

    def _reset(self) -> None:
        self._messages.clear()
        self._write("The conversation is forgotten.\n")

    def _set_system(self, text: str) -> None:
        self._options["system"] = text or None
        self._messages.clear()
        self._write("The system message is set.\n" if text else "The system message is removed.\n")

    def _set(self, text: str) -> None:
        if not text:
            shown = [f"{name} {value}\n" for name, value in self._options.items() if name in SETTINGS]
            self._write("".join(shown) or "Nothing is set.\n")
            return
        name, _, value = text.partition(" ")
        if name not in SETTINGS:
            raise UsageError(f"no setting {name!r} (allowed: {', '.join(SETTINGS)})")
        try:
            number = SETTINGS[name](value)
        except ValueError:
            raise UsageError(f"{name} can't be {value!r} (allowed: a number)") from None
        if name != "max_tokens":
            SamplingParams(**{name: number})  # raises for a value out of range
        elif number < 0:
            raise UsageError(f"max_tokens can't be {number} (allowed: 0 or more)")
        self._options = cast(GenerateOptions, {**self._options, name: number})
        self._write(f"{name} is {number}.\n")

    def _toggle_stats(self) -> None:
        self._stats = not self._stats
        self._write(f"Speeds are {'shown' if self._stats else 'not shown'}.\n")
