"""Matrices that are several, one after the other: which rows belong to each, where each has a scale of its own."""

from __future__ import annotations

from collections.abc import Mapping

JOINED = {
    "qkv_proj": ("num_attention_heads", "num_key_value_heads", "num_key_value_heads"),
    "in_proj_qkv": (
        "linear_num_key_heads linear_key_head_dim", "linear_num_key_heads linear_key_head_dim",
        "linear_num_value_heads linear_value_head_dim",
    ),
    "gate_up_proj": ("", ""),
}
"""By the last part of a module's name: what each matrix' rows are proportional to, numbers of config.json."""


def count_of(name: str) -> int:
    """How many matrices a module is."""
    return len(JOINED.get(name.rpartition(".")[2], ("",)))


def rows_of_each(name: str, config: Mapping[str, object], n: int) -> list[int]:
    """How many of the `n` rows of a module each of its matrices has; none where that is not known."""
    shares = [_product(config, each.split()) for each in JOINED.get(name.rpartition(".")[2], ())]
    return [n // sum(shares) * share for share in shares] if shares and all(shares) and n % sum(shares) == 0 else []


def _product(config: Mapping[str, object], words: list[str]) -> int:
    """Of these numbers; 0 where one is missing."""
    product = 1
    for word in words:
        value = config.get(word)
        product *= value if type(value) is int and value > 0 else 0
    return product
