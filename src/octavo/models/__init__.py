"""Architectures: a short file each, named as GGUF names them."""

from octavo.models.shared.architecture import Architecture, ModelSpec
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.registry import ARCHITECTURES, read_model

__all__ = ["ARCHITECTURES", "Architecture", "Hyperparams", "ModelSpec", "read_model"]
