"""Commands whose options come in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from octavo.cli.option_groups import grouped

called: list[Any] = []


@dataclass
class Size:
    width: Annotated[int, typer.Option("--width", "-w", help="Columns.")] = 80
    height: int = 25


@dataclass
class Colours(Size):
    colours: Annotated[list[str] | None, typer.Option("--colour")] = None


def show(name: Annotated[str, typer.Argument()], *, size: Colours, loud: bool = False) -> None:
    """Show something."""
    called.append((name, size, loud))


def test_fields_of_groups_are_options() -> None:
    app = typer.Typer()
    app.command()(grouped(show))
    runner = CliRunner()
    called.clear()
    assert runner.invoke(app, ["x", "-w", "3", "--colour", "red", "--colour", "blue", "--loud"]).exit_code == 0
    assert runner.invoke(app, ["y"]).exit_code == 0
    assert called == [("x", Colours(3, 25, ["red", "blue"]), True), ("y", Colours(), False)]
    assert runner.invoke(app, ["x", "--width", "wide"]).exit_code == 2
    shown = runner.invoke(app, ["--help"]).output
    assert "Show something." in shown
    assert shown.index("--width") < shown.index("--height") < shown.index("--colour") < shown.index("--loud")
