"""Compiling and rendering a template within the limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import jinja2
from jinja2 import meta

from octavo.errors import TemplateError, UsageError
from octavo.text.sandbox.budget import Budget, current
from octavo.text.sandbox.environment import Environment

MAX_SOURCE = 64_000  # characters, compiled in half a second at worst; those in use have up to 20,000
_MAX_DEPTH = 100


class SandboxedTemplate:
    """A compiled template; `render` may run in several threads at once."""

    def __init__(self, source: str) -> None:
        """Raises TemplateError, with the line, for a template that is invalid, too long or nested too deep."""
        if len(source) > MAX_SOURCE:
            problem = f"the chat template has {len(source)} characters (allowed: up to {MAX_SOURCE})"
            raise TemplateError(problem)
        try:
            self._template = _environment().from_string(source)
            self._source = source
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from None
        except TemplateError:
            raise
        except (RecursionError, MemoryError, SyntaxError):
            raise TemplateError("the chat template is nested too deep") from None
        except Exception as error:  # of the literals that Python's own compiler refuses
            raise TemplateError(f"the chat template can't be compiled: {str(error)[:200]}") from None

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names of what the template looks for and does not set itself, functions among them."""
        return frozenset(meta.find_undeclared_variables(_environment().parse(self._source)))

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises TemplateError, with the line, for every fault, UsageError for variables not plain data."""
        copied, size = _copy(dict(variables), "", 0)
        previous = current.set(Budget(size))
        try:
            return self._collect(self._template.root_render_func(self._template.new_context(copied)))
        except Exception as error:
            line = self._line_of(error)
            problem = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {str(error)[:200]}"
            raise TemplateError(f"chat template, line {line}: {problem}" if line else problem) from None
        finally:
            current.reset(previous)

    def _collect(self, pieces: Iterator[str]) -> str:
        budget, out = current.get(), []
        for piece in pieces:
            budget.output(len(piece))
            out.append(piece)
        return "".join(out)

    def _line_of(self, error: BaseException) -> int | None:
        """The template's line that was being rendered, from the deepest frame of compiled template code."""
        line, step = None, error.__traceback__
        while step is not None:
            if step.tb_frame.f_globals.get("__jinja_template__") is self._template:
                line = self._template.get_corresponding_lineno(step.tb_lineno)
            step = step.tb_next
        return line


@cache
def _environment() -> Environment:
    return Environment()


def _copy(value: Any, place: str, depth: int) -> tuple[Any, int]:
    """A copy of plain data, so a template can't change the caller's, and its size in characters."""
    if isinstance(value, str):
        return str(value), len(value)
    if value is None or isinstance(value, bool | int | float):
        return value, 1
    if depth > _MAX_DEPTH:
        raise UsageError(f"variable {place[:80]} of the chat template is nested deeper than {_MAX_DEPTH}")
    if isinstance(value, Mapping):
        pairs = [(k, *_copy(v, f"{place}.{k}" if place else str(k), depth + 1)) for k, v in value.items()]
        return {k: v for k, v, _ in pairs}, sum(n + len(str(k)) for k, _, n in pairs)
    if isinstance(value, list | tuple):
        items = [_copy(v, f"{place}[{i}]", depth + 1) for i, v in enumerate(value)]
        return [v for v, _ in items], sum(n for _, n in items)
    kind = type(value).__name__
    raise UsageError(f"variable {place} of the chat template is a {kind} (allowed: text, numbers, lists and mappings)")
