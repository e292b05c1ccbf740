"""How numbers are stored: the format table, packed tensors, and the way from bytes to values."""

from octavo.formats.codec import decode, dequantize, dequantize_rows, pack, quantize_reference, unpack
from octavo.formats.group import group_format
from octavo.formats.per_channel import channel_format
from octavo.formats.qtensor import DeferredQTensor, PlacedQTensor, QTensor
from octavo.formats.spec import BlockFormat, Planes
from octavo.formats.table import FORMATS, by_gguf_id, by_name

__all__ = [
    "FORMATS",
    "BlockFormat",
    "DeferredQTensor",
    "PlacedQTensor",
    "Planes",
    "QTensor",
    "by_gguf_id",
    "by_name",
    "channel_format",
    "decode",
    "dequantize",
    "dequantize_rows",
    "group_format",
    "pack",
    "quantize_reference",
    "unpack",
]
