"""What `octavo inspect` tells of folders as others publish them."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run, octavo
from tests.huggingface.published_models import publish

__all__ = ["octavo"]


def test_a_quantized_folder_is_of_the_type_that_its_weights_have(octavo: Run, tmp_path: Path) -> None:
    publish(tmp_path / "hf", "gptq-v1")
    told = octavo("inspect", str(tmp_path / "hf")).out
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert {"file type GROUP4_128_F16", "quantized as gptq"} <= set(lines)
    types = [line.split()[0] for line in lines if line.endswith(("% 32", "% 4.125"))]
    assert types == ["F32", "GROUP4_128_F16"], "the embedding of so small a model takes more bytes"
