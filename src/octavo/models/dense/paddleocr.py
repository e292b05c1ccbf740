"""PaddleOCR-VL, text: ERNIE 4.5 with rope on halves of a head, which has sections."""

from octavo.models.dense import llama
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.mrope import Sections

ARCH = Architecture(
    name="paddleocr",
    network=llama.NETWORK,
    keys=(Sections((16, 24, 24)),),
    classes={"PaddleOCRVLForConditionalGeneration": lambda config: {}},
    only={"sliding_window": None, "rope_is_neox_style": True},
    names=names.LLAMA,
    ropes=("default",),
    tied=True,
)
