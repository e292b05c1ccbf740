"""GGUF files: a bounds-checked, memory-mapped reader and a writer. The byte format is in docs/gguf.md."""

from octavo.io.gguf.file import GGUFFile
from octavo.io.gguf.metadata import Metadata
from octavo.io.gguf.tensors import TensorInfo
from octavo.io.gguf.values import TypedValue, ValueType

__all__ = ["GGUFFile", "Metadata", "TensorInfo", "TypedValue", "ValueType"]
