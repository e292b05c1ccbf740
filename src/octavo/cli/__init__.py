"""The `octavo` command, a folder for each kind of subcommand; what one needs is imported when it runs."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import typer

from octavo.cli.option_groups import grouped
from octavo.cli.option_names import App, Commands
from octavo.cli.options import in_plain_words, worded
from octavo.cli.output import OutputError, drop_output, open_closed_streams, output_told_apart
from octavo.cli.signals import ending_in_order
from octavo.errors import OctavoError, UsageError

_UsageError: Any = typer.BadParameter.__mro__[1]  # what Typer raises for a command line that it can't read


class _Log(logging.Handler):
    """Writes to what standard error is by then: while a progress bar is drawn that is the lines above it."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if getattr(record, "news", False) else f"{record.levelname}: "
        with suppress(OSError, ValueError):  # of a terminal that is closed, a disk that is full: no reason to end
            print(f"octavo: {level}{self.format(record)}", file=sys.stderr)


class _Commands(Commands):
    """Typer takes any EOFError for Ctrl-C, and any broken pipe for standard output's; they are errors here.

    So are others of the system that nothing has told of better.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise OctavoError(f"unexpected end of input: {error}") from error
        except BrokenPipeError as error:
            raise OctavoError(f"an output was closed: {error}") from error
        except OSError as error:
            logging.getLogger("octavo").info("traceback", exc_info=True)
            name = error.filename if isinstance(error.filename, str) else "a file"
            raise OctavoError(f"{name}: {error.strerror or error}") from error


def _documentation() -> str:
    """Where the pages of docs are: in the repository that this runs from, or where the package's wheel puts them."""
    above = Path(__file__).parents  # cli, octavo, src; or octavo, site-packages, python3, lib, the prefix
    folders = [folder / "docs" for folder in (*above[3:4], *(up / "share/doc/octavo" for up in above[4:6]))]
    return next((f"Documentation: {folder}" for folder in folders if folder.is_dir()), "")


COMMANDS = {
    "run": "run.command:run", "serve": "serve.command:serve", "batch": "batch_command:batch",
    "embed": "embed.command:embed", "rank": "embed.rank:rank", "pull": "hub.pull:pull", "list": "hub.pull:list_models",
    "rm": "hub.pull:remove", "warm": "warm:warm", "inspect": "inspect.command:inspect",
    "profile": "bench.profile_command:profile", "quantize": "quantize.command:quantize",
    "convert": "quantize.convert_command:convert", "imatrix": "quantize.imatrix_command:imatrix",
    "calibrate": "quantize.calibrate:calibrate", "frontier": "frontier_command:frontier",
    "report": "evaluate.report:report",
}
"""Where the function of each command is."""
GROUPS = {"eval": "evaluate.command:app", "bench": "bench.command:app"}


@cache
def app_of(names: tuple[str, ...]) -> App:
    """The application with some of the commands, whose modules alone are imported."""
    made = App(
        cls=_Commands, name="octavo", help="Run, quantize and measure low-bit language models.",
        epilog=_documentation(), no_args_is_help=True, pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_options)
    for name in names:
        if name in COMMANDS:
            made.command(name)(grouped(_found(COMMANDS[name])))
        else:
            made.add_typer(_found(GROUPS[name]), name=name)
    return made


def _found(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"octavo.cli.{module}"), name)


def __getattr__(name: str) -> App:
    """`app`, with all commands."""
    if name == "app":
        return app_of((*COMMANDS, *GROUPS))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _app(arguments: Sequence[str]) -> App:
    """The application with the command that a line begins with; with all where it is none of them."""
    named = _named(arguments)
    return app_of((named,) if named in COMMANDS or named in GROUPS else (*COMMANDS, *GROUPS))


def _named(arguments: Sequence[str]) -> str:
    return next((word for word in arguments if not word.startswith("-")), "")


def _version(show: bool) -> None:
    if show:
        from octavo import __version__

        print(f"octavo {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Also print what is chosen and why."),
) -> None:
    """Run, quantize and measure low-bit language models."""
    handler = _Log()
    logger = logging.getLogger("octavo")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO if verbose else logging.WARNING)


def main() -> None:
    """Run the command line. Bad input gives one line on stderr and exit status 2."""
    if _named(sys.argv[1:]) != "run":  # which looks for garbage once its model is loaded
        gc.enable()
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that can't show a character does not stop the command
    if os.environ.get("COLUMNS") == "0":  # of a terminal without a size: help would have no width to be written in
        del os.environ["COLUMNS"]
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # the hub's client reads it when it is imported
    try:
        with output_told_apart(), ending_in_order():
            app = globals().get("app") or _app(sys.argv[1:])
            status = app(standalone_mode=False, prog_name="octavo")
        sys.exit(status if isinstance(status, int) else 0)
    except UsageError as error:
        _fail(worded(error, sys.argv[1:]))
    except OctavoError as error:
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):  # the second before Typer has begun, which makes it the first
        sys.exit(130)
    except _UsageError as error:
        group = error.ctx.command_path if error.ctx else "octavo"
        message = in_plain_words(error.format_message()) or f"a command is missing; `{group} --help` lists them"
        if message.startswith("Missing argument"):
            names = [p.metavar or (p.name or "").upper() for p in error.ctx.command.params
                     if p.param_type_name == "argument"]
            message = f"{message.rstrip('.')}: write `{' '.join([group, *names])}`"
        _fail(message)
    except MemoryError as error:
        _fail(f"out of memory: {error}" if str(error) else "out of memory")
    except OutputError as error:
        drop_output()
        if not error.left:  # else nobody is told
            print(f"octavo: error: can't write to standard output: {error}", file=sys.stderr)
        sys.exit(1)


def _fail(message: str) -> NoReturn:
    with suppress(OSError):  # the status tells of it, too
        print(f"octavo: error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    sys.exit(2)
