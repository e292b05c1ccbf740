"""Architectures: a short file each, named as GGUF names them."""

from octavo.models.architecture import ARCHITECTURES, Architecture, read_architecture
from octavo.models.hparams import Hyperparams

__all__ = ["ARCHITECTURES", "Architecture", "Hyperparams", "read_architecture"]
