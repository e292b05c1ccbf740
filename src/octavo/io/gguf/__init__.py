"""GGUF files: a bounds-checked reader and a writer. The byte format is in docs/gguf.md."""

from octavo.io.gguf.file import GGUFFile
from octavo.io.gguf.metadata import Metadata
from octavo.io.gguf.plain_metadata import PlainMetadata
from octavo.io.gguf.scan import scan_non_finite
from octavo.io.gguf.tensors import TensorInfo
from octavo.io.gguf.values import TypedValue, ValueType
from octavo.io.gguf.writer import LazyTensor, write_gguf

__all__ = [
    "GGUFFile",
    "LazyTensor",
    "Metadata",
    "PlainMetadata",
    "TensorInfo",
    "TypedValue",
    "ValueType",
    "scan_non_finite",
    "write_gguf",
]
