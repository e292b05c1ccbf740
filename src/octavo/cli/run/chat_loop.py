"""The conversation of `octavo run MODEL`: a line in, a reply out, until /bye."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from octavo.cli.inspect.facts import headline
from octavo.cli.run.line import paths
from octavo.cli.run.reply_printer import begun, encoded, larger_context, pieces, speeds
from octavo.cli.run.screen import Screen, harmless
from octavo.cli.run.settings import KINDS, ChatSettings, known, plain
from octavo.cli.run.transcript import Dialogue
from octavo.errors import ContextFullError, OctavoError, UsageError
from octavo.runtime import GenerateOptions, Generation, Model
from octavo.runtime.options import usual_limit

HELP = """\
/help              this list
/clear             forget the conversation (/reset too)
/system [TEXT]     set the system message (without TEXT: remove it) and forget the conversation
/set               show the settings of replies: temperature, max_tokens, stop, think, ...
/set NAME [VALUE]  show or set one of them; the value `default` unsets it
/regenerate        generate the last reply again
/show              the model, the system message, and how full the context is
/save FILE         write the conversation to a file
/load FILE         go on with a conversation that was saved
/stats             turn speeds after each reply on or off
/bye               leave (or /exit, /quit, Ctrl-D)
Ctrl-C stops a reply. Three double quotes start and end a message of several lines; pasted lines are one message.
"""
LEAVING = ("/bye", "/exit", "/quit")
GREETING = "/help lists what you can do here; /bye leaves.\n"


def _limit(model: Model) -> dict[str, int]:
    most = usual_limit(model.file)
    return {} if most is None else {"max_tokens": most}


Show = Callable[[Model, list[int]], Screen]


class Chat:
    """A conversation with a model. `read` gives a line for a prompt, None at the end; `write` shows text.

    `screen` makes what a reply to a prompt is shown on, if that is not `write` alone.
    """

    def __init__(
        self, model: Model, read: Callable[[str], str | None], write: Callable[[str], None], *, raw: bool = False,
        stats: bool = False, screen: Show | None = None, **options: Unpack[GenerateOptions]
    ) -> None:
        self._model, self._read, self._write = model, read, write
        self._raw, self._stats = raw or model.template is None, stats
        self._screen = screen or (lambda model, tokens: Screen(write, terminal=False))
        self._talk = Dialogue(options.pop("system", None))
        self._settings = ChatSettings(options, {**model.sampling_defaults(), **_limit(model)})
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: write(HELP),
            "/?": lambda _: write(HELP),
            "/clear": lambda _: self._clear(),
            "/reset": lambda _: self._clear(),
            "/system": self._set_system,
            "/set": self._set,
            "/show": lambda _: self._show(),
            "/save": self._save,
            "/load": self._load,
            "/stats": lambda _: self._toggle_stats(),
            "/regenerate": lambda _: self._regenerate(),
        }

    def loop(self) -> None:
        """Talk until /bye or the end of input."""
        self._write(f"{headline(self._model)}\n{GREETING}")
        if self._model.template is None:
            self._write("The model has no chat template: it continues your text, and keeps no conversation.\n")
        while True:
            try:
                line = self._read_message()
            except KeyboardInterrupt:
                self._write("\n/bye or Ctrl-D leaves.\n")
                continue
            if line is None:
                self._write("\n")
                return
            if line.strip() in LEAVING:
                return
            try:
                self._handle(line)
            except OctavoError as error:
                self._write(f"octavo: error: {harmless(' '.join(str(error).split()))}\n")

    def complete(self, line: str) -> list[str]:
        """What a line that begins so may become: commands, settings, files."""
        command, space, rest = line.partition(" ")
        if not line.startswith("/"):
            return []
        if not space:
            return [name + " " for name in (*self._commands, *LEAVING) if name.startswith(line) and name != "/?"]
        if command == "/set" and " " not in rest:
            return [f"/set {name} " for name in KINDS if name.startswith(rest)]
        return [f"{command} {path}" for path in paths(rest)] if command in ("/save", "/load") else []

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
            raise UsageError(f"no command {name} (allowed: {', '.join([*self._commands, *LEAVING])})")
        elif line.strip():
            self._ask(line)

    def _ask(self, text: str) -> None:
        self._talk.add("user", text)
        try:
            tokens = encoded(self._model, text, self._options, raw=True) if self._raw else self._fitting()
            self._reply(tokens, begun(self._model, tokens, self._options, raw=self._raw))
        except ContextFullError as error:
            raise ContextFullError(f"{error}; {larger_context(self._model)}") from None
        finally:
            if self._talk.messages and self._talk.messages[-1]["role"] == "user":
                self._talk.messages.pop()  # no reply came of it

    def _regenerate(self) -> None:
        """Ask the last question again; the reply that it had stays where no other one comes of that."""
        messages = self._talk.messages
        if [m["role"] for m in messages[-2:]] != ["user", "assistant"]:
            raise UsageError("there is no reply to regenerate yet")
        question, reply = messages[-2:]
        del messages[-2:]
        last = messages[-1] if messages else None
        try:
            self._ask(question["content"])
        finally:
            if (messages[-1] if messages else None) is last:
                messages += [question, reply]

    @property
    def _options(self) -> GenerateOptions:
        return {**self._settings.options, "system": self._talk.system}

    def _encoded(self) -> list[int]:
        return encoded(self._model, self._talk.messages, self._options)

    def _fitting(self) -> list[int]:
        """The tokens of the conversation, without old turns for which there is no room."""
        n_ctx = self._model.engine.n_ctx
        tokens, dropped = self._talk.fit(self._encoded, n_ctx, self._settings.options.get("max_tokens"))
        if dropped:
            self._write(f"(the context of {n_ctx} tokens is full: the oldest {dropped} messages are dropped)\n")
        return tokens

    def _reply(self, prompt: list[int], generation: Generation) -> None:
        screen = self._screen(self._model, prompt)
        try:
            for piece in pieces(generation):
                screen.show(piece)
        except KeyboardInterrupt:
            generation.close()
        finally:
            screen.end()
            if generation.text_so_far:
                self._talk.add("assistant", generation.text_so_far)
            self._write("\n")
        if self._stats:
            self._write(f"({speeds(generation)})\n")

    def _clear(self) -> None:
        self._talk.messages.clear()
        self._write("The conversation is forgotten.\n")

    def _set_system(self, text: str) -> None:
        if text and self._raw:
            raise UsageError("a system message needs a chat template, and none is used here")
        self._talk.system = text or None
        self._talk.messages.clear()
        self._write("The system message is set.\n" if text else "The system message is removed.\n")

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if not name:
            for setting, shown, origin in self._settings.rows():
                self._write(f"{setting:<26}{shown}{'' if origin == 'default' else f' ({origin})'}\n")
            return
        if plain(name) == "n_ctx":
            raise UsageError(
                f"the context has {self._model.n_ctx} tokens from the start on; {larger_context(self._model)} (/save "
                "and /load keep the conversation)"
            )
        if value.strip():
            before = self._settings.options
            self._settings.change(name, value.strip())
            if known(name) == "think":
                self._check_think(before)
        self._write(self._settings.line(name) + "\n")

    def _check_think(self, before: GenerateOptions) -> None:
        """Raises UsageError, with the settings as `before`, where the model leaves no choice."""
        try:
            think = self._settings.options.get("think")
            self._model.encode_prompt([{"role": "user", "content": "?"}], think=think, raw=self._raw)
        except OctavoError:
            self._settings.options = before
            raise

    def _show(self) -> None:
        held, n_ctx = (len(self._encoded()) if self._talk.messages and not self._raw else 0), self._model.engine.n_ctx
        self._write(f"{headline(self._model)}\n")
        self._write(f"system message: {harmless(self._talk.system or 'none')}\n")
        self._write(f"{len(self._talk.messages)} messages; {held} of {n_ctx} tokens of context\n")

    def _save(self, path: str) -> None:
        if not path:
            raise UsageError("/save needs a file's name")
        self._talk.save(path)
        self._write(f"{len(self._talk.messages)} messages are in {harmless(path)}.\n")

    def _load(self, path: str) -> None:
        if not path:
            raise UsageError("/load needs a file's name")
        self._talk.load(path)
        self._write(f"{len(self._talk.messages)} messages; the conversation goes on from there.\n")

    def _toggle_stats(self) -> None:
        self._stats = not self._stats
        self._write(f"Speeds are {'shown' if self._stats else 'not shown'}.\n")
