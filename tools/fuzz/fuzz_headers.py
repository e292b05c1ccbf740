"""Damaged GGUF headers, of which a reader is asked everything."""

from __future__ import annotations

import random
from pathlib import Path

import gguf_target


class Target:
    """A file in the folder, and the shard beside it that it may claim to belong with."""

    def __init__(self, folder: Path) -> None:
        self._seeds = gguf_target.seeds()
        self._path = gguf_target.input_path(folder)

    def make(self, rng: random.Random) -> None:
        self._path.write_bytes(gguf_target.damage(rng, rng.choice(self._seeds), self._seeds))

    def exercise(self) -> bool:
        return gguf_target.exercise(self._path)
