"""OLMo 2 and 3: norms behind attention and feed-forward only, q and k normed as whole rows; windows in OLMo 3."""

import math

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys, local_rope
from octavo.models.shared.decoder import POST_NORMS, Attention, Decoder
from octavo.models.shared.hparams import Hyperparams, local_base
from octavo.models.shared.reader import MetadataReader
from octavo.models.shared.windows import Windows, layer_window_keys

PERIOD = 4
YARN_FACTOR = "rope.scaling.yarn_attn_factor"


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    usual = 1 + 0.1 * math.log(max(1.0, hp.rope.factor))
    if not math.isclose(factor := r.real(YARN_FACTOR, usual), usual, rel_tol=1e-5):
        raise r.error(YARN_FACTOR, f"is {factor:g}", f"{usual:g}, which is yarn's own")
    return hp


def olmo3(config: Config) -> Keys:
    """The windows. Raises ModelError for layers of a window whose rope is not that of the others, unstretched."""
    local = local_rope(config)
    base = {} if local is None else {"rope.freq_base_swa": config.real("rope_theta", 10000.0, of=local)}
    return layer_window_keys(config, PERIOD) | base


ARCH = Architecture(
    name="olmo2",
    network=Decoder(mixer=Attention(qk_norm="rows", freq_factors=True), norms=POST_NORMS),
    keys=(local_base(), YARN_FACTOR),
    windows=Windows(PERIOD),
    sizes=Sizes(complete=complete),
    classes={"Olmo2ForCausalLM": lambda config: {}, "Olmo3ForCausalLM": olmo3},
    names=names.ATTENTION | names.QK_NORMS | names.POST_NORMS | names.FFN,
)
