"""Kernels run in Triton's interpreter, which `tests/conftest.py` asks for.

With TRITON_INTERPRET=0 they run on this machine's GPU, and so does `test_on_gpu.py`, which needs one.
"""

import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from octavo.backends.gpu.backend import GpuBinder
from octavo.backends.gpu.compile import gluon

if version("triton").startswith("3.6."):
    _patch = interpreter._patch_lang_tensor

    def _patch_with_index(tensor: Any, scope: Any) -> None:
        """Triton 3.6 takes int() of an array of one element for the bounds of a loop, which NumPy 2.4 refuses."""
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_with_index

_splat = interpreter.InterpreterBuilder.create_splat


def _splat_of_truth(self: Any, kind: Any, argument: Any) -> Any:
    """Triton 3.9 makes int32 of what a comparison of scalars is, and then refuses it as a mask."""
    found = _splat(self, kind, argument)
    if argument.data.dtype == bool:
        found.data = found.data.astype(bool)
    return found


interpreter.InterpreterBuilder.create_splat = _splat_of_truth
INTERPRETED = os.environ["TRITON_INTERPRET"] == "1"
if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1":  # as `.ci/sanitize` has it: nothing can be captured then
    GpuBinder._may_capture = lambda self: False  # type: ignore[method-assign]
collect_ignore = ["test_on_gpu.py"] if INTERPRETED else ["test_bench.py", "test_device.py"]


_run = interpreter.InterpretedFunction.run
_patch_language = interpreter._patch_lang
_patched = set[int]()
"""The modules, by their globals, for whose functions the language is patched in the kernel that runs."""


def _patch_language_once(function: Any) -> Any:
    """Triton patches its language again for every function that a kernel calls, which takes half of the time."""
    module = id(function.__globals__)
    if module in _patched:
        return interpreter._LangPatchScope()
    _patched.add(module)
    return _patch_language(function)


def _run_with_fusion(self: Any, *arguments: Any, **options: Any) -> Any:
    """Triton 3.10 has another default: every launch says whether products and sums may be fused."""
    assert isinstance(options.get("enable_fp_fusion"), bool), f"{self.fn.__name__} leaves fusion to Triton's default"
    _patched.clear()
    return _run(self, *arguments, **options)


interpreter._patch_lang = _patch_language_once
interpreter.InterpretedFunction.run = _run_with_fusion

# Each value makes its type, its shape and a table of NumPy's types anew: two fifths of the time of what is left.
_types = dict[Any, dict[str, Any]]()
_shapes = dict[Any, dict[str, Any]]()
_numpy_types = dict[Any, Any]()
_init_type, _init_value, _numpy_type = tl.block_type.__init__, tl.tensor.__init__, interpreter._get_np_dtype


def _init_type_once(self: Any, element_ty: Any, shape: Any) -> None:
    sizes = tuple(s.value if isinstance(s, tl.constexpr) else s for s in shape)
    key = element_ty.name, sizes
    if (found := _types.get(key)) is None:
        before = {*vars(self)}
        _init_type(self, element_ty, shape)
        found = _types[key] = {name: value for name, value in vars(self).items() if name not in before}
    vars(self).update(found, element_ty=element_ty, sizes=sizes)


def _init_value_once(self: Any, handle: Any, type: Any) -> None:
    sizes = type.sizes if type.is_block() else ()
    if (found := _shapes.get(sizes)) is None:
        _init_value(self, handle, type)
        found = _shapes[sizes] = {name: vars(self)[name] for name in ("shape", "numel")}
    vars(self).update(found, handle=handle, type=type, dtype=type.scalar)


def _numpy_type_once(kind: Any) -> Any:
    name = kind.scalar.name
    if (found := _numpy_types.get(name)) is None:
        found = _numpy_types[name] = _numpy_type(kind.scalar)
    return found


tl.block_type.__init__, tl.tensor.__init__ = _init_type_once, _init_value_once
interpreter._get_np_dtype = _numpy_type_once

_broadcast = TritonSemantic.broadcast_impl_value


def _broadcast_if_unlike(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """Most values that meet have one shape, or one is a scalar; Triton compares shapes as tuples of its own."""
    left, right = (value.type.sizes if value.type.is_block() else () for value in (lhs, rhs))
    if left == right:
        return lhs, rhs
    if left and right:
        return _broadcast(self, lhs, rhs)  # type: ignore[no-any-return]
    return (lhs, _filled(rhs, left)) if left else (_filled(lhs, right), rhs)


def _filled(value: Any, sizes: tuple[int, ...]) -> Any:
    data, kind = value.handle.data, value.dtype.scalar
    filled = np.full(sizes, data, data.dtype)
    return tl.tensor(interpreter.TensorHandle(filled, value.handle.dtype.scalar), tl.block_type(kind, [*sizes]))


if INTERPRETED:
    # Triton would compute each sum and product of integers again in 64 bits, for an assertion that it leaves out unless
    # it debugs: with the shapes a third of the time of what is left.
    TritonSemantic.binary_op_sanitize_overflow_impl = lambda self, lhs, rhs, op: None
    TritonSemantic.broadcast_impl_value = _broadcast_if_unlike


@pytest.fixture(autouse=True)
def _gluon_compiles() -> Iterator[None]:
    """No test ran a portable kernel because one of Gluon failed."""
    yield
    assert not gluon._given_up
