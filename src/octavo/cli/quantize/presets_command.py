"""`octavo quantize SRC --list`: what each preset would make of a model."""

from __future__ import annotations

from dataclasses import replace

from octavo.cli.columns import print_columns
from octavo.cli.plain import printable, to_json
from octavo.errors import UsageError
from octavo.io.gguf import GGUFFile
from octavo.io.missing_model import require_there
from octavo.quantizers.job.job_plan import plan, require_weighted
from octavo.quantizers.job.job_source import gguf_source
from octavo.quantizers.job.write import write_model
from octavo.quantizers.mix.mixing import Choices
from octavo.quantizers.mix.presets import PRESETS
from octavo.sizes import size


def show_presets(src: str, as_json: bool) -> None:
    """Print the bytes of all tensors under each preset, the largest first, and which presets want an imatrix."""
    require_there(src)
    rows = []
    with GGUFFile.open(src) as file:
        source = gguf_source(file)
        for preset in PRESETS:
            job = replace(plan(source, preset, Choices()), notes=())  # rows that don't fit are in the sizes
            report = write_model(job, "", dry_run=True)
            try:
                require_weighted(job)
                wants = False
            except UsageError:
                wants = True
            rows.append((preset.name, report.nbytes, report.bits_per_weight, wants))
    rows.sort(key=lambda row: -row[1])
    if as_json:
        names = ("preset", "bytes", "bits_per_weight", "needs_imatrix")
        print(to_json({"source": src, "presets": [dict(zip(names, row, strict=True)) for row in rows]}))
        return
    shown = [(name, size(n), f"{bits:.2f}", "--imatrix" if wants else "") for name, n, bits, wants in rows]
    print(f"{printable(src)}, all tensors:")
    print_columns(("preset", "size", "bits per weight", "needs"), shown, ("size", "bits per weight"))
