"""Lowers kernels whose integers are 1, each in turn; as `ahead_of_time`, a row of JSON a kernel: what does not hold.

    python -m tests.backends.gpu.compile.ahead_of_time_ones KERNEL:LAYOUT:TARGET ... SCHEME:TOKENS:TARGET ...

Triton takes an integer that is 1 for a constant, in records too. Where control flow begins and ends, Triton 3.6 makes
values anew by their types: they have to be what they were.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from triton._C.libtriton import ir
from triton.compiler import code_generator, make_backend
from triton.language import constexpr
from triton.language import tuple as triton_tuple

from tests.backends.gpu.compile import ahead_of_time, ahead_of_time_gemm
from tests.backends.gpu.compile.ahead_of_time_case import TARGETS, Case


def main(wanted: list[str]) -> list[dict[str, Any]]:
    clone = getattr(code_generator, "_clone_triton_value", None)

    def checked(value: Any) -> Any:
        assert clone is not None
        copy = clone(value)
        _require_same(value, copy)
        return copy

    if clone is not None:
        code_generator._clone_triton_value = checked
    return [_row(name) for name in wanted]


def _require_same(value: Any, copy: Any) -> None:
    if isinstance(value, triton_tuple):
        for old, new in zip(value.values, copy.values, strict=True):
            _require_same(old, new)
    elif isinstance(value, constexpr):
        assert (type(copy), copy.value) == (constexpr, value.value), f"{value} becomes {copy}"
    elif hasattr(value, "handle"):
        assert copy.handle == value.handle, f"{value} becomes {copy}"


def _row(wanted: str) -> dict[str, Any]:
    name, of, target = wanted.split(":")
    module: Any = ahead_of_time_gemm if of.isdigit() else ahead_of_time
    case = module.case_of(name, int(of) if of.isdigit() else of, target)
    tried, wrong = 0, {}
    for path, types in _ones(case):
        tried += 1
        try:
            _lower(case._replace(types=types))
        except Exception as error:  # Triton wraps it once for each call
            while error.__cause__ is not None:
                error = error.__cause__
            wrong[path] = f"{type(error).__name__}: {error}"[-300:]
    return {"kernel": wanted, "tried": tried, "wrong": wrong}


def _ones(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """The types of a kernel with one of its integers 1, and which it is; in the end with all."""
    given = {arg: case.types.get(arg, "i32") for arg in case.kernel.arg_names if arg not in case.fixed}
    for arg, kind in given.items():
        for path, one in _each(kind):
            yield ".".join((arg, *path)), {**case.types, arg: one}
    yield "all", {**case.types, **{arg: _all(kind) for arg, kind in given.items()}}


def _each(kind: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if kind == "i32":
        yield (), 1
    elif isinstance(kind, tuple):
        for i, part in enumerate(kind):
            for path, one in _each(part):
                field = getattr(kind, "_fields", list(map(str, range(len(kind)))))[i]
                yield (field, *path), _with(kind, (*kind[:i], one, *kind[i + 1 :]))


def _all(kind: Any) -> Any:
    if isinstance(kind, tuple):
        return _with(kind, tuple(map(_all, kind)))
    return 1 if kind == "i32" else kind


def _with(kind: tuple[Any, ...], parts: tuple[Any, ...]) -> Any:
    return type(kind)(*parts) if hasattr(kind, "_fields") else parts


def _lower(case: Case) -> None:
    """What Triton does first with a kernel: from Python to its own language."""
    gpu, source, context = TARGETS[case.target][0], case.source(), ir.context()
    backend = make_backend(gpu)
    options = backend.parse_options({**case.options, **source.parse_options()})
    ir.load_dialects(context)
    backend.load_dialects(context)
    source.make_ir(gpu, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
