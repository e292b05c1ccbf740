"""Files to write that must be others than those that are read: what is written takes their place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from octavo.errors import UsageError

BESIDE, OF_PARTS = (".json", ".jinja", ".model", ".txt"), (".json", ".safetensors")
"""Ends of names in a checkpoint folder, and in folders in it."""

StrPath = str | os.PathLike[str]

MODEL, TEXT, IMATRIX = "the model that is read", "the text that is read", "the importance matrix that is read"


def require_apart(path: StrPath, others: Mapping[str, Iterable[StrPath]]) -> None:
    """Raise UsageError where `path` is one of the `others`: paths by what the files are, as the error says it.

    A link counts as the file that it points at. Others need not be there.
    """
    for what, names in others.items():
        if any(_same(path, name) for name in names):
            raise UsageError(f"{os.fsdecode(path)} is {what}; write to another file")


def model_files(path: StrPath, files: Iterable[str]) -> list[str]:
    """The files of the model at `path`: `files`, which hold its tensors, and those that a checkpoint folder has beside
    them, in the folders of its parts too. Other results that somebody keeps in that folder are not among them."""
    root, found = os.fsdecode(path), [os.fsdecode(path), *files]
    for folder, _, names in os.walk(root):
        beside = BESIDE if folder == root else OF_PARTS
        found += [os.path.join(folder, name) for name in names if name.endswith(beside)]
    return found


def text_files(*names: str | None) -> Iterator[str]:
    """The files among names of texts, of which "demo" is none."""
    return (name for name in names if name is not None and name != "demo")


def _same(path: StrPath, other: StrPath) -> bool:
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    return os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other)
