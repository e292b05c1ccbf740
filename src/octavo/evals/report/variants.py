"""Ways to quantize a report's base, each to be measured next to the model."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo.calibrate.gguf.gguf_method import KINDS, GgufMethod, require_levels
from octavo.calibrate.schemes.scheme_method import KINDS as SCHEME_KINDS
from octavo.calibrate.schemes.scheme_method import SchemeMethod
from octavo.errors import UsageError
from octavo.huggingface.schemes import checkpoint_scheme
from octavo.io.gguf import GGUFFile
from octavo.quantizers.job.job_plan import plan
from octavo.quantizers.job.job_source import gguf_source
from octavo.quantizers.job.quantize import quantize_file
from octavo.quantizers.mix.mixing import Choices
from octavo.quantizers.mix.presets import find_preset
from octavo.quantizers.schemes.checkpoint_folder import quantize_checkpoint

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

    @property
    def title(self) -> str:
        """Its name, and its method if it has one: "Q4_0", "Q4_0 by gptq"."""
        return self.name if self.method is None else f"{self.name} by {self.method}"

    def require(self, base: str) -> None:
        """Raise, before anything is run, what `write` raises for a preset, a scheme or a method that `base` lacks."""
        if self.method is None:
            with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
                path = os.path.join(folder, "made")
                if self.kind == "scheme":
                    quantize_checkpoint(base, path, self.name, dry_run=True)
                else:
                    quantize_file(base, f"{path}.gguf", self.name, dry_run=True)
        elif self.kind == "scheme":
            SchemeMethod("", self.method).require(checkpoint_scheme(self.name))
        else:
            with GGUFFile.open(base) as file:
                require_levels(plan(gguf_source(file), find_preset(self.name), Choices()))

    def write(self, base: str, folder: str, text: str, device: str, threads: int | None) -> str:
        """Quantize `base` into `folder`, over the text "demo" or a file's; the path of what is made."""
        path = os.path.join(folder, "made")
        if self.kind == "scheme":
            by = None if self.method is None else SchemeMethod(text, self.method, device=device, threads=threads)
            quantize_checkpoint(base, path, self.name, method=by, threads=threads)
            return path
        kind = next((kind for kind in KINDS if kind == self.method), None)
        method = None if kind is None else GgufMethod(text, kind, device=device, threads=threads)
        quantize_file(base, f"{path}.gguf", self.name, method=method, threads=threads)
        return f"{path}.gguf"


def those_there_are(base: str, found: Sequence[Way]) -> tuple[list[Way], list[str]]:
    """Those of `found` that there are for a base, and of the others what they are and why there are none.

    Raises what `quantize_file` and `quantize_checkpoint` raise for a preset or a scheme that `base` can't have at all.
    """
    made, left_out = [], []
    for way in found:
        try:
            way.require(base)
            made.append(way)
        except UsageError as error:
            if way.method is None:
                raise
            left_out.append(f"{way.title}: {error}")
    return made, left_out


def ways(presets: Sequence[str], schemes: Sequence[str], methods: Sequence[str]) -> list[Way]:
    """Each preset and scheme without a method, and by those of `methods` that its kind has.

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
