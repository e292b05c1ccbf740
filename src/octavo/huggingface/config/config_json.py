"""What config.json says of a model: its architecture, and its sizes as GGUF's keys, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from octavo.huggingface.config.rope_config import rope_keys, rope_kind
from octavo.huggingface.config.wrapper import WRAPPERS
from octavo.io.gguf import PlainMetadata
from octavo.io.gguf.header_limits import MAX_STRINGS as MAX_TOKENS
from octavo.models import ARCHITECTURES, Architecture, Hyperparams
from octavo.models.shared import registry
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.reader import LIMITS, brief
from octavo.models.shared.refusal import unknown

FF, CONTEXT, HEADS = "feed_forward_length", "context_length", "attention.head_count"
Classes = Mapping[str, Architecture]


def classes_of(architectures: Iterable[Architecture]) -> Classes:
    """Architectures by the class that config.json names under `architectures`.

    "A with KEY" is what class A means where config.json gives KEY a value other than 0, false and null, and
    "A with KEY PART" where that value has a part, and "A with KEY only PART ..." where it is a list of no others.
    """
    return {name: architecture for architecture in architectures for name in architecture.classes}


@cache
def own_classes() -> Classes:
    """Those of Octavo's own architectures."""
    return classes_of(ARCHITECTURES.values())


def find_class(config: Config) -> str:
    """The model's class, of Octavo's own architectures or of installed ones. Raises ModelError for any other."""
    return _find(config)[0]


def find_architecture(config: Config) -> Architecture:
    """The architecture of the model's class. Raises ModelError where that is not known."""
    return _find(config)[1]


def _find(config: Config) -> tuple[str, Architecture]:
    names = config.values.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    if name is None:
        raise config.error("architectures", "is missing", 'the model\'s class, as in ["LlamaForCausalLM"]')
    found = _find_in(own_classes(), config, str(name))
    if found is None:
        found = _find_in(classes_of(registry.installed().values()), config, str(name))
    if found is None:
        known = (other for other in (*own_classes(), *WRAPPERS) if " with " not in other)
        raise config.error("architectures", unknown(str(name), known))
    return found


def _find_in(classes: Classes, config: Config, name: str) -> tuple[str, Architecture] | None:
    for other, architecture in classes.items():
        if other.startswith(f"{name} with ") and _has(config, *other.split(" ")[2:]):
            return other, architecture
    return (name, classes[name]) if name in classes else None


def _has(config: Config, key: str, *parts: str) -> bool:
    value = config.values.get(key)
    if parts[:1] == ("only",):
        return isinstance(value, list) and bool(value) and all(each in parts[1:] for each in value)
    return all(isinstance(value, list | str) and part in value for part in parts) if parts else bool(value)


def in_usual_words(config: Config) -> Config:
    """config.json with the usual names for keys that its architecture calls otherwise."""
    architecture = find_architecture(config)
    aliases = architecture.key_aliases
    values = {aliases[key]: value for key, value in config.values.items() if key in aliases}
    config.read.update(aliases)
    return architecture.usual_config(config.replaced({**config.values, **values}) if values else config)


def read_keys(config: Config) -> Keys:
    """The model's fields of metadata. Raises ModelError for what is missing, contradicts itself, or is not computed."""
    name, architecture = _find(config)
    own = architecture.config_keys(config, name)
    _refuse(config, architecture, own)
    keys = {**_sizes(config, own), **own, **rope_keys(config, architecture), **own}
    return {field: value for field, value in keys.items() if value is not None}


def read_hyperparams(config: Config, keys: Keys, numbers: Mapping[str, list[float]] | None = None) -> Hyperparams:
    """The hyperparameters that `keys`, those of a config.json, and whole keys of metadata, `numbers`, give."""
    architecture = find_architecture(config)
    name = architecture.name
    metadata = PlainMetadata(
        config.file, {f"{name}.{field}": value for field, value in keys.items()} | {**(numbers or {})}
    )
    shapes = {"token_embd.weight": (keys["vocab_size"], keys["embedding_length"])}
    for tensor, word in architecture.modules.rows.items():
        if type(rows := config.values.get(word)) is int:
            shapes[tensor] = rows, keys["embedding_length"]
    return architecture.read(metadata, config.file, shapes)


def _sizes(config: Config, own: Keys) -> Keys:
    """The fields that all architectures have; context and feed-forward width where none of its own."""
    width = config.width
    inner = own[FF] if own.get(FF) is not None else config.size("intermediate_size", LIMITS[FF])
    return {
        "block_count": own.get("block_count") or config.n_layer,
        "context_length": own.get(CONTEXT) or config.size("max_position_embeddings", LIMITS[CONTEXT]),
        "embedding_length": width,
        "feed_forward_length": inner,
        "attention.layer_norm_rms_epsilon": config.real("rms_norm_eps", 1e-6),
        "vocab_size": config.size("vocab_size", MAX_TOKENS),
        **({} if own.get(HEADS) == 0 or _by_layer(own) else _head_sizes(config, width)),
    }


def _by_layer(own: Keys) -> bool:
    """Whether an architecture's own fields say heads for each layer, and how long they are."""
    return isinstance(own.get(HEADS), list) and "attention.key_length" in own


def _head_sizes(config: Config, width: int) -> Keys:
    """The fields of attention."""
    heads = config.n_head
    kv_heads = config.size("num_key_value_heads", LIMITS["attention.head_count_kv"], heads)
    head = config.size("head_dim", LIMITS["attention.key_length"], width // heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"{kv_heads} does not divide {heads} heads")
    return {
        HEADS: heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
    }


def _refuse(config: Config, architecture: Architecture, own: Keys) -> None:
    """Raises ModelError for what would change the result and is not part of the architecture."""
    for key in ("hidden_act", "hidden_activation"):
        if key not in own and (found := config.values.get(key)) not in (None, architecture.activation):
            raise config.error(key, f"is {brief(found)}", architecture.activation)
    parts = [config.values.get("partial_rotary_factor")]
    if rope_kind(config, architecture) != "proportional":
        parts.append(rope_parameters(config).get("partial_rotary_factor"))
    for part in parts:
        if "rope.dimension_count" not in own and part not in (None, 1, 1.0):
            raise config.error("partial_rotary_factor", f"is {brief(part)}", "1")
