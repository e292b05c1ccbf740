"""Texts by which models are calibrated and judged: the demo model's; of a model that looks values up, rows of those."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from octavo.evals import demo_text
from octavo.evals.retrieval import KEY, draw, key_tokens, value_tokens
from octavo.io.gguf import GGUFFile
from octavo.runtime import resolve
from octavo.text import Tokenizer

Split = Literal["train", "test"]
CONTEXT, ROWS = 512, 64
"""Tokens of a row, which is a window, and how many rows a text has, unless somebody says."""
SEEDS: dict[Split, int] = {"train": 101, "test": 202}


def tokens_of(tokenizer: Tokenizer, split: Split, context: int = CONTEXT, rows: int = ROWS) -> list[int]:
    """The text to judge by ("test"), or another one to calibrate with ("train")."""
    if not _retrieves(tokenizer):
        return demo_text(tokenizer, split).tokens
    rng, keys, values = np.random.default_rng(SEEDS[split]), key_tokens(tokenizer), value_tokens(tokenizer)
    return [int(token) for _ in range(rows) for token in draw(rng, keys, values, context).tokens]


@cache
def held_out(model: str) -> list[int]:
    """The text to judge a model by."""
    with GGUFFile.open(resolve(model)) as file:
        return tokens_of(Tokenizer.from_gguf(file), "test")


def calibration(model: str, folder: Path, context: int = CONTEXT, rows: int = ROWS) -> str:
    """The text to calibrate with as methods take it: "demo", or a file of rows in `folder`."""
    with GGUFFile.open(resolve(model)) as file:
        tokenizer = Tokenizer.from_gguf(file)
    if not _retrieves(tokenizer):
        return "demo"
    path = folder / f"{Path(model).stem}.txt"
    tokens = tokens_of(tokenizer, "train", context, rows)
    path.write_text("".join(tokenizer.texts[token] for token in tokens), encoding="utf-8")
    return str(path)


def _retrieves(tokenizer: Tokenizer) -> bool:
    return KEY.format(0) in tokenizer.texts
