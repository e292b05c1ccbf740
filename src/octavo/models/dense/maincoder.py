"""Maincoder: norms of q and k behind the rope, as Hunyuan has them, and rope on neighbours in folders, too."""

from octavo.models.dense import hunyuan_dense
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, TensorLayout

ARCH = Architecture(
    name="maincoder",
    network=hunyuan_dense.NETWORK,
    interleaved=True,
    classes={"MaincoderForCausalLM": lambda config: {}},
    only={"use_qk_norm": True},
    names=names.LLAMA | names.QK_NORMS,
    ropes=("default",),
    layout=TensorLayout(permuted=False),
)
