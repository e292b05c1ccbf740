"""Safetensors files and the checkpoints made of them: bounds-checked, read one tensor at a time."""

from octavo.io.safetensors.checkpoint import Checkpoint
from octavo.io.safetensors.file import SafetensorsFile, StoredTensor
from octavo.io.safetensors.json_file import read_json

__all__ = ["Checkpoint", "SafetensorsFile", "StoredTensor", "read_json"]
