"""Adapters of PEFT for parameters that are not layers (`target_parameters`): experts that a module stacks, [E, N, K].

A module is wrapped once for each of its parameters, and the factors' names say how deep they are and not whose they
are: their shapes do. Factors of all experts lie in one matrix, A [E r, K] expert after expert, and B [N, r E], where
those of a column of each expert follow each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from octavo.formats import QTensor, by_name
from octavo.huggingface.adapters.peft import PeftFolder, unwrapped
from octavo.huggingface.config.wrapper import text_name
from octavo.huggingface.tensors.experts import picked
from octavo.huggingface.tensors.tensor_matches import find
from octavo.io.gguf import LazyTensor
from octavo.models import ModelSpec
from octavo.models.shared.architecture import Columns
from octavo.models.shared.lora import Factored

Names = tuple[Mapping[str, str], Mapping[str, str]]
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Stacked:
    """The factors of all experts of a parameter as PEFT has them, [E r, in] and [out, r E]."""

    module: str
    a: LazyTensor
    b: LazyTensor

    @property
    def plain(self) -> str:
        """The module that is wrapped."""
        return unwrapped(self.module)

    def experts(self, rank: int) -> int:
        """How many there are, 0 where the factors are not those of a whole number."""
        whole = len(self.a.shape) == len(self.b.shape) == 2 and self.a.shape[0] == self.b.shape[1]
        return self.a.shape[0] // rank if whole and self.a.shape[0] % rank == 0 else 0

    def factored(self, name: str, rank: int, factor: float, *, turned: bool = False) -> Factored:
        """As factors of each expert [E, r, in] and [E, out, r]; `turned`, of matrices whose rows were columns."""
        e, r, k, n = self.experts(rank), rank, self.a.shape[1], self.b.shape[0]

        def moved(tensor: LazyTensor, shape: Shape, axes: Shape) -> LazyTensor:
            return LazyTensor(
                tensor.name, tensor.format, tuple(shape[axis] for axis in axes),
                lambda: picked(tensor.load(), lambda x: x.reshape(shape).transpose(axes)),
            )

        a = moved(self.a, (e, r, k), (0, 2, 1) if turned else (0, 1, 2))
        b = moved(self.b, (n, r, e), (2, 1, 0) if turned else (2, 0, 1))
        return Factored.of(name, *((b, a) if turned else (a, b)), factor)


def parameters_by_name(
    folder: PeftFolder, stacks: Mapping[str, Stacked], model: ModelSpec, names: Names
) -> dict[str, Factored]:
    """What is added to parameters, by names of tensors in a checkpoint of the text model.

    Raises ModelError for factors that fit none of the module's parameters, and where two fit, or both ways round, of
    which the version of PEFT does not say which.
    """
    found: dict[str, Factored] = {}
    usual = _usually_turned(folder, model.architecture.layout.columns)
    for stack in stacks.values():
        named = folder.parameters_of(stack.module)
        wanted = {parameter: _wanted(parameter, model, names) for parameter in named}
        fitting = [(p, turned) for p in named for turned in (False, True) if _fits(folder, stack, p, wanted[p], turned)]
        if len(fitting) > 1 and usual is not None:
            fitting = [(parameter, turned) for parameter, turned in fitting if turned == usual]
        if len(fitting) != 1 or (name := _stored_name(fitting[0][0])) in found:
            problem = f"has factors {list(stack.a.shape)} and {list(stack.b.shape)}"
            said = (p if (want := wanted[p]) is None else f"{p} {list(want)}" for p in named)
            more = ", which say whose they are and which way round" if fitting else ""
            raise folder.error(stack.module, problem, f"those of one of {', '.join(said)}{more}")
        ((parameter, turned),) = fitting
        rank, factor = folder.rank_of(parameter), folder.factor(parameter)
        found[name] = stack.factored(name, rank, factor, turned=turned)
    return found


def _usually_turned(folder: PeftFolder, columns: Columns) -> bool | None:
    """Whether rows and columns of experts change places in factors; None where that is not known.

    Up to 0.19.0 PEFT took all experts for [E, K, N], and since then those for [E, N, K] that do not say otherwise,
    which of classes whose experts are columns those of gpt-oss alone do.
    """
    if columns == "alternate":
        return False
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", str(folder.config.get("peft_version")))
    newer = numbers is not None and tuple(map(int, numbers.groups())) >= (0, 19, 1)
    return {"": not newer, "halves": newer}.get(columns)


def _stored_name(parameter: str) -> str:
    name = f"{parameter.removesuffix('.weight')}.weight"
    return text_name(name) or name


def _wanted(parameter: str, model: ModelSpec, names: Names) -> Shape | None:
    """The shape [E, N, K] of a parameter with rows that are outputs; None where the model has no such one."""
    name, architecture = _stored_name(parameter), model.architecture
    probe = LazyTensor(name, by_name("F32"), (0,), _never)
    found, expected = find({name: probe}, architecture, *names), architecture.tensors(model.hparams)
    for here, parts in ((found.single, 1), (found.halves, 2)):
        shapes = {expected[own].shape for own in here if own in expected}
        if len(shapes) == 1 and len(shape := shapes.pop()) == 3:
            return shape[0], parts * shape[1], shape[2]
    return None


def _never() -> QTensor:
    raise AssertionError("nobody reads what only has a name")


def _fits(folder: PeftFolder, stack: Stacked, parameter: str, want: Shape | None, turned: bool) -> bool:
    if want is None or stack.experts(folder.rank_of(parameter)) != want[0]:
        return False
    return (stack.b.shape[0], stack.a.shape[1]) == (want[1:] if not turned else want[:0:-1])
