"""Architectures: a short file each, named as GGUF names them."""

from octavo.models.architecture import Architecture, ModelSpec
from octavo.models.hparams import Hyperparams
from octavo.models.registry import ARCHITECTURES, read_model

__all__ = ["ARCHITECTURES", "Architecture", "Hyperparams", "ModelSpec", "read_model"]
