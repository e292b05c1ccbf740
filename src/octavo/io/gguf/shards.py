"""Split sets: a model in several files, `name-00001-of-00003.gguf` and so on, found from any one of them.

Each shard says which one it is (`split.no`, from 0), of how many (`split.count`), and how many tensors the whole set
has (`split.tensors.count`). The model's metadata is in the first.
"""

from __future__ import annotations

import os
import re

from octavo.errors import GGUFError, shown
from octavo.io.gguf.header_limits import MAX_SHARDS, MAX_TENSORS
from octavo.io.gguf.part import Part, read_part

ARCHITECTURE = "general.architecture"
NO, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
_NAME = re.compile(r"(?P<stem>.*)-(?P<no>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


def read_parts(path: str | os.PathLike[str]) -> list[Part]:
    """The file at `path`, or every shard of the set that it belongs to, in order. Raises GGUFError."""
    opened = read_part(path)
    parts = [opened]
    try:
        count = opened.metadata.get_int(COUNT, 1)
        if count <= 1:
            return parts
        own, seen = opened.metadata.get_int(NO), _Tensors(opened)
        for i, shard in enumerate(_paths(opened, own, count)):
            if i != own:
                parts.append(_read_shard(shard, i, opened))
                seen.add(parts[-1])
        seen.check_all()
    except BaseException:
        for part in parts:
            part.source.close()
        raise
    return [*parts[1 : own + 1], opened, *parts[own + 1 :]]


def _paths(opened: Part, no: int, count: int) -> list[str]:
    """The paths of all shards, after checking that the name of the opened one agrees with its metadata."""
    metadata = opened.metadata
    if count > MAX_SHARDS:
        raise metadata.fault(COUNT, f"{count} shards", f"at most {MAX_SHARDS}")
    if not 0 <= no < count:
        raise metadata.fault(NO, f"shard {no} of {count}, counted from 0", f"0 to {count - 1}")
    folder, name = os.path.split(opened.source.path)
    match = _NAME.fullmatch(name)
    if match is None or (int(match["no"]), int(match["count"])) != (no + 1, count):
        wanted = f"a name that ends in -{no + 1:05d}-of-{count:05d}.gguf"
        raise metadata.fault(NO, f"shard {no + 1} of {count}, which the file's name does not say", wanted)
    return [os.path.join(folder, f"{match['stem']}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]


def _read_shard(path: str, no: int, opened: Part) -> Part:
    """Shard `no` of the set of `opened`, checked to belong to it."""
    ours = opened.metadata
    if not os.path.exists(path):
        problem = f"shard {no + 1} of {ours.get_int(COUNT)} is missing"
        raise GGUFError(problem, file=path, field=f"key {COUNT!r}", allowed="all shards in one folder")
    part = read_part(path)
    try:
        theirs = part.metadata
        for key, wanted in ((COUNT, ours.get_int(COUNT)), (NO, no), (TENSORS, ours.get_int(TENSORS))):
            number = theirs.get_int(key)
            if number != wanted:
                raise theirs.fault(key, f"a foreign shard: {number}", f"{wanted}, to fit {opened.source.path}")
        arch = ours.get_str(ARCHITECTURE, None)
        if arch is not None and theirs.get_str(ARCHITECTURE, arch) != arch:
            found = shown(theirs.get_str(ARCHITECTURE))
            raise theirs.fault(ARCHITECTURE, f"a foreign shard: {found}", f"{shown(arch)}, as in {opened.source.path}")
    except BaseException:
        part.source.close()
        raise
    return part


class _Tensors:
    """The tensors of a set, gathered shard by shard: none twice, and as many in all as the set says."""

    def __init__(self, opened: Part) -> None:
        self._opened, self._files = opened, dict.fromkeys(opened.tensors, opened.source.path)
        self._declared = opened.metadata.get_int(TENSORS)
        if not 0 <= self._declared <= MAX_TENSORS:
            raise opened.metadata.fault(TENSORS, f"{self._declared} tensors", f"0 to {MAX_TENSORS}")

    def add(self, part: Part) -> None:
        for name in part.tensors:
            if name in self._files:
                problem = f"a foreign shard: its tensor {shown(name)} is also in {self._files[name]}"
                raise part.metadata.fault(TENSORS, problem, "each tensor in one shard")
            self._files[name] = part.source.path
        if len(self._files) > self._declared:
            self.check_all()

    def check_all(self) -> None:
        if len(self._files) != self._declared:
            problem = f"{self._declared} tensors, but the shards have {len(self._files)}"
            raise self._opened.metadata.fault(TENSORS, problem, "the number of tensors in all shards")
