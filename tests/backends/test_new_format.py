"""A format of each class of layout that nobody has yet: both backends compute it as the reference does, or refuse it.

So whoever adds a row to the format table learns from the default tests whether kernels hold it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.bench.op_case import Built, run
from octavo.errors import GraphError, QuantFormatError
from octavo.formats import BlockFormat, Planes, QTensor
from octavo.formats.spec import Fields, f16, s8, u8
from octavo.formats.unpackers import flat
from octavo.graph.builder import weight
from octavo.graph.node import Graph, Node
from octavo.graph.ops import apply
from tests.sampling import slow

N, K = 16, 256
TOKENS = [(1, 8, 40), pytest.param((3, 16), marks=pytest.mark.slow)]
"""With kernels of their own; those of the others differ from theirs in the size of a tile."""
CURVE = tuple(int(v) for v in np.round(127 * np.sin(np.linspace(-1.5, 1.5, 32))))
"""A table for codes of five bits."""


def made_up(
    bits: int, group: int, levels: int = 1, below: str = "offset", table: tuple[int, ...] | None = None
) -> BlockFormat:
    """A format with a byte for each code, in groups of `group`, `levels` of which are a super-block."""
    block, two = group * levels, levels > 1
    minimum, zero = below == "minimum", below == "zero"
    scales = [f16("d"), *([f16("dmin")] if minimum else []),
              *([(u8 if minimum else s8)("sc", levels), *([u8("m", levels)] if minimum else [])] if two else []),
              *([u8("z")] if zero else [])]

    def unpack(fields: Fields) -> Planes:
        whole = {name: flat(value) for name, value in fields.items()}
        dmin = whole["dmin"].astype(np.float32) if minimum else None
        return Planes(whole["q"], whole["d"].astype(np.float32), whole.get("sc"), dmin, whole.get("m", whole.get("z")))

    return BlockFormat(
        f"X{bits}_{group}x{levels}_{below}", block=block, bits=bits, group=group, super=block,
        fields=(*scales, u8("q", block)), unpack=unpack, has_min=minimum, has_zero=zero, table=table,
        scale_bits=6 if two else 0, offset=1 << (bits - 1) if below == "offset" and table is None else 0,
    )


FORMATS = [
    made_up(4, 64), made_up(3, 16), made_up(4, 128, below="zero"),
    made_up(5, 32, 4), made_up(6, 16, 8, "minimum"), made_up(4, 32, 4, "minimum"), made_up(3, 32, 8, "minimum"),
    made_up(5, 32, 1, "table", CURVE), made_up(3, 16, 16, "table", CURVE[::4]),
    *map(slow, (
        made_up(5, 32, below="minimum"), made_up(4, 32, 1, "table", CURVE[::2]),
        *(made_up(bits, 32) for bits in (1, 2, 3, 4, 5, 6, 8)), made_up(6, 128), made_up(3, 64, below="zero"),
        made_up(4, 32, 8), made_up(6, 16, 16), made_up(3, 16, 8), made_up(5, 64, 4), made_up(5, 16, 16, "minimum"),
        made_up(5, 32, 8, "table", CURVE),
    )),
]


def stored(fmt: BlockFormat) -> QTensor:
    """Random codes and scales."""
    rng = np.random.default_rng(len(fmt.name) + fmt.bits)
    rows = np.zeros((N, K // fmt.block), fmt.dtype)
    for field in fmt.fields:
        shape = rows[field.name].shape
        rows[field.name] = {
            "q": lambda s: rng.integers(0, 1 << fmt.bits, s), "z": lambda s: rng.integers(0, 1 << fmt.bits, s),
            "sc": lambda s: rng.integers(1, 32, s), "m": lambda s: rng.integers(0, 32, s),
        }.get(field.name, lambda s: rng.uniform(0.01, 0.02, s))(shape)
    return QTensor(fmt, (N, K), rows.view(np.uint8).reshape(N, -1))


@pytest.mark.few(4)
@pytest.mark.parametrize("backend", [lambda: CpuBackend(threads=2), GpuBackend], ids=["cpu", "gpu"])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("counts", TOKENS, ids=str)
def test_it_is_right_or_refused(fmt: BlockFormat, backend: Any, counts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    node = apply("mul_mat", weight(stored(fmt)), Node("input", (), ("tokens", K), "f32", name="x"))
    steps = tuple(({"x": rng.standard_normal((t, K)).astype(np.float32)}, {"tokens": t}) for t in counts)
    built = Built(Graph.of(node), steps, {"tokens": max(counts)})
    try:
        found = run(built, [backend()])
    except (QuantFormatError, GraphError):
        return
    for tokens, got, want in zip(counts, found, run(built, [ReferenceBackend()]), strict=True):
        assert np.square(got - want).sum() < 5e-4 * np.square(want).sum(), tokens
