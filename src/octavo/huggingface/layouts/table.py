"""Which layout a checkpoint has: by its configuration, in config.json or in a file beside it."""

from __future__ import annotations

from collections.abc import Callable

from octavo.huggingface.layouts.awq import Awq
from octavo.huggingface.layouts.compressed import Compressed
from octavo.huggingface.layouts.gptq import Gptq
from octavo.huggingface.layouts.module import Layout
from octavo.huggingface.layouts.settings import Settings
from octavo.io.safetensors import Checkpoint
from octavo.models.config import Config

KEY = "quantization_config"
METHODS: dict[str, Callable[[Settings], Layout]] = {
    "awq": Awq,
    "compressed-tensors": Compressed,
    "gptq": Gptq,
}
"""Layouts by `quant_method`."""
BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files that older programs put what config.json lacks in, and the method that goes without saying in them."""


def find_layout(checkpoint: Checkpoint, config: Config) -> Layout | None:
    """The layout of a checkpoint; None where weights are plain floats.

    Raises ModelError for a method that is not known, and for values that have no meaning here.
    """
    settings = _settings(checkpoint, config)
    return None if settings is None else METHODS[settings.one_of("quant_method", METHODS)](settings)


def _settings(checkpoint: Checkpoint, config: Config) -> Settings | None:
    found = config.values.get(KEY)
    if found is not None:
        return Settings.of(config, KEY, found)
    for name, method in BESIDE.items():
        values = checkpoint.json(name)
        if values is not None:
            return Settings(Config(values, checkpoint.path(name)), "", {"quant_method": method, **values})
    return None
