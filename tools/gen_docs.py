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

*This page is made from `octavo.formats` by `tools/gen_docs.py`; change the table, not the page.*

A weight matrix of a low-bit model is rarely an array of floats. It is an array of small integers, the codes, with a
few scales that say what the codes are worth. Every format that Octavo computes with is the same thing, a grouped
affine code with at most two levels of scale:

    w[n, k] = d[n, k // S] * sc[n, k // G] * code(q[n, k])  -  dmin[n, k // S] * m[n, k // G]

| part | meaning |
|---|---|
| n, k | output row and position along it: a matrix is [N, K], K contiguous |
| q | the unsigned code of a value, 2 to 8 bits |
| code() | `q - offset`; or an entry of a table of 16 small integers; or, for plain numbers, the number q itself |
| G | group: how many neighbours share a scale |
| S | super-block: how many share a floating scale. Where S = G there is one level, and `sc` and `m` are absent |
| d, dmin | floating scale and minimum of a super-block |
| sc, m | small integer scale and minimum of a group. `sc` is signed in formats without minima |

A group whose values lie around zero needs no minimum: the offset puts code zero in the middle. A group with a minimum
spends a second scale to start its codes where its values start. Two levels buy small groups cheaply: K-quants keep a
6-bit scale for each 16 or 32 values and share two half floats among 256.

## Bytes, planes, values

In a file the parts of a block lie together: a row of K values is K / block blocks, one after the other, and a block
is the fields listed below, little-endian, without padding. `unpack` takes them apart into planes, one array for each
letter of the equation; kernels pack the planes again into a layout of their own, and know their properties, never a
name.

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

Decoding is bit for bit what the `gguf` package computes, for all formats that it decodes. The reference encoder rounds
to nearest with the scale that a group's extremes ask for; it is there to have something to test with, and a
quantizer finds better scales.

### Why scales lie beside codes

A code means nothing without its scale. In one block both come with the same lines of memory, a row is read from front
to back as one stream, and a file can be cut between any two blocks. The same holds for blocks of activations (Q8_1,
and [MMQ's](#mmqs-blocks) 144 bytes): whoever copies a block to shared memory has all that a product needs of it. The
price is alignment: blocks of 18 or 34 bytes put codes at odd places, where loads of 16 bytes can't be used. So
kernels here read layouts of their own, which weights are packed into
([CPU](cpu.md), [GPU](../src/octavo/backends/gpu/weights/README.md#planes)), and on a GPU activations are planes of
codes, scales and sums from the start.

### Does a GGUF always hold scales?

No. Each tensor has a type of its own. F32, F16 and BF16 are plain numbers, as norms and biases are in nearly all
files. Every quantized type has scales in its blocks: a half float, a power of two (MXFP4) or a byte (NVFP4), and
K-quants and most of IQ a small integer for each group besides. `octavo inspect MODEL --tensors` lists types, and
`octavo inspect MODEL --scales TENSOR` shows the scales of one tensor; `unpack` above gives them: `d`, `sc`, `dmin` and
`m`.

### Must weights be dequantized to compute?

No. In the equation scales stand outside of a group's sum, so codes are multiplied with codes as integers, and floats
come once a group:

    sum(w x) = d * d_x * sum((q - offset) * q_x)  -  dmin * d_x * sum(q_x)

CPU kernels and those of a GPU for few tokens compute that, by instructions which multiply int8 (`dp4a`, `mma.sync`,
VNNI). Values are made where it is faster or asked for: on a GPU with many tokens, where codes become float16 in
registers and tensor cores multiply these ([products](../src/octavo/backends/gpu/matmul/README.md)), and in
`octavo.ops.matmul`, which leaves activations floats, on a GPU or with more than 64 tokens.

### How codes of less than a byte lie in bytes

There is one pattern, with two numbers: the *bits* of a code and the *run*. Take `run` bytes. Their lowest bits are the
first `run` codes, the bits above them the next `run` codes, and so on. With 4 bits and a run of 16, as in Q4_0:

    byte        0     1     2   ...   15
    low nibble  q0    q1    q2  ...   q15
    high nibble q16   q17   q18 ...   q31

So a vector register of 16 bytes gives 32 codes with one mask and one shift, and both halves come out in order. Codes
of 3, 5 and 6 bits keep their low bits so, and their high bits in a second field by the same pattern with its own run.
"""

SUMMARY_KEY = """\
*scale* is the type of d, then that of sc where there are two levels: `f16 x u6, min` is a half float times unsigned
six-bit integers, and minima of the same kind; `odd u4` is 2 s + 1 for an unsigned s of four bits. *activations* is what
a product with such weights takes by default.
"""

LAYOUTS_INTRO = """\
## Layouts

Offsets are in bytes from the start of a block, and k counts the values of a block. Types: `u8` `u16` unsigned and `s8`
`s16` signed integers; `f16` `f32` IEEE 754; `bf16` the upper half of an `f32`; `e8m0` a power of two, 2^(byte - 127);
`ue4m3` a float of 4 exponent bits (bias 7) and 3 mantissa bits without sign.
"""

RARE_INTRO = """\
## Other GGUF types

These load too, but no kernel is made for them: `octavo.formats.rare.load` decodes them to F16 when the file is read (to
F32 where a value is beyond F16) and logs it.
"""

GRID_INTRO = """\
### Codebooks

IQ1, IQ2 and IQ3 store no code for each value. For every 8 values (IQ3: 4) they store the index of an entry in a
fixed codebook, which says how large each value is: one of 3 sizes (IQ3: 8). A bit for each value is its sign; in IQ1,
8 values or more share one bit, which shifts them all up or down by an eighth. A code is `size | sign << bits`, so a
table of 8 or 16 small integers gives the values of codes, as in the other formats. The codebooks are in
`octavo.formats.codebook`.
Where only 7 of 8 signs are stored, the last one makes the number of negative values even.
"""

ACTIVATION_INTRO = """\
## Formats of activations

The second factor of a product is quantized while the model runs, to the format that the weights' row names (the last
column of the first table). That is so on the CPU and on a GPU, which takes f16 values where a step has many tokens;
the reference backend computes in f32. Sums are kept for weights with an offset or a minimum, because `sum((q - z) *
x) = sum(q * x) - z * sum(x)`.

One of them is a function's alone, and no product reads it: `q8_1_mmq`, which is [llama.cpp's](#mmqs-blocks). None has
zero points: `octavo.quantizers.quantize_zero_point` makes such codes of arrays, and `octavo.ops.int8_gemm` (`zero_a`)
multiplies activations that have them, in no scheme of a model.
"""

MMQ_INTRO = """\
### MMQ's blocks

`octavo.ops.quantize_mmq_q8_1` makes the blocks that llama.cpp's CUDA products of many tokens read: 16 bytes of scales
and sums, then 128 codes. It is there for kernels and tests that take them. Octavo's own products of many tokens read
planes (`mmq_dot`, `mmq_mma`) or float16, so none reads these blocks. What the 16 bytes hold depends on the weights
(`octavo.ops.mmq_layout`):

| layout | 16 bytes | weights | why |
| --- | --- | --- | --- |
"""

MMQ_KINDS = {
    "D4": (
        "a float32 scale for each 32 values",
        "nothing is added to their codes once an offset is taken off in unpacking, so no sum is needed",
    ),
    "DS4": (
        "a float16 scale and a float16 sum for each 32",
        "a minimum (IQ1_S: a shift; Q4_0: the offset 8, left in the codes) times the sum of the values",
    ),
    "D2S6": (
        "a float16 scale for each 64, then sums of 16 of the first 96",
        "minima of 16 values want sums of 16. Eight sums and four scales would be 24 bytes; two and six fit, and the "
        "product adds up the last 32 values itself",
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
