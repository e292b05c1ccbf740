"""M-RoPE: positions of three numbers, whose parts of a head are sections. In a text all three are the same.

So it is plain rope there, whether sections lie one after the other or take turns (arXiv 2409.12191).
"""

from __future__ import annotations

from octavo.models.shared.config import Config, Keys, brief, rope_parameters
from octavo.models.shared.hparams import HyperparamReader, Hyperparams

SECTIONS = "rope.dimension_sections"
"""The field of how many pairs of a head turn by each number: GGUF has four of them, models the first three."""


def check_sections(r: HyperparamReader, hp: Hyperparams) -> None:
    """Raises ModelError for sections that are missing, or do not make up the pairs of a head."""
    sections = r.metadata.get_ints(r.key(SECTIONS)).tolist()
    pairs = hp.rope.dims // 2
    if len(sections) > 4 or min(sections, default=-1) < 0 or sum(sections) != pairs:
        raise r.error(SECTIONS, f"{sections} does not fit", f"up to 4 numbers from 0, which make {pairs} pairs")


def section_keys(config: Config, usual: list[int] | None = None) -> Keys:
    """The sections that config.json says, `usual` where it does not. Raises ModelError for what are none."""
    sections = rope_parameters(config).get("mrope_section") or usual
    if sections is None:
        raise config.error("mrope_section", "is missing", "up to 4 numbers")
    if not isinstance(sections, list) or len(sections) > 4 or not all(type(n) is int and n >= 0 for n in sections):
        raise config.error("mrope_section", f"is {brief(sections)}", "up to 4 numbers")
    return {SECTIONS: sections + [0] * (4 - len(sections))}
