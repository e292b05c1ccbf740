"""Jais 2: Nemotron 4 with biases, and rope on whole heads."""

from dataclasses import replace

from octavo.models.dense import nemotron
from octavo.models.shared.architecture import TensorLayout

ARCH = replace(
    nemotron.ARCH, name="jais2", layer_norms="layer_norm_eps", rotary_part=None, layout=TensorLayout(),
    classes={"Jais2ForCausalLM": lambda config: {}},
)
