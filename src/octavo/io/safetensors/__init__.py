"""Safetensors files and the checkpoints made of them: bounds-checked, read and written one tensor at a time."""

from octavo.io.safetensors.checkpoint import Checkpoint
from octavo.io.safetensors.json_file import read_json
from octavo.io.safetensors.safetensors_file import SafetensorsFile, StoredTensor
from octavo.io.safetensors.safetensors_writer import TensorHead, write_safetensors

__all__ = ["Checkpoint", "SafetensorsFile", "StoredTensor", "TensorHead", "read_json", "write_safetensors"]
