"""Commands with many options take them in groups: a dataclass each, whose fields are Typer's options.

    @dataclass
    class Where:
        device: Device = "auto"
        threads: Threads = None

    def run(model: Model, *, where: Where) -> None: ...

    app.command("run")(grouped(run))

The command then has `--device` and `--threads`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def grouped(command: Callable[..., T]) -> Callable[..., T]:
    """The command with each group's fields as parameters of its own, in the order in which they stand there."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if name != "return" and is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters.extend(_parameters(groups[name]))
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=parameter.POSITIONAL_OR_KEYWORD))

    def flat(**given: Any) -> T:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        return command(**given, **made)

    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(f.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=f.default, annotation=hints[f.name])
        for f in fields(group)
    ]
