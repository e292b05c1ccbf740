"""Linear layers that a user wants left as they are, by regular expressions, and which of them vLLM wants together."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Sequence

from octavo.errors import UsageError
from octavo.expressions import compiled
from octavo.huggingface.tensors.tensor_names import EXPERTS, checkpoint_name, is_linear
from octavo.models import ModelSpec

_log = logging.getLogger(__name__)

JOINED = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"), ("ffn_gate_shexp", "ffn_up_shexp"), EXPERTS)
"""Linear layers of a block that vLLM has in one: it wants one scheme for all, or none, and else refuses to load."""


def ignored_layers(model: ModelSpec, patterns: Sequence[str]) -> frozenset[str]:
    """The weights of linear layers in whose name a pattern is found: GGUF's (blk.0.ffn_down.weight), or a checkpoint's
    (model.layers.0.mlp.down_proj.weight; of experts with * in the place of a number).

    A warning names layers that vLLM joins with others. Raises UsageError for a pattern that is not a regular expression
    or that no layer has, and where nothing is left to be quantized.
    """
    names = {
        name: (name, checkpoint_name(name, model.architecture) or "") for name in model.file.tensors if is_linear(name)
    }
    found: set[str] = set()
    for pattern in patterns:
        try:
            expression = compiled(pattern)
        except re.error as error:
            raise UsageError(f"--ignore {pattern!r} is not a valid regular expression: {error}") from None
        mine = {name for name, both in names.items() if any(map(expression.search, both))}
        if not mine:
            first = " or ".join(next(iter(names.values()), ()))
            problem = f"--ignore is {pattern!r}, which matches no linear layer"
            raise UsageError(f"{problem} (allowed: a part of a name, as of {first})")
        found |= mine
    if names and found == names.keys():
        problem = f"--ignore is {', '.join(map(repr, patterns))}, which leaves no layer to quantize"
        raise UsageError(f"{problem} (allowed: what matches some)")
    for joined, apart, layers in _apart(names, found):
        where = f"{layers} layer{'s' if layers > 1 else ''}"
        _log.warning("vLLM joins %s and wants all of them or none as they are: --ignore leaves %s in %s",
                     _listed(joined), _listed(apart), where)
    return frozenset(found)


def _apart(names: Collection[str], left: Collection[str]) -> list[tuple[tuple[str, ...], tuple[str, ...], int]]:
    """Of layers that vLLM joins: those that are there, those of them that are left and others not, and in how many
    blocks."""
    found = Counter[tuple[tuple[str, ...], tuple[str, ...]]]()
    for block in sorted({name.rsplit(".", 2)[0] for name in names}):
        for joined in JOINED:
            there = tuple(one for one in joined if f"{block}.{one}.weight" in names)
            apart = tuple(one for one in there if f"{block}.{one}.weight" in left)
            if 0 < len(apart) < len(there):
                found[there, apart] += 1
    return [(*both, layers) for both, layers in found.items()]


def _listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
