"""Writes docs/formats.md from the format table, and into docs/run.md the names of options.

`--check` writes nothing and exits with 1 where a page is stale.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from octavo.backends.gpu.matmul.mmq.quantize import MMQ_LAYOUTS
from octavo.cli.foreign_options import ANSWERED, OF_OTHERS, OF_SERVE, OPTIONS, Option
from octavo.formats import FORMATS, BlockFormat
from octavo.formats.activation import ACTIVATIONS, ROW
from octavo.formats.rare import RARE, REMOVED

ROOT = Path(__file__).resolve().parent.parent
PAGE, RUN = ROOT / "docs" / "formats.md", ROOT / "docs" / "run.md"

INTRO = """\
# Stored formats

*This page is generated from `octavo.formats` by `tools/gen_docs.py`: edit the table or the tool, not the page.*

Low-bit models seldom store weights as floats. They store small integers, called codes, and a few scales that turn codes
back into values. All formats that Octavo computes with follow one scheme, a grouped affine code with at most two levels
of scales:

    w[n, k] = d[n, k // S] * sc[n, k // G] * code(q[n, k])  -  dmin[n, k // S] * m[n, k // G]

| part | meaning |
|---|---|
| n, k | row and column: a matrix is [N, K], N outputs of K contiguous inputs |
| q | the unsigned code of a value, 2 to 8 bits |
| code() | `q - offset`; an entry of a table of small integers; or, for plain numbers, the number itself |
| G | group size: the number of consecutive values that share a scale |
| S | super-block size: how many share a floating-point scale. If S = G, there is one level, without `sc` and `m` |
| d, dmin | floating-point scale and minimum of a super-block |
| sc, m | small integer scale and minimum of a group. `sc` is signed in formats without minima |

Groups centred on zero need no minimum: the offset maps zero to the middle code. Other groups spend a second scale on a
minimum, so that all codes fall within the range of the values. Two levels make small groups cheap: K-quants have a
6-bit scale for every 16 or 32 values, and two float16 scales for 256.

## Bytes, planes, values

In a file, a row of K values is a sequence of K / block blocks, and a block consists of the fields listed below,
little-endian and without padding. `unpack` splits blocks into planes, an array for each symbol of the equation. Kernels
repack the planes into layouts of their own; they depend on a format's properties, never on its name.

```python
import numpy as np
from octavo import formats

x = np.random.default_rng(0).normal(size=(2, 512))
t = formats.quantize_reference(x, formats.by_name("Q4_K"))  # QTensor: format, shape, bytes
p = formats.unpack(t)
t.data.shape  # (2, 288)  two blocks of 144 bytes a row
p.q.shape, p.q.max()  # (2, 512), 15
p.d.shape, p.sc.shape  # (2, 2), (2, 16)  one d for 256 values, one sc for 32
formats.dequantize(t)  # float32 (2, 512): the equation, in float32, multiplied from left to right
```

Decoding matches the `gguf` package bit for bit, for all formats that it decodes. The reference encoder rounds to
nearest, with the scale that covers a group's extremes. It exists for tests; the quantizers find better scales.

### Why scales are stored next to codes

Codes are useless without their scale. In a block, both arrive with the same cache lines, a row is read as a single
stream, and a file can be split between any two blocks. The same is true of blocks of activations (Q8_1, and
[MMQ's](#mmqs-blocks) 144 bytes): a kernel that copies a block to shared memory has everything it needs. The price is
alignment: in blocks of 18 or 34 bytes codes are unaligned, so 16-byte loads are impossible. Octavo's kernels therefore
read layouts of their own, into which weights are packed when they are loaded
([CPU](cpu.md), [GPU](../src/octavo/backends/gpu/weights/README.md#planes)). On a GPU, activations are planes of codes,
scales and sums from the start.

### Does a GGUF file always contain scales?

No. Each tensor has its own type. F32, F16 and BF16 are plain numbers; norms and biases nearly always have one of these
types. Blocks of quantized types contain scales: a float16, a power of two (MXFP4) or a byte (NVFP4), and in K-quants
and most I-quants also a small integer per group. `octavo inspect MODEL --tensors` lists the types, and
`octavo inspect MODEL --scales TENSOR` shows a tensor's scales, which `unpack` returns as `d`, `sc`, `dmin` and `m`.

### Must weights be dequantized to compute?

No. Scales can be moved out of a group's sum, so that codes are multiplied as integers, with floating-point arithmetic
once per group:

    sum(w x) = d * d_x * sum((q - offset) * q_x)  -  dmin * d_x * sum(q_x)

The CPU's kernels and, for few tokens, the GPU's compute it this way, with int8 instructions (`dp4a`, `mma.sync`, VNNI).
Weights are dequantized where that is faster or requested: for many tokens on a GPU, where codes become float16 in
registers for the tensor cores ([products](../src/octavo/backends/gpu/matmul/README.md)), and by `octavo.ops.matmul`,
which keeps activations as floats, on a GPU or for more than 64 tokens.

### How sub-byte codes are packed

One pattern with two parameters, the *bits* of a code and the *run*, describes it. Among `run` consecutive bytes, the
lowest bits are the first `run` codes, the next higher bits the next `run` codes, and so on. With 4 bits and a run of
16, as in Q4_0:

    byte        0     1     2   ...   15
    low nibble  q0    q1    q2  ...   q15
    high nibble q16   q17   q18 ...   q31

A 16-byte vector register thus yields 32 codes, in order, with one mask and one shift. Codes of 3, 5 and 6 bits have
their low bits packed this way, and their high bits in a second field with its own run.
"""

SUMMARY_KEY = """\
*scale* gives the type of d and, with two levels, that of sc: `f16 x u6, min` means a float16 times unsigned 6-bit
integers, with minima of the same kind; `odd u4` means 2 s + 1 for an unsigned 4-bit s. *activations* is the default
format of the other factor of a product.
"""

LAYOUTS_INTRO = """\
## Layouts

Offsets are in bytes from the start of a block, and k counts values within a block. Types: `u8` and `u16` are unsigned,
`s8` and `s16` signed integers; `f16` and `f32` are IEEE 754; `bf16` is the upper half of an `f32`; `e8m0` is a power of
two, 2^(byte - 127); `ue4m3` is an unsigned float with 4 exponent bits (bias 7) and 3 mantissa bits.
"""

RARE_INTRO = """\
## Other GGUF types

Tensors of these types load too, but without kernels of their own: `octavo.formats.rare.load` decodes them to F16 when
the file is read, or to F32 if a value exceeds F16, and logs it.
"""

GRID_INTRO = """\
### Codebooks

IQ1, IQ2 and IQ3 have no code per value. For every 8 values (IQ3: 4) they store the index of a codebook entry, which
gives the magnitude of each value, one of 3 (IQ3: 8), and a sign bit per value. In IQ1, 8 or more values share a single
bit instead, which shifts all of them up or down by an eighth. Octavo's code is `magnitude | sign << bits`, so that a
table of 8 or 16 small integers maps codes to values, as in other formats. The codebooks are in
`octavo.formats.codebook`. Where only 7 of 8 signs are stored, the eighth makes the number of negative values even.
"""

ACTIVATION_INTRO = """\
## Formats of activations

Activations are quantized while the model runs, to the format in the last column of the first table. This is true of the
CPU, and of a GPU for few tokens; for many tokens a GPU uses f16. The reference backend computes in f32. Sums of
activations are needed for weights with an offset or a minimum, since `sum((q - z) * x) = sum(q * x) - z * sum(x)`.

`q8_1_mmq` is [llama.cpp's](#mmqs-blocks); a function writes it, but no product of Octavo's reads it. No format has zero
points. `octavo.quantizers.quantize_zero_point` computes such codes for arrays, and `octavo.ops.int8_gemm` multiplies
activations with zero points (`zero_a`), but no scheme of a model uses them.
"""

MMQ_INTRO = """\
### MMQ's blocks

`octavo.ops.quantize_mmq_q8_1` writes the blocks that llama.cpp's CUDA kernels for many tokens read: 16 bytes of scales
and sums, then 128 codes. It exists for other kernels and for tests: Octavo's own read planes (`mmq_dot`, `mmq_mma`) or
float16. The contents of the 16 bytes depend on the weights (`octavo.ops.mmq_layout`):

| layout | 16 bytes | weights | why |
| --- | --- | --- | --- |
"""

MMQ_KINDS = {
    "D4": (
        "a float32 scale for each 32 values",
        "unpacking subtracts the offset, so no sum is needed",
    ),
    "DS4": (
        "a float16 scale and a float16 sum for each 32",
        "a minimum (IQ1_S: a shift; Q4_0: the offset 8, which stays in the codes) is multiplied by the sum",
    ),
    "D2S6": (
        "a float16 scale for each 64, then sums of 16 of the first 96",
        "minima of 16 values need sums of 16. Eight sums and four scales would take 24 bytes; six and two fit, and the "
        "product sums the last 32 values itself",
    ),
}
"""Layouts of MMQ's blocks: what they hold, and why these weights want that."""


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def _scale_kind(row: BlockFormat) -> str:
    kinds = [f.kind for f in row.fields if f.name == "d"] or (["f16"] if row.scale_bits else [])
    if not kinds:
        return "-"
    sign = "odd u" if row.odd_scales else "u" if row.has_min else "s"
    levels = f" x {sign}{row.scale_bits}" if row.scale_bits else ""
    return kinds[0] + levels + (", min" if row.has_min else "")


def formula(row: BlockFormat) -> str:
    """The equation as this row uses it; a two-level row's group is g = k // G."""
    code = "q"
    if row.table:
        code = "table[q]" if row.step == 1 else f"table[q] / {1 / row.step:g}"
    elif row.offset:
        code = f"(q - {row.offset})"
    two = row.scale_bits > 0
    scale = f"d * sc[k // {row.group}]" if two else ("d" if row.group == row.block else f"d[k // {row.group}]")
    low = "" if not row.has_min else (f" - dmin * m[k // {row.group}]" if two else " - dmin")
    return f"w[k] = {scale} * {code}{low}"


def summary() -> list[str]:
    """One line a format."""
    head = ["format", "GGUF id", "block", "bytes", "bits per weight", "G", "S", "scale", "activations"]
    rows = []
    for r in FORMATS:
        anchor = "plain-numbers" if r.is_float else r.name.lower()
        sharing = ("-", "-") if r.is_float else (r.group, r.super)
        size = (r.gguf, r.block, r.block_bytes, f"{r.bits_per_weight:g}")
        rows.append([f"[{r.name}](#{anchor})", *size, *sharing, _scale_kind(r), r.activation])
    return ["## The formats", "", *_table(head, rows), "", SUMMARY_KEY]


def plain_numbers() -> list[str]:
    """The formats that are one number a value."""
    rows = ([r.name, r.fields[0].kind, r.block_bytes, r.note] for r in FORMATS if r.is_float)
    return ["### Plain numbers", "", "    w[k] = x", "", *_table(["format", "type", "bytes", ""], rows), ""]


def section(row: BlockFormat) -> list[str]:
    """A format: its formula, its fields with their offsets, and how they are packed."""
    lines = [f"### {row.name}", "", f"    {formula(row)}", ""]
    if row.table:
        lines += [f"with table = {', '.join(map(str, row.table))}.", ""]
    offset, fields = 0, []
    for f in row.fields:
        fields.append([offset, f"`{f.name}`", f.kind if f.count == 1 else f"{f.kind} x {f.count}", f.nbytes])
        offset += f.nbytes
    size = f"{row.block} values in {row.block_bytes} bytes:"
    return [*lines, size, "", *_table(["byte", "field", "type", "bytes"], fields), "", row.note, ""]


def rare_types() -> list[str]:
    """The types outside the table, and the numbers that are no longer used."""
    rows = ([name, number, block, size, f"{8 * size / block:g}"] for number, (name, block, size) in RARE.items())
    removed = ", ".join(f"{number} ({name})" for number, name in REMOVED.items())
    head = ["type", "GGUF id", "block", "bytes", "bits per weight"]
    return [RARE_INTRO, *_table(head, rows), "", f"Removed from GGUF, and refused: {removed}.", ""]


def activations() -> list[str]:
    """One line an activation format."""
    rows = ([a.name, a.bits, "row" if a.group == ROW else a.group, a.stored] for a in ACTIVATIONS)
    blocks = []
    for layout, (holds, why) in MMQ_KINDS.items():
        weights = ", ".join(name for name, wanted in MMQ_LAYOUTS.items() if wanted == layout)
        blocks.append(f"| {layout} | {holds} | {weights} | {why} |")
    return [ACTIVATION_INTRO, *_table(["format", "bits", "group", "stored"], rows), "", MMQ_INTRO + "\n".join(blocks)]


def page() -> str:
    """The whole of docs/formats.md."""
    layouts = [line for row in FORMATS if not row.is_float for line in section(row)]
    parts = [INTRO, *summary(), LAYOUTS_INTRO, *plain_numbers(), *layouts, GRID_INTRO, *rare_types(), *activations()]
    return "\n".join(parts).rstrip() + "\n"


PROGRAMS = {
    "llama.cpp": "llama_cpp", "Ollama": "ollama", "vLLM": "vllm", "Hugging Face": "hugging_face", "Python": "python",
}


def _names(option: Option) -> list[str]:
    """An option's names here and elsewhere, the cells of a row."""
    value = f" {option.value}".rstrip().replace("|", "/")
    here = ", ".join(f"`{name}`" for name in option.own)
    here = here.removesuffix("`") + f"{value}`" + "".join(f", `{name}`" for name in option.also.split())
    return [here, *(", ".join(f"`{name}`" for name in getattr(option, field).split()) for field in PROGRAMS.values())]


def names_of_options() -> str:
    """What docs/run.md says of the names of options."""
    head = ["option", *PROGRAMS]
    answered = (
        [", ".join(f"`{name}`" for name in names.split()), answer.replace("{}", "octavo run")]
        for names, answer in ANSWERED.items()
    )
    parts = [
        _table(head, map(_names, OPTIONS)), ["", "Those of `octavo serve`, then those of other commands:", ""],
        _table(head, map(_names, (*OF_SERVE, *OF_OTHERS))), ["", "These mean nothing here, and are answered:", ""],
        _table(["typed", "answer"], answered),
    ]
    return "\n".join(line for part in parts for line in part)


def run_page() -> str:
    """docs/run.md with the names that options have now, between two marks."""
    text = RUN.read_text(encoding="utf-8")
    made = f"<!-- options:start -->\n{names_of_options()}\n<!-- options:end -->"
    return re.sub("<!-- options:start -->.*<!-- options:end -->", lambda _: made, text, flags=re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 where `--check` finds a page stale, 0 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 where a page is stale")
    check, status = parser.parse_args(arguments).check, 0
    for path, made in ((PAGE, page()), (RUN, run_page())):
        if not check:
            path.write_text(made, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != made:
            print(f"{path.name} is stale: run python tools/gen_docs.py", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
