"""What a model's quantization is called."""

from __future__ import annotations

from collections import Counter

from octavo.io.gguf.file import GGUFFile

FLOATS = ("F32", "F16", "BF16", "F64")


def file_type(file: GGUFFile) -> str:
    """The preset that the model was made with, in words; without one the type that takes most of the bytes, of the
    quantized ones where there are some."""
    from gguf import LlamaFileType

    number = file.metadata.get("general.file_type")
    if isinstance(number, int) and number in LlamaFileType._value2member_map_:
        return LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    taken: Counter[str] = Counter()
    for info in file.tensors.values():
        taken[info.type_name] += info.nbytes
    return max(taken, key=lambda name: (name not in FLOATS, taken[name]), default="none")
