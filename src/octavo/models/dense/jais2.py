"""Jais 2: Nemotron 4 with biases, and rope on whole heads."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.dense import nemotron
from octavo.models.shared.config import Config, Keys, layer_norm_keys


def config_keys(config: Config) -> Keys:
    return layer_norm_keys(config, "layer_norm_eps")


ARCH = replace(nemotron.ARCH, name="jais2", classes={"Jais2ForCausalLM": config_keys}, norm_shift=0.0)
