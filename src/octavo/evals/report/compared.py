"""Ways to quantize a report's base, each to be measured next to the model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo.errors import UsageError
from octavo.evals.compensation import KINDS, Compensation
from octavo.evals.schemes import KINDS as SCHEME_KINDS
from octavo.evals.schemes import SchemeMethod
from octavo.huggingface.schemes import checkpoint_scheme
from octavo.quantizers.checkpoint import quantize_checkpoint
from octavo.quantizers.job.quantize import quantize_file
from octavo.quantizers.mix.presets import find_preset

NEAREST = "rtn"
"""What a scheme has without a method."""


@dataclass(frozen=True)
class Way:
    """A way to quantize a model.

    name    of a preset or a scheme
    kind    which of these
    method  by which weights are made over a text, None where they are only encoded
    """

    name: str
    kind: Literal["preset", "scheme"]
    method: str | None = None

    @property
    def role(self) -> str:
        """What a report calls it: "preset", "scheme, gptq"."""
        return self.kind if self.method is None else f"{self.kind}, {self.method}"

    def write(self, base: str, folder: str, text: str, device: str, threads: int | None) -> str:
        """Quantize `base` into `folder`, over the text "demo" or a file's; the path of what is made."""
        path = os.path.join(folder, "made")
        if self.kind == "scheme":
            by = None if self.method is None else SchemeMethod(text, self.method, device=device, threads=threads)
            quantize_checkpoint(base, path, self.name, method=by, threads=threads)
            return path
        kind = next((kind for kind in KINDS if kind == self.method), None)
        method = None if kind is None else Compensation(text, kind, device=device, threads=threads)
        quantize_file(base, f"{path}.gguf", self.name, method=method, threads=threads)
        return f"{path}.gguf"


def ways(presets: Sequence[str], schemes: Sequence[str], methods: Sequence[str]) -> list[Way]:
    """Each preset and scheme without a method, and by those of `methods` that there are for it.

    Raises UsageError for names that are not known.
    """
    unknown = next((name for name in methods if name not in SCHEME_KINDS), None)
    if unknown is not None:
        raise UsageError(f"method {unknown!r} (allowed: {', '.join(SCHEME_KINDS)})")
    found = []
    for name in (find_preset(name).name for name in presets):
        found += [Way(name, "preset"), *(Way(name, "preset", method) for method in methods if method in KINDS)]
    for name in (checkpoint_scheme(name).name for name in schemes):
        found += [Way(name, "scheme"), *(Way(name, "scheme", method) for method in methods if method != NEAREST)]
    return found
