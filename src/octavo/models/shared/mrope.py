"""M-RoPE: positions of three numbers, whose parts of a head are sections. In a text all three are the same.

So it is plain rope there, whether sections lie one after the other or take turns (arXiv 2409.12191).
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import MetadataReader, brief

SECTIONS = "rope.dimension_sections"
"""The field of how many pairs of a head turn by each number: GGUF has four of them, models the first three."""


@dataclass(frozen=True)
class Sections:
    """The row of sections, which change nothing in a text.

    usual     what config.json means that does not say; None: it has to
    optional  a file may lack them
    checked   they have to make up the pairs of a head
    word      in the rope's parameters
    """

    usual: tuple[int, ...] | None = None
    optional: bool = False
    checked: bool = True
    word: str = "mrope_section"
    name: str = ""
    field: str = SECTIONS

    def read(self, r: MetadataReader, hp: Hyperparams) -> None:
        """Raises ModelError for sections that are missing, or do not make up the pairs of a head."""
        if not self.checked or (self.optional and not r.has(SECTIONS)):
            return
        sections = r.metadata.get_ints(r.key(SECTIONS)).tolist()
        pairs = hp.rope.dims // 2
        if len(sections) > 4 or min(sections, default=-1) < 0 or sum(sections) != pairs:
            raise r.error(SECTIONS, f"{sections} does not fit", f"up to 4 numbers from 0, which make {pairs} pairs")

    def keys(self, config: Config) -> Keys:
        """The sections that config.json says. Raises ModelError for what are none."""
        found = rope_parameters(config)
        usual = None if self.usual is None else list(self.usual)
        sections = found.get("mrope_section") or found.get(self.word) or usual
        if sections is None:
            raise config.error("mrope_section", "is missing", "up to 4 numbers")
        if not isinstance(sections, list) or len(sections) > 4 or not all(type(n) is int and n >= 0 for n in sections):
            raise config.error("mrope_section", f"is {brief(sections)}", "up to 4 numbers")
        return {SECTIONS: sections + [0] * (4 - len(sections))}
