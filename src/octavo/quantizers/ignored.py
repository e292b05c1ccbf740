"""Linear layers that a user wants left as they are, by regular expressions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo.errors import UsageError
from octavo.huggingface.names import checkpoint_name, is_linear
from octavo.models import ModelSpec


def ignored_layers(model: ModelSpec, patterns: Sequence[str]) -> frozenset[str]:
    """The weights of linear layers in whose name a pattern is found: GGUF's (blk.0.ffn_down.weight), or a checkpoint's
    (model.layers.0.mlp.down_proj.weight; of experts with * in the place of a number).

    Raises UsageError for a pattern that is no regular expression or that no layer has, and where nothing is left to be
    quantized.
    """
    names = {
        name: (name, checkpoint_name(name, model.architecture) or "") for name in model.file.tensors if is_linear(name)
    }
    found: set[str] = set()
    for pattern in patterns:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise UsageError(f"--ignore is {pattern!r}, no regular expression: {error}") from None
        mine = {name for name, both in names.items() if any(map(compiled.search, both))}
        if not mine:
            first = " or ".join(next(iter(names.values()), ()))
            problem = f"--ignore is {pattern!r}, which matches no linear layer"
            raise UsageError(f"{problem} (allowed: a part of a name, as of {first})")
        found |= mine
    if names and found == names.keys():
        problem = f"--ignore is {', '.join(map(repr, patterns))}, which leaves no layer to quantize"
        raise UsageError(f"{problem} (allowed: what matches some)")
    return frozenset(found)
