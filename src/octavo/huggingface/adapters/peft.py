"""LoRA adapters as PEFT saves them: a folder with adapter_config.json and adapter_model.safetensors.

https://huggingface.co/docs/peft/package_reference/lora says what the configuration means.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import FileError, ModelError, shown
from octavo.expressions import compiled
from octavo.io.foreign import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from octavo.io.safetensors import SafetensorsFile, StoredTensor
from octavo.io.safetensors.checkpoint import INDEX, SINGLE
from octavo.io.safetensors.json_file import read_json
from octavo.models.shared.reader import brief

MAX_CONFIG_BYTES = 1 << 24
PICKLE = "adapter_model.bin"
CHANGING = {
    "use_dora": "DoRA", "use_qalora": "QALoRA", "use_bdlora": "BD-LoRA", "arrow_config": "Arrow", "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA", "alora_invocation_tokens": "an activated LoRA (aLoRA)",
    "modules_to_save": "whole modules beside the LoRA", "trainable_token_indices": "single rows of embeddings",
    "layer_replication": "layers that occur several times", "lora_bias": "biases of a LoRA",
}
"""Words of the configuration under which an adapter is more, or something else, than W + B A, and what it is then."""
OF_OTHER_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of values of `init_lora_weights` with which training changes the model's own weights before it starts."""
WRAPPED = ".base_layer"
"""The end of a module's name inside of another one that wraps it."""
MOST_REPEATS, LONGEST = 4, 256
"""What a pattern of names may have, so that none takes long."""
_REPEATED_GROUP = re.compile(r"\)[*+?{]")

Names = Mapping[str, float]


@dataclass(frozen=True)
class PeftFolder:
    """A folder: what its configuration says, and its tensors by name.

    rank, alpha    of modules that no pattern names; `ranks` and `alphas` are those by pattern
    by_root        what B A is multiplied by is alpha / sqrt(rank) in place of alpha / rank (rsLoRA)
    tied           what an embedding gets, the output matrix that it is too gets as well
    targets        what adapter_config.json names as `target_modules`
    parameters     what it names as `target_parameters`: those of modules that are not layers, such as stacked experts
    base           the model that it was trained on, if that is said
    config         adapter_config.json itself
    """

    path: str
    rank: int
    alpha: float
    ranks: Names
    alphas: Names
    by_root: bool
    tied: bool
    targets: tuple[str, ...]
    parameters: tuple[str, ...]
    base: str | None
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    def rank_of(self, module: str) -> int:
        """The rank that the configuration gives a module, by its name in the model."""
        return int(_by_pattern(self.ranks, module, self.rank))

    def parameters_of(self, module: str) -> list[str]:
        """The whole names of what `parameters` names of a module, by its name in the model or as one that is wrapped:
        PEFT wraps a module once for each of them."""
        plain = unwrapped(module)
        names = {f"{plain}.{parameter.rpartition('.')[2]}": parameter for parameter in self.parameters}
        return sorted(name for name, parameter in names.items() if f".{name}".endswith(f".{parameter}"))

    def error(self, name: str, problem: str, allowed: str | None = None) -> ModelError:
        return ModelError(problem, file=self.path, field=f"tensor {shown(name)}", allowed=allowed)

    def factor(self, module: str) -> float:
        """What B A of a module is multiplied by."""
        rank, alpha = self.rank_of(module), _by_pattern(self.alphas, module, self.alpha)
        return alpha / math.sqrt(rank) if self.by_root else alpha / rank


def unwrapped(module: str) -> str:
    """The name that the model has for a module inside of others that wrap it."""
    while module.endswith(WRAPPED):
        module = module.removesuffix(WRAPPED)
    return module


def is_peft_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder has an adapter's configuration, and no model."""
    names = {name for name in (ADAPTER_CONFIG, INDEX, SINGLE) if os.path.isfile(os.path.join(os.fsdecode(path), name))}
    return names == {ADAPTER_CONFIG}


def read_peft(path: str | os.PathLike[str]) -> PeftFolder:
    """The adapter in a folder; of tensors only the header is read.

    Raises FileError for files that are missing, wrong or pickles, and ModelError for an adapter that is not a LoRA, or
    more than one.
    """
    folder = os.fsdecode(path)
    file, weights = os.path.join(folder, ADAPTER_CONFIG), os.path.join(folder, ADAPTER_WEIGHTS)
    if not os.path.isfile(file):
        raise FileError(f"has no {ADAPTER_CONFIG}, so it is not an adapter", file=folder)
    config = read_json(file, MAX_CONFIG_BYTES)
    _require_lora(config, file)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or rank < 1:
        raise ModelError(f"is {brief(rank)}", file=file, field="r", allowed="1 or more")
    ranks, alphas = (_numbers(config, word, file) for word in ("rank_pattern", "alpha_pattern"))
    for pattern, number in ranks.items():
        if number < 1 or number != int(number):
            raise ModelError(f"is {number:g} of {shown(pattern)}", file=file, field="rank_pattern", allowed="1 or more")
    if not os.path.isfile(weights):
        pickle = os.path.join(folder, PICKLE)
        if os.path.exists(pickle):
            raise FileError(f"is a pickle, which runs code when it is read; use {ADAPTER_WEIGHTS}", file=pickle)
        raise FileError(f"has no {ADAPTER_WEIGHTS}", file=folder)
    targets, base = config.get("target_modules"), config.get("base_model_name_or_path")
    listed = targets if isinstance(targets, list) else [targets]
    return PeftFolder(
        folder, rank, _number(alpha, "lora_alpha", file), ranks, alphas,
        bool(config.get("use_rslora")), bool(config.get("ensure_weight_tying")),
        tuple(sorted(str(target) for target in listed if isinstance(target, str))), _parameters(config, file),
        base if isinstance(base, str) and base else None, config, SafetensorsFile.open(weights).tensors,
    )


def _require_lora(config: Mapping[str, Any], file: str) -> None:
    """Raise ModelError for what is not a LoRA, or has more to it than that."""
    if (kind := config.get("peft_type")) != "LORA":
        raise ModelError(f"is {brief(kind)}", file=file, field="peft_type", allowed="LORA")
    for word, what in CHANGING.items():
        if value := config.get(word):
            raise ModelError(f"is {brief(value)}: {what}", file=file, field=word, allowed="none")
    if (bias := config.get("bias", "none")) != "none":
        raise ModelError(f"is {brief(bias)}", file=file, field="bias", allowed="none")
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(OF_OTHER_BASES):
        problem = f"is {brief(start)}, with which the model's own weights were changed before training"
        allowed = "another, or an adapter that was saved as a difference from the model"
        raise ModelError(problem, file=file, field="init_lora_weights", allowed=allowed)
    others = [key for key, value in config.items() if key.startswith("use_") and value and key != "use_rslora"]
    if others:
        raise ModelError("is not supported", file=file, field=others[0], allowed="false")


def _parameters(config: Mapping[str, Any], file: str) -> tuple[str, ...]:
    found = config.get("target_parameters") or []
    if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
        raise ModelError(f"is {brief(found)}", file=file, field="target_parameters", allowed="names of parameters")
    return tuple(found)


def _number(value: Any, word: str, file: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ModelError(f"is {brief(value)}", file=file, field=word, allowed="a number")
    return float(value)


def _numbers(config: Mapping[str, Any], word: str, file: str) -> Names:
    """A number for each of some patterns. Raises ModelError for other things, and patterns that may take long."""
    found = config.get(word) or {}
    if not isinstance(found, dict):
        raise ModelError(f"is {brief(found)}", file=file, field=word, allowed="numbers by names of modules")
    for pattern in found:
        repeats = sum(pattern.count(sign) for sign in "*+?{")
        if len(pattern) > LONGEST or repeats > MOST_REPEATS or _REPEATED_GROUP.search(pattern):
            allowed = f"up to {LONGEST} characters and {MOST_REPEATS} repeats, none of a group"
            raise ModelError(f"has {shown(pattern)}", file=file, field=word, allowed=allowed)
        try:
            _ends_with(pattern)
        except re.error:
            raise ModelError(f"has {shown(pattern)}", file=file, field=word, allowed="regular expressions") from None
    return {pattern: _number(value, word, file) for pattern, value in found.items()}


def _by_pattern(numbers: Names, module: str, usual: float) -> float:
    """The number of the first pattern that is a module's name, or an end of it behind a dot."""
    return next((n for pattern, n in numbers.items() if _ends_with(pattern).match(module)), usual)


def _ends_with(pattern: str) -> re.Pattern[str]:
    """What matches the names that PEFT takes a pattern for."""
    return compiled(rf"(.*\.)?({pattern})$")
