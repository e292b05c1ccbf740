"""The layer that a name tells."""

from __future__ import annotations

import pytest

from octavo.graph.names import split_layer


@pytest.mark.parametrize(
    ("name", "layer", "within"),
    [
        ("blk.0.attn_q.weight", 0, "attn_q.weight"),
        ("blk.123.ffn_down.weight", 123, "ffn_down.weight"),
        ("blk.3.a\nb", 3, "a\nb"),
        ("output.weight", None, "output.weight"),
        ("xblk.3.a", None, "xblk.3.a"),
        ("blk.3", None, "blk.3"),
        ("blk.-1.a", None, "blk.-1.a"),
        (f"blk.{'9' * 5000}.a", None, f"blk.{'9' * 5000}.a"),  # more digits than Python makes an integer of
    ],
    ids=lambda value: str(value)[:30],
)
def test_split_layer(name: str, layer: int | None, within: str) -> None:
    assert split_layer(name) == (layer, within)
