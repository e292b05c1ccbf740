"""Which layout a checkpoint has: by its configuration, in config.json or in a file beside it."""

from __future__ import annotations

from collections.abc import Callable

from octavo.huggingface.layouts import modelopt
from octavo.huggingface.layouts.auto_round import OLDER, AutoRound
from octavo.huggingface.layouts.awq import Awq
from octavo.huggingface.layouts.bitnet import Bitnet
from octavo.huggingface.layouts.compressed_tensors import Compressed
from octavo.huggingface.layouts.fp8 import Fp8
from octavo.huggingface.layouts.gptq import Gptq
from octavo.huggingface.layouts.mlx import Mlx
from octavo.huggingface.layouts.modelopt import ModelOpt
from octavo.huggingface.layouts.module import QuantizedLayout
from octavo.huggingface.layouts.mxfp4 import Mxfp4
from octavo.huggingface.layouts.qqq import Qqq
from octavo.huggingface.layouts.quant_settings import QuantSettings
from octavo.io.safetensors import Checkpoint
from octavo.models.shared.config import Config

KEY, OF_MLX, MLX = "quantization_config", "quantization", "mlx"
METHODS: dict[str, Callable[[QuantSettings], QuantizedLayout]] = {
    "auto-round": AutoRound,
    OLDER: AutoRound,
    "awq": Awq,
    "bitnet": Bitnet,
    "compressed-tensors": Compressed,
    "fp8": lambda settings: (AutoRound if "autoround_version" in settings.values else Fp8)(settings),
    "gptq": Gptq,
    "modelopt": ModelOpt,
    "modelopt_fp4": ModelOpt,
    "mxfp4": Mxfp4,
    "qqq": Qqq,
}
"""Layouts by `quant_method`."""
BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""Files that older programs put what config.json lacks in, and the method that goes without saying in them."""


def find_layout(checkpoint: Checkpoint, config: Config) -> QuantizedLayout | None:
    """The layout of a checkpoint; None where weights are plain floats.

    Raises ModelError for a method that is not known, and for values that have no meaning here.
    """
    found = _find_settings(checkpoint, config)
    if found is None:
        return None
    method, settings = found
    return Mlx(settings) if method == MLX else METHODS[method](settings)


def layout_name(checkpoint: Checkpoint, config: Config) -> str | None:
    """What the layout of a checkpoint is called, its `quant_method`; None where weights are plain floats."""
    found = _find_settings(checkpoint, config)
    return None if found is None else found[0]


def has_cache_scales(checkpoint: Checkpoint, config: Config) -> bool:
    """Whether the scales of caches that a checkpoint has belong to its layout, and are those of 8 bits."""
    found = _find_settings(checkpoint, config)
    return found is not None and (METHODS.get(found[0]) is not ModelOpt or modelopt.has_cache_scales(found[1]))


def _find_settings(checkpoint: Checkpoint, config: Config) -> tuple[str, QuantSettings] | None:
    """The method of a checkpoint, and what is said of it."""
    of_mlx = config.values.get(OF_MLX)
    if of_mlx is not None:  # which is under the other key too, in newer files
        return MLX, QuantSettings.of(config, OF_MLX, of_mlx)
    found = config.values.get(KEY)
    if found is not None:
        return _named(QuantSettings.of(config, KEY, found))
    for name, method in BESIDE.items():
        values = checkpoint.json(name)
        if values is not None:
            return _named(QuantSettings(Config(values, checkpoint.path(name)), "", {"quant_method": method, **values}))
    return None


def _named(settings: QuantSettings) -> tuple[str, QuantSettings]:
    return str(settings.one_of("quant_method", METHODS)), settings
