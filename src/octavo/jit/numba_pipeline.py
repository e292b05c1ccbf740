# mypy: allow-untyped-calls
"""How Numba compiles kernels and the functions that only they call: its pipeline, without what these have no use for.

Numba's passes for closures, array expressions, `with` blocks and lists of several types find nothing in a kernel, and a
function that only kernels call needs no machine code of its own: its LLVM code becomes part of theirs. Without both a
kernel compiles in a sixth less time, to as many instructions.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import NativeLowering

UNUSED = {
    "with_lifting",
    "inline_closure_likes",
    "Rewrite dynamic raises",
    "make_function_op_code_to_jit_function",
    "find_literally",
    "literal_unroll",
    "LiteralPropagation",
    "nopython_rewrites",
    "annotate_types",
    "dump_parfor_diagnostics",
}
"""Names of Numba's passes that change nothing in a kernel."""


class KernelCompiler(CompilerBase):
    """Compiles kernels."""

    lowering: type[NativeLowering] = NativeLowering

    def define_pipelines(self) -> list[PassManager]:
        """Numba's pipeline with this class's lowering, less what is unused."""
        manager = PassManager("kernels")
        for made, description in DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
            if made.name() not in UNUSED:
                manager.add_pass(self.lowering if made is NativeLowering else made, description)
        manager.finalize()
        return [manager]


class LinkedLibrary(JITCodeLibrary):
    """A function's LLVM code for kernels to link, optimized but not compiled."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class InnerLowering(NativeLowering):
    """Lowering of a function that only kernels call."""

    _name = "inner_lowering"

    def run_pass(self, state: Any) -> bool:
        """Put its LLVM code where kernels find it, without compiling it."""
        state.library = library = LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered, name = state.cr, state.func_id.func_name
        nothing = _dynfunc.make_function(lowered.fndesc.lookup_module(), name, name, 0, lowered.env, (library,))
        state.targetctx.insert_user_function(nothing, lowered.fndesc, [library])
        state.cr = _LowerResult(lowered.fndesc, lowered.call_helper, cfunc=nothing, env=lowered.env)
        return True


class InnerCompiler(KernelCompiler):
    """Compiles functions that only kernels call."""

    lowering = InnerLowering
