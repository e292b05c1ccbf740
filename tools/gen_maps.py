"""Draws which lane of a GPU kernel touches what, for docs/index-maps.md, from the kernels themselves.

Each kernel is run by Triton's interpreter, where every load and store is noted, and compiled for compute capability
9.0 (the W4A8 product for 8.0 too), where Triton's GPU dialect says which thread holds which value. `--check` writes
nothing and exits with 1 where a picture is stale.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
COMPILED = ("mmq", "matvec:Q4_K", "mmq_mma:Q4_K", "weight_only:Q4_K")
"""Kernels as `tests.backends.gpu.compile.ahead_of_time` names them, with the format of their weights."""
W4A8 = ("w4a8_g128:16:sm_90", "w4a8_g128:16:sm_80")
"""Products of 16 tokens, as `tests.backends.gpu.compile.ahead_of_time_gemm` names them."""
EVEN = ("row", "channel", "sample", "stride", "k")
"""Numbers that Triton finds to be multiples of 16 when the kernel is launched with such rows, and compiles it for."""
K = 1024
"""Values of a row, for which they are compiled."""


def compiled_texts(names: Sequence[str]) -> dict[str, str]:
    """Kernels in Triton's GPU dialect. A process of its own, for one either compiles kernels or interprets them."""
    code = (
        "import json, sys, triton\n"
        "from tests.backends.gpu.compile import ahead_of_time, ahead_of_time_gemm\n"
        "def text(name):\n"
        "    kernel, kind, target = (name + '::').split(':')[:3]\n"
        "    if kernel.startswith('w4a8'):\n"
        "        case = ahead_of_time_gemm.case_of(kernel, int(kind), target)\n"
        "    else:\n"
        f"        case = ahead_of_time.case_of(kernel, kind, 'sm_90')._replace(even={EVEN})\n"
        "    target = ahead_of_time.TARGETS[case.target][0]\n"
        "    return triton.compile(case.source(), target=target, options=case.options).asm['ttgir']\n"
        "print(json.dumps({name: text(name) for name in sys.argv[1:]}))\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_ALWAYS_COMPILE"] = "1"  # what is kept on disk may name lines of files that have moved
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def pictures() -> Iterator[tuple[str, str]]:
    """Names of files and what they hold."""
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.insert(0, str(Path(__file__).parent))
    from maps.layouts import Program

    programs = {name: Program(text) for name, text in compiled_texts((*COMPILED, *W4A8)).items()}
    yield "map-quantize-mmq.svg", _quantizer(programs["mmq"])
    yield "map-matvec.svg", _matvec(programs["matvec:Q4_K"])
    yield "map-weight-only.svg", _weight_only(programs["weight_only:Q4_K"])
    yield "map-mmq-mma.svg", _tensor_cores(programs["mmq_mma:Q4_K"])
    yield "map-w4a8.svg", _w4a8(*(programs[name] for name in W4A8))


def _quantizer(compiled: Any) -> str:
    """Rows of activations that `ids` names, in blocks of q8_1."""
    import torch

    from maps.accesses import noted, threads
    from maps.pictures import Panel, picture
    from octavo.backends.gpu.matmul.mmq.quantize import quantize_mmq_q8_1

    x, ids = torch.randn(1, 1, 3, 128), torch.tensor([2, 0], dtype=torch.int32)
    with noted() as accesses:
        out = quantize_mmq_q8_1(x, "DS4", 128, ids)
    panels = []
    for program, row in enumerate(ids.tolist()):
        mine = [a for a in accesses if a.program == (program, 0, 0)]
        read = threads(mine, x, compiled).reshape(3, 32, 16, 2)[:, :, 0]  # of each four values
        rows = [(f"x[{i}]", read[i]) for i in range(3)]
        panels.append(Panel(f"Program {program} reads x[ids[{program}]] = x[{row}]: a cell is 4 values", rows))
        written = threads(mine, out, compiled).reshape(2, 144, 2)[program]
        blocks = [("d, sum (2 each)", written[:16:2]), *(
            (f"codes {i}-{i + 31}", written[16 + i : 48 + i]) for i in range(0, 128, 32)
        )]
        panels.append(Panel(f"and writes block {program}, 16 + 128 bytes (DS4): a cell of codes is a byte", blocks))
    return picture(panels)


def _matvec(compiled: Any) -> str:
    """One token: a row of weights in Q4_K, and the token."""
    import numpy as np
    import torch

    from maps.accesses import noted, threads
    from maps.pictures import Panel, picture
    from octavo.backends.gpu.launch.arguments import for_triton, matrix
    from octavo.backends.gpu.matmul.matvec.kernel import matvec_kernel
    from octavo.backends.gpu.matmul.matvec.matvec_shape import MatvecShape

    weight, x, y = _weight(2), _tokens(1), torch.empty(1, 2)
    words = x._replace(codes=x.codes.view(torch.int32))
    given = map(for_triton, (weight.planes(), words, None, (), matrix(y)))
    with noted() as accesses:
        matvec_kernel[(1,)](*given, 2, TOKENS=1, shape=for_triton(MatvecShape(2, 32, 1, 1, early=True)),
                           ASM="", PDL=False)

    def row(tensor: torch.Tensor, nbytes: int) -> Any:
        return threads(accesses, tensor, compiled)[: len(tensor.view(torch.uint8).ravel()) // 2 : nbytes]

    codes, tokens = row(weight.parts["codes4"], 4).reshape(8, 16, 2), threads(accesses, words.codes, compiled)[::4]
    scales = threads(accesses, x.scale, compiled)[::4]
    return picture([
        Panel("Codes of a row of weights, of two that the warp takes: a cell is a word of 8 codes",
              [(f"tile {i}", cells) for i, cells in enumerate(codes)]),
        Panel("Scales of its groups: a cell is a pair, with the low 2 bits of the minima",
              [("small", row(weight.parts["small"], 2))], 2),
        Panel("Upper bits of their minima: a cell is a pair", [("rest", row(weight.parts["rest"], 1))], 2),
        Panel("d and dmin of its super-blocks: a cell is both", [("scale", row(weight.parts["scale"], 4))], 2),
        Panel("Codes of the token: a cell is a word of 4 codes",
              [(f"tile {i}", cells) for i, cells in enumerate(tokens.reshape(8, 32, 2))]),
        Panel("Scales of its groups of 32", [("scale", cells) for cells in np.split(scales, 2)], 2),
    ])


def _weight_only(compiled: Any) -> str:
    """Two tokens that stay floats: a row of weights in Q4_K, and the first token."""
    import torch

    from maps.accesses import noted, threads
    from maps.pictures import Panel, picture
    from octavo.backends.gpu.launch.arguments import for_triton, matrix
    from octavo.backends.gpu.matmul.matvec.matvec_shape import MatvecShape
    from octavo.backends.gpu.matmul.w4a16.weight_only_kernel import weight_only_kernel

    weight, x, y = _weight(2), torch.zeros(2, K, dtype=torch.float16), torch.empty(2, 2)
    given = map(for_triton, (weight.planes(), matrix(x.view(torch.int32)), matrix(y)))
    with noted() as accesses:
        weight_only_kernel[(1,)](*given, 2, TOKENS=2, shape=for_triton(MatvecShape(2, 32, 1, 1)), ASM="", PDL=False)
    codes = threads(accesses, weight.parts["codes4"], compiled)[: K // 2 : 4].reshape(8, 16, 2)
    token = threads(accesses, x, compiled)[: 2 * K : 8].reshape(8, 32, 2)
    written = threads(accesses, y, compiled)[::4].reshape(2, 2, 2)
    return picture([
        Panel("Codes of a row of weights, of two that the warp takes: a cell is a word of 8 codes",
              [(f"tile {i}", cells) for i, cells in enumerate(codes)]),
        Panel("The first token: a cell is 4 float16", [(f"tile {i}", cells) for i, cells in enumerate(token)]),
        Panel("The results of both rows", [(f"token {i}", cells) for i, cells in enumerate(written)]),
    ])


def _w4a8(hopper: Any, ampere: Any) -> str:
    """16 tokens: QQQ's tile of codes, and what the lanes of a warp hold of the product here."""
    import numpy as np

    from maps.pictures import Panel, picture
    from octavo.formats.qqq import qqq_tensors
    from octavo.formats.rows import pack_int4

    def nibbles(words: Any) -> Any:
        return (words.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15

    def qqq(codes: Any, grouped: bool) -> Any:
        """Nibbles of B, each less 8 where they are signed numbers: [K / 16, words, 8]."""
        scales = (np.ones(64, np.float32), np.ones((64, 1), np.float16) if grouped else None)
        return nibbles(qqq_tensors(codes, *scales)["B"]) ^ (0 if grouped else 8)

    number = np.arange(64 * 128).reshape(64, 128)  # of each code [N, K], in four digits to the base 16
    digits = [(number >> 4 * i & 15).astype(np.int8) - np.int8(8) for i in range(4)]
    orders = {kind: sum(qqq(d, kind == "groups").astype(np.int64) << 4 * i for i, d in enumerate(digits))
              for kind in ("groups", "channels")}
    tile = np.empty((16, 64), np.int64)
    tile[orders["groups"][0] % 128, orders["groups"][0] // 128] = np.arange(128)[:, None] // 4  # a lane has 4 words
    packed = [nibbles(pack_int4(d).view(np.uint32)) ^ 8 for d in digits]
    ours = sum(part.astype(np.int64) << 4 * i for i, part in enumerate(packed))[0, 0]
    codes, _, sums = hopper.product()
    first, tokens, _ = ampere.product()
    assert np.array_equal(codes[:16], first[:16])
    assert np.array_equal(tile[:, :32], tile[:, 32:])
    words = [[f"n{at // 128} k{at % 128}" for at in order[0, 0]] for order in orders.values()]
    return picture([
        Panel("A tile of QQQ's B, 16 values of K of 64 rows of weights, 32 of them drawn: a cell is a code",
              [(f"k {i}", _alone(cells[:32])) for i, cells in enumerate(tile)]),
        Panel("The 8 codes of lane 0's first word there, from its lowest bits on",
              [(f"with {kind}", np.zeros((8, 2), int)) for kind in orders], 3, words),
        Panel("A tile here, 128 values of K of the first 16 of 64 rows: a cell is a word of 8 codes",
              [(f"n {i}", _alone(cells)) for i, cells in enumerate(codes[:16, ::4])]),
        Panel("The 8 codes of lane 0's first word here, from its lowest bits on",
              [("", np.zeros((8, 2), int))], 3, [[f"n0 k{at}" for at in ours]]),
        Panel("Tokens as mma.sync takes them, 64 values of K of 16: a cell is a word of 4 codes",
              [(f"token {i}", _alone(cells)) for i, cells in enumerate(tokens.T[:, ::4])]),
        Panel("Sums of the 16 rows of weights: a cell is an int32, a column a token",
              [(f"n {i}", _alone(cells)) for i, cells in enumerate(sums[:16])]),
    ])


def _alone(threads: Any) -> Any:
    """The first and the last thread of each cell, where there is one."""
    import numpy as np

    return np.stack([threads, threads], axis=-1)


def _tensor_cores(compiled: Any) -> str:
    """Eight tokens: what a warp loads of 256 values of 32 rows in Q4_K, and of the tokens."""
    import torch

    from maps.accesses import noted, threads
    from maps.pictures import Panel, picture
    from octavo.backends.gpu.launch.arguments import for_triton, matrix
    from octavo.backends.gpu.matmul.mmq.mma_kernel import mmq_mma_kernel
    from octavo.backends.gpu.matmul.mmq.mmq_shapes import MmaShape

    weight, x, y = _weight(32), _tokens(8), torch.empty(8, 32)
    shape = MmaShape(2, 1, 2, 1, 1, False)
    given = map(for_triton, (weight.planes(), x, (), matrix(y), None))
    with noted() as accesses:
        mmq_mma_kernel[(1, 1)](*given, 32, 8, shape=for_triton(shape), STRIDE=8, ASM="", PDL=False)
    codes = threads(accesses, weight.parts["codes4"], compiled)[::4].reshape(32, 128, 2)
    tokens = threads(accesses, x.codes, compiled)[::4].reshape(8, 256, 2)
    return picture([
        Panel("Codes of 256 values of the first 16 of 32 rows: a cell is a word of 8 codes",
              [(f"row {i}", codes[i, :32]) for i in range(16)]),
        Panel("The next 256 values are the other warp's: its lanes are darker",
              [(f"row {i}", codes[i, 32:64]) for i in range(2)]),
        Panel("Codes of the first 128 of the 256 values of the tokens: a cell is a word of 4 codes",
              [(f"token {i}", tokens[i, :32]) for i in range(8)]),
    ])


def _weight(rows: int) -> Any:
    import numpy as np

    from octavo.backends.gpu.weights.load import load
    from octavo.formats import by_name, quantize_reference

    values = np.random.default_rng(0).standard_normal((rows, K), np.float32)
    return load(quantize_reference(values, by_name("Q4_K")), "cpu")


def _tokens(count: int) -> Any:
    import torch

    from octavo.backends.gpu.launch.device_values import q8_1, q8_1_bytes
    from octavo.backends.gpu.matmul.dispatch import padded_tokens

    stride = padded_tokens(count)
    return q8_1(torch.zeros(q8_1_bytes(count, K, stride), dtype=torch.uint8), count, K, stride)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 where `--check` finds a picture stale, 0 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 where a picture is stale")
    check, stale = parser.parse_args(arguments).check, False
    for name, text in pictures():
        path = PICTURES / name
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"docs/pictures/{name} is stale: run python tools/{Path(__file__).name}", file=sys.stderr)
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
