"""Tables of the kernels and shapes that measured fastest: one for each architecture here, and the user's own, which
`octavo bench tune` writes into the folder of caches. Products of other sizes take those of the nearest.

A table has, by section, class of layout, size `n x k` and most tokens, choices: the first whose kernel computes the
product is taken.

    {"products": {"4 bits, 32 in 256, minima": {"4096 x 4096": {"1": ["matvec 4 32 4 1 1"], "4": [...], ...}}}}
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import log2
from operator import itemgetter
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from octavo.backends.gpu.matmul.product import Product, Shape
from octavo.backends.gpu.weights.layout import PlaneLayout
from octavo.errors import FileError
from octavo.io.atomic import failures_of, written_file
from octavo.io.regular_file import read_bytes
from octavo.jit.kernel_cache import cache_root

log = logging.getLogger("octavo")
R = TypeVar("R")
Section = Literal["products", "pairs", "experts"]
"""Products of tokens; of pairs of a token and an expert, one by one; of such pairs, sorted by experts."""
Choice = tuple[str, tuple[int, ...]]
"""The name of a kernel, and the numbers of its shape."""
Row = tuple[tuple[int, tuple[Choice, ...]], ...]
Table = dict[str, dict[str, dict[tuple[int, int], Row]]]
FOLDER = Path(__file__).parent
MOST_BYTES = 16 << 20
"""Of a table."""
SHOWN = 60
"""Characters of what is wrong in one that a message has."""


_trials: dict[str, Table] = {}
_forgets: list[Callable[[], None]] = []


def remembered(lookup: Callable[..., R]) -> Callable[..., R]:
    """`lookup` with its results kept until `forget`."""
    kept = cache(lookup)
    _forgets.append(kept.cache_clear)
    return kept


def forget() -> None:
    """What was looked up: the user's table is another one."""
    for each in _forgets:
        each()


def class_of(layout: PlaneLayout) -> str:
    """What of a layout decides which kernel is fastest: bits, groups, and what else is loaded or looked up."""
    coded = layout.table or layout.float8
    more = "table" if coded else "zero points" if layout.has_zero else "minima" if layout.has_min else "plain"
    groups = f"{layout.group} in {layout.super}" if layout.two_level else str(layout.group)
    return f"{layout.bits} bits, {groups}, {more}"


@remembered
def table(arch: str) -> Table:
    """The shipped table of an architecture, or of its like, with the user's rows; a damaged one of the user's is left
    out, with a warning."""
    like = {path.stem: path for path in sorted(FOLDER.glob("*.json"))}
    found = read(like.get(arch) or next(path for stem, path in like.items() if stem[:2] == arch[:2]))
    try:
        users = users_table(arch)
    except FileError as error:
        log.warning("device gpu: the shipped table of kernels is used alone: %s", error)
        return found
    for section, classes in users.items():
        for kind, rows in classes.items():
            found.setdefault(section, {}).setdefault(kind, {}).update(rows)
    return found


def user_file(arch: str) -> Path:
    """Where the user's table is."""
    return cache_root() / "tuned" / f"{arch}.json"


def users_table(arch: str) -> Table:
    """The user's table, empty where there is none. Raises FileError."""
    path = user_file(arch)
    return _trials[arch] if arch in _trials else read(path) if os.path.lexists(path) else {}


@contextmanager
def trial(arch: str, users: Table) -> Iterator[None]:
    """Look up in `users` as the user's table, whatever the file has."""
    _trials[arch] = users
    forget()
    try:
        yield
    finally:
        del _trials[arch]
        forget()


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A table as JSON has it."""

    about: str
    products: dict[str, dict[str, dict[int, list[str]]]] = {}
    pairs: dict[str, dict[str, dict[int, list[str]]]] = {}
    experts: dict[str, dict[str, dict[int, list[str]]]] = {}


def read(path: Path) -> Table:
    """A table. Raises FileError where it can't be read or names what is not a kernel."""
    try:
        file = msgspec.json.decode(read_bytes(path, MOST_BYTES), type=_File)
        return {
            section: {_class(kind): dict(map(_row, rows.items())) for kind, rows in classes.items()}
            for section, classes in (("products", file.products), ("pairs", file.pairs), ("experts", file.experts))
        }
    except (ValueError, msgspec.MsgspecError) as error:
        raise FileError(f"not a tuned table ({error}); remove it", file=path) from None


def _class(said: str) -> str:
    if not re.fullmatch(r"[1-9] bits, [0-9]{1,4}( in [0-9]{1,4})?, (plain|table|minima|zero points)", said):
        raise ValueError(f"{said[:SHOWN]!r} is not a class of layouts")
    return said


def _row(item: tuple[str, dict[int, list[str]]]) -> tuple[tuple[int, int], Row]:
    size, cells = item
    if not (found := re.fullmatch(r"([1-9][0-9]{0,9}) x ([1-9][0-9]{0,9})", size)) or not cells:
        raise ValueError(f"{size[:SHOWN]!r} is not a size with choices")
    row = tuple((most, tuple(map(_choice, said))) for most, said in sorted(cells.items()))
    return (int(found[1]), int(found[2])), row


def _choice(said: str) -> Choice:
    found = re.fullmatch(r"([a-z0-9_]+)((?: [0-9]{1,4})*)", said)
    if found and (kind := Shape.kinds.get(found[1])):
        numbers = tuple(map(int, found[2].split()))
        if len(numbers) == len(kind.allowed) and all(n in a for n, a in zip(numbers, kind.allowed, strict=True)):
            return found[1], numbers
    raise ValueError(f"{said[:SHOWN]!r} is not a kernel with its numbers")


def write(path: Path, found: Table, about: str) -> None:
    """Write a table, a line for each size. Raises FileError."""
    sections = [f' "about": {json.dumps(about)}']
    for section, classes in found.items():
        kinds = []
        for kind, rows in sorted(classes.items()):
            lines = [f'   "{n} x {k}": {json.dumps(dict(map(_said, row)))}' for (n, k), row in sorted(rows.items())]
            kinds.append(f'  "{kind}": {{\n' + ",\n".join(lines) + "\n  }")
        if kinds:
            sections.append(f' "{section}": {{\n' + ",\n".join(kinds) + "\n }")
    with failures_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with written_file(path) as temporary:
        Path(temporary).write_text("{\n" + ",\n".join(sections) + "\n}\n", encoding="utf-8")


def _said(cell: tuple[int, tuple[Choice, ...]]) -> tuple[int, list[str]]:
    most, choices = cell
    return most, [" ".join(map(str, (name, *numbers))) for name, numbers in choices]


def nearest(section: Section, p: Product) -> Iterator[Choice]:
    """Choices for a product: of its own class and size, then of the nearest ones."""
    for row in _nearest_rows(section, class_of(p.layout), p.n, p.kp, p.arch):
        yield from cell_for(row, p.tokens)


def merged(row: Sequence[tuple[int, tuple[Choice, ...]]]) -> Row:
    """A row without cells whose choices are those of the next one."""
    following = [*row[1:], (0, ())]
    return tuple((most, cell) for (most, cell), (_, after) in zip(row, following, strict=True) if cell != after)


def cell_for(row: Row, tokens: int) -> tuple[Choice, ...]:
    """The choices of a row for some tokens."""
    return next((said for most, said in row if tokens <= most), row[-1][1])


@remembered
def _nearest_rows(section: Section, kind: str, n: int, kp: int, arch: str) -> tuple[Row, ...]:
    """All rows, that of the nearest class and size first: what numbers of tokens have in common."""

    def distance(other: str, its_n: int, its_k: int) -> float:
        return 100 * _difference(kind, other) + abs(log2(n / its_n)) + 2 * abs(log2(kp / its_k))

    classes = table(arch)[section]
    found = [(distance(other, *size), row) for other, rows in classes.items() for size, row in rows.items()]
    return tuple(row for _, row in sorted(found, key=itemgetter(0)))


@cache
def _difference(kind: str, other: str) -> float:
    """How far apart two classes of layouts are."""
    (bits, groups, more), (others, other_groups, other_more) = kind.split(", "), other.split(", ")
    apart = abs(int(bits.split()[0]) - int(others.split()[0]))
    one_level = (" in " in groups) != (" in " in other_groups)
    return apart + 2 * one_level + (groups != other_groups) + 2 * (more != other_more)
