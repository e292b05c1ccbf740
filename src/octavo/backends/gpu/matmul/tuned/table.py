"""Tables of the kernels and shapes that measured fastest: one for each architecture here, and the user's own, which
`octavo bench tune` writes into the folder of caches. Products of other sizes take those of the nearest.

A table has, by section, class of layout, size `n x k` and most tokens, choices: the first whose kernel computes the
product is taken.

    {"products": {"4 bits, 32 in 256, minima": {"4096 x 4096": {"1": ["matvec 4 32 4 1 1"], "4": [...], ...}}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from math import log2
from pathlib import Path
from typing import Literal

from octavo.backends.gpu.matmul.product import Product
from octavo.backends.gpu.weights.layout import PlaneLayout
from octavo.jit.kernel_cache import cache_root

Section = Literal["products", "pairs", "experts"]
"""Products of tokens; of pairs of a token and an expert, one by one; of such pairs, sorted by experts."""
Choice = tuple[str, tuple[int, ...]]
"""The name of a kernel, and the numbers of its shape."""
Row = tuple[tuple[int, tuple[Choice, ...]], ...]
Table = dict[str, dict[str, dict[tuple[int, int], Row]]]
FOLDER = Path(__file__).parent


def class_of(layout: PlaneLayout) -> str:
    """What of a layout decides which kernel is fastest: bits, groups, and what else is loaded or looked up."""
    more = "table" if layout.table else "zero points" if layout.has_zero else "minima" if layout.has_min else "plain"
    groups = f"{layout.group} in {layout.super}" if layout.two_level else str(layout.group)
    return f"{layout.bits} bits, {groups}, {more}"


@cache
def table(arch: str) -> Table:
    """The shipped table of an architecture, or of its like, with the user's rows."""
    like = {path.stem: path for path in sorted(FOLDER.glob("*.json"))}
    shipped = like.get(arch) or next(path for stem, path in like.items() if stem[:2] == arch[:2])
    found = read(shipped)
    for section, classes in (read(users) if (users := user_file(arch)).exists() else {}).items():
        for kind, rows in classes.items():
            found.setdefault(section, {}).setdefault(kind, {}).update(rows)
    return found


def user_file(arch: str) -> Path:
    """Where the user's table is."""
    return cache_root() / "tuned" / f"{arch}.json"


def read(path: Path) -> Table:
    """A table. Raises OSError, ValueError."""
    return {
        section: {
            kind: {_size(size): tuple((int(most), tuple(map(_choice, said))) for most, said in row.items())
                   for size, row in rows.items()}
            for kind, rows in classes.items()
        }
        for section, classes in json.loads(path.read_text(encoding="utf-8")).items() if section != "about"
    }


def write(path: Path, found: Table, about: str) -> None:
    """Write a table, a line for each size."""
    sections = [f' "about": {json.dumps(about)}']
    for section, classes in found.items():
        kinds = []
        for kind, rows in sorted(classes.items()):
            lines = [
                f'   "{n} x {k}": ' + json.dumps({most: [" ".join([name, *map(str, numbers)]) for name, numbers in said]
                                                  for most, said in row})
                for (n, k), row in sorted(rows.items())
            ]
            kinds.append(f'  "{kind}": {{\n' + ",\n".join(lines) + "\n  }")
        sections.append(f' "{section}": {{\n' + ",\n".join(kinds) + "\n }")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(sections) + "\n}\n", encoding="utf-8")


def nearest(section: Section, p: Product) -> Iterator[Choice]:
    """Choices for a product: of its own class and size, then of the nearest ones."""
    kind, classes = class_of(p.layout), table(p.arch)[section]

    def distance(other: str, n: int, k: int) -> float:
        return 100 * _difference(kind, other) + abs(log2(p.n / n)) + 2 * abs(log2(p.kp / k))

    ordered = sorted(((other, size) for other, rows in classes.items() for size in rows),
                     key=lambda one: distance(one[0], *one[1]))
    for other, size in ordered:
        row = classes[other][size]
        yield from next((said for most, said in row if p.tokens <= most), row[-1][1])


def _difference(kind: str, other: str) -> float:
    """How far apart two classes of layouts are."""
    (bits, groups, more), (others, other_groups, other_more) = kind.split(", "), other.split(", ")
    apart = abs(int(bits.split()[0]) - int(others.split()[0]))
    one_level = (" in " in groups) != (" in " in other_groups)
    return apart + 2 * one_level + (groups != other_groups) + 2 * (more != other_more)


def _size(said: str) -> tuple[int, int]:
    n, k = map(int, said.split(" x "))
    return n, k


def _choice(said: str) -> Choice:
    name, *numbers = said.split()
    return name, tuple(map(int, numbers))
