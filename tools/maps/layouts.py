"""Which thread holds which value that a compiled kernel loads or stores, read from Triton's GPU dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Bases = tuple[tuple[int, ...], ...]
Place = tuple[str, ...]
"""Lines of source, the innermost call first: "loads.py:15"."""


@dataclass(frozen=True)
class Blocked:
    """Triton's distribution of a tensor: a thread has `size` neighbours, threads and then warps lie side by side."""

    size: tuple[int, ...]
    threads: tuple[int, ...]
    warps: tuple[int, ...]
    order: tuple[int, ...]
    dropped: tuple[int, ...] = ()

    def holders(self, shape: tuple[int, ...]) -> np.ndarray:
        """The first thread of a program that holds each value of a tensor of `shape`; a warp's 32 follow each other."""
        whole = list(shape)
        for dim in self.dropped:
            whole.insert(dim, 1)
        at = np.indices(whole)
        thread, scale = np.zeros(whole, np.int64), 1
        for counts, below in (
            (self.threads, self.size),
            (self.warps, tuple(map(int.__mul__, self.size, self.threads))),
        ):
            for dim in self.order:
                thread += at[dim] // below[dim] % counts[dim] * scale
                scale *= counts[dim]
        return thread.reshape(shape)


@dataclass(frozen=True)
class Linear:
    """A distribution by bits: those of the numbers of a register, a lane and a warp each add (exclusive or) a place."""

    registers: Bases
    lanes: Bases
    warps: Bases

    def holders(self, shape: tuple[int, ...]) -> np.ndarray:
        """The first thread of a program that holds each value of a tensor of `shape`."""
        bases = (*self.lanes, *self.warps)
        thread = np.full(shape, 1 << len(bases), np.int64)
        for number in range(1 << len(bases)):
            for register in range(1 << len(self.registers)):
                chosen = [b for i, b in enumerate(bases) if number >> i & 1]
                chosen += [b for i, b in enumerate(self.registers) if register >> i & 1]
                at = tuple(int(np.bitwise_xor.reduce([0, *places])) for places in zip(*chosen, strict=True))
                at = at or (0,) * len(shape)
                thread[at] = min(thread[at], number)
        return thread


class Program:
    """A kernel's text in Triton's GPU dialect."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._names = dict(line.split(" = ", 1) for line in self._lines if re.match(r"#\w+ = ", line))
        self._found = {(place, shape): layout for place, shape, layout in self._accesses()}
        self._of_shape: dict[tuple[int, ...], set[str]] = {}
        for line in self._lines:
            for shape, layout in re.findall(r"tensor<((?:\d+x)+)[^<>#]*(?:<[^<>]*>)?, (#[^<>]+(?:<.*?>>?)?)>", line):
                self._of_shape.setdefault(_shape(shape), set()).add(layout)

    def holders(self, place: Place, shape: tuple[int, ...]) -> np.ndarray:
        """The thread that holds each value of what is loaded or stored at `place`.

        What no such operation is left of, as where it is written in assembly, must lie as all tensors of its shape do.
        """
        layout = self._found.get((place, shape))
        if layout is None:
            (layout,) = self._of_shape[shape]
        return self._layout(layout).holders(shape)

    def product(self) -> list[np.ndarray | None]:
        """The threads that hold the two factors and the sums of the first matrix product, None for what they do not:
        tensor cores read it from shared memory themselves."""
        line = next(line for line in self._lines if re.search(r" = (?:tt\.dot|ttng\.warp_group_dot) ", line))
        kinds = re.findall(r"(tensor|memdesc)<((?:\d+x)+)\w+, (#[\w.]+(?:<\{.*?\}>)?)", line)
        return [None if kind == "memdesc" else self._of_product(layout, _shape(shape)) for kind, shape, layout in kinds]

    def _of_product(self, text: str, shape: tuple[int, ...]) -> np.ndarray:
        """Holders of a factor or of sums, whose layout Triton itself turns into bits."""
        from triton._C.libtriton import gluon_ir, ir
        from triton.experimental.gluon.language import DotOperandLayout, NVMMADistributedLayout

        whole = re.sub(r"#\w+(?!\w*\.)", lambda m: self._names.get(m[0], m[0]), text)
        number = {key: int(value) for key, value in re.findall(r"(\w+) = (\d+)", whole)}
        several = {key: json.loads(value) for key, value in re.findall(r"(\w+) = (\[[\d, ]+\])", whole)}
        version = [number["versionMajor"], number["versionMinor"]]
        layout = NVMMADistributedLayout(version, several["warpsPerCTA"], several["instrShape"])
        if "opIdx" in number:
            layout = DotOperandLayout(number["opIdx"], layout, number["kWidth"])
        context = ir.context()
        ir.load_dialects(context)
        builder = gluon_ir.GluonOpBuilder(context)
        found = builder.to_linear_layout(layout._to_ir(builder), list(shape))
        return Linear(*(tuple(map(tuple, b)) for b in (found.reg_bases, found.lane_bases, found.warp_bases))).holders(
            shape
        )

    def _accesses(self) -> Iterator[tuple[Place, tuple[int, ...], str]]:
        for line in self._lines:
            found = re.search(r"tt\.(?:load|store) .* : tensor<((?:\d+x)+)!tt\.ptr<\w+>, (.*)> loc\((.*)\)$", line)
            if found:
                yield self._place(found[3]), _shape(found[1]), found[2]

    def _place(self, text: str) -> Place:
        if text in self._names:
            return self._place(self._names[text].removeprefix("loc(").removesuffix(")"))
        if line := re.fullmatch(r'"([^"]*)":(\d+):\d+', text):
            return (f"{Path(line[1]).name}:{line[2]}",)
        if call := re.fullmatch(r"callsite\((#\w+) at (#\w+)\)", text):
            return self._place(call[1]) + self._place(call[2])
        if named := re.fullmatch(r'"[^"]*"\((#\w+)\)', text):
            return self._place(named[1])
        return ()

    def _layout(self, text: str) -> Blocked:
        if text in self._names:
            return self._layout(self._names[text])
        if part := re.fullmatch(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>", text):
            whole = self._layout(part[2])
            return Blocked(whole.size, whole.threads, whole.warps, whole.order, (*whole.dropped, int(part[1])))
        lists = [tuple(map(int, numbers.split(", "))) for numbers in re.findall(r"\[([\d, ]+)\]", text)]
        if not text.startswith("#ttg.blocked<") or len(lists) != 4:
            raise ValueError(f"a layout that is neither blocked nor a slice of one: {text}")
        return Blocked(*lists)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("x") if size)
