"""Layers that guess tokens (multi-token prediction, arXiv 2412.19437, section 2.2) as heads of their model.

At position i such a layer is given [enorm(embedding of token i + 1); hnorm(hidden state of i)] times `eh_proj`; a norm
and the output matrix make logits of what it gives. The embedding and the output are the model's where a file has none
of its own. One layer makes all guesses: it reads what it gave itself.

Of several layers each makes one guess. Layer k reads at position i the token at i + 1 + k, and what layer k - 1 gave at
i or, in some models, what the model gave there (SGLang, multi_layer_eagle_worker.py).

A head is the block behind a model's layers, in its file or in a file that has nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from octavo.errors import ModelError
from octavo.formats import QTensor
from octavo.graph.builder import GraphBuilder
from octavo.graph.names import split_layer
from octavo.graph.node import Node
from octavo.io.gguf import GGUFFile
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture, ModelSpec, NextLayer
from octavo.models.shared.decoder import Decoder
from octavo.models.shared.head import HeadSpec, require_vocabulary
from octavo.models.shared.hidden_states import before_output
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.reader import EXPERT_WIDTH, FF_WIDTH, HEADS, KV_HEADS, NEXTN, WINDOW
from octavo.models.shared.refusal import require_model
from octavo.models.shared.rope import Rope
from octavo.models.shared.weights import Tensors, Weights, check_tensors

OWN = {"token_embd": "nextn.embed_tokens", "output": "nextn.shared_head_head"}
"""What a block may have in place of the model's own."""


KEYS = {
    "n_layer": "block_count", "n_embd": "embedding_length", "n_ff": FF_WIDTH, "n_head": HEADS, "n_head_kv": KV_HEADS,
    "head_dim": "attention.key_length", "n_vocab": "vocab_size", "n_expert": "expert_count", "n_window": WINDOW,
    "n_expert_used": "expert_used_count", "n_ff_expert": EXPERT_WIDTH, "rope.dims": "rope.dimension_count",
    "rope.base": "rope.freq_base", "rope.kind": "rope.scaling.type", "rope.factor": "rope.scaling.factor",
    "rope.n_ctx_original": "rope.scaling.original_context_length", "rope_local.base": "rope.freq_base_swa",
}
"""Keys of metadata of sizes that all architectures have."""


@dataclass(frozen=True, kw_only=True)
class NextLayerHead(HeadSpec):
    """A layer behind a model's own; `file` has its tensors.

    number  among the `count` layers that the file has for guesses
    """

    number: int = 0
    count: int = 1

    @property
    def layer(self) -> int:
        """Its number among all layers."""
        return self.main.hparams.n_layer + self.number

    @property
    def later(self) -> tuple[NextLayerHead, ...]:
        return tuple(replace(self, number=i) for i in range(self.number + 1, self.count))

    @property
    def reads_given(self) -> bool:
        return self.how.chained and self.number > 0

    @property
    def gives_all(self) -> bool:
        return self.how.chained and bool(self.later)

    @property
    def how(self) -> NextLayer:
        how = self.architecture.next_layer
        assert how is not None
        return how

    def tap(self, g: GraphBuilder, residuals: Sequence[Node], last: Node) -> Node:
        return last if self.how.reads_normed else residuals[-1]

    def build(self, g: GraphBuilder, hidden: Node) -> tuple[Node, Node]:
        network, hp, i = self.architecture.network, self.hparams, self.layer
        assert isinstance(network, Decoder)
        w = Weights(_Tensors(self.file, self.main.file, i))  # type: ignore[arg-type]
        b = w.block(i)
        embedding = layers.norm(g, hp, b, "nextn.enorm", network.embedded(g, hp, w))
        x = g.beside(embedding, layers.norm(g, hp, b, "nextn.hnorm", hidden))
        x = network.build_layer(g, hp, b, layers.linear(g, b, "nextn.eh_proj", x), i)
        norm = network.output_norm if b.get(self.how.norm) is None else f"blk.{i}.{self.how.norm}"
        logits = replace(network, output_norm=norm).output(g, hp, w, x)
        if self.gives_all:
            return logits, layers.norm(g, hp, w, norm, x) if self.how.gives_normed else x
        normed = before_output(logits)
        return logits, normed if self.how.gives_normed else normed.inputs[0]


class _Tensors:
    """The tensors that a head reads, by the names that its model gives them; its own go before the model's."""

    def __init__(self, file: GGUFFile, main: GGUFFile, layer: int) -> None:
        self.path, self._names, self.tensors = file.path, dict[str, tuple[GGUFFile, str]](), dict[str, object]()
        for source in (main, file):
            self._add(source, {name: name for name in source.tensors})
        for stem, own in OWN.items():
            block = f"blk.{layer}.{own}"
            if f"{block}.weight" in file.tensors:
                ends = [name.removeprefix(block) for name in file.tensors if name.startswith(f"{block}.")]
                for name in [name for name in self.tensors if name.startswith(f"{stem}.")]:
                    del self.tensors[name], self._names[name]
                self._add(file, {stem + end: block + end for end in ends})

    def _add(self, file: GGUFFile, names: Mapping[str, str]) -> None:
        for name, stored in names.items():
            self.tensors[name], self._names[name] = file.tensors[stored], (file, stored)

    def tensor(self, name: str) -> QTensor:
        file, stored = self._names[name]
        return file.tensor(stored)


def head_of(main: ModelSpec) -> NextLayerHead | None:
    """The head in a model's own file; None where there is none that can be computed."""
    how, hp = main.architecture.next_layer, main.hparams
    if how is None or not hp.n_next or not isinstance(main.architecture.network, Decoder):
        return None
    spec = replace(main, hparams=_sizes(hp, main.file))
    count, _ = _count(spec)
    return NextLayerHead(main.file, main.architecture, spec.hparams, main=main, count=count) if count else None


def read_next_layer(file: GGUFFile, main: ModelSpec) -> NextLayerHead:
    """The head of a model in a file of its own: its metadata are the model's, with layers more, which guess.

    Raises ModelError where it does not belong to this model, naming the size that differs or what is missing.
    """
    require_model(file)
    name, wanted = file.metadata.get_str("general.architecture"), main.architecture.name
    if name != wanted:
        raise ModelError(f"is a head of {name}, not of {wanted}", file=file.path, field="general.architecture")
    if main.architecture.next_layer is None or not isinstance(main.architecture.network, Decoder):
        raise ModelError(f"Octavo computes no layers of {name} that guess tokens", file=file.path)
    file, metadata = main.architecture.updated(file)
    shapes = {info.name: tuple(info.shape) for one in (main.file, file) for info in one.tensors.values()}
    hp = main.architecture.read(metadata, file.path, shapes)
    if not hp.n_next:
        raise ModelError("is 0: no layer guesses tokens", file=file.path, field=f"{name}.{NEXTN}", allowed="1 or more")
    own, of_main = (_of_model(one, main.architecture) for one in (hp, main.hparams))
    if wrong := next((field for field in own | of_main if own.get(field) != of_main.get(field)), None):
        size = f"{own.get(wrong)} layers" if wrong == "block_count" else f"{wrong} {own.get(wrong)}"
        problem = f"the head is of a model with {size}; this one has {of_main.get(wrong)}"
        raise ModelError(problem, file=file.path)
    require_vocabulary(file, main)
    spec = replace(main, file=file, hparams=replace(_sizes(hp, file), n_ctx_train=main.hparams.n_ctx_train))
    may_have = {
        name: want for name, want in spec.architecture.tensors(hp).items()
        if (layer := split_layer(name)[0]) is None or layer >= hp.n_layer
    }
    may_have = {name: replace(want, optional=True) for name, want in may_have.items()}
    check_tensors(file, may_have | _needed(spec, hp.n_layer))
    return NextLayerHead(file, main.architecture, spec.hparams, main=main, count=_count(spec)[0])


def _of_model(hp: Hyperparams, architecture: Architecture) -> dict[str, object]:
    """What the sizes in a head's file and in its model's have in common, by key of metadata: of lists by layer what is
    of the model's, of ropes what is computed with."""
    fields = KEYS | {key.name: key.field for key in architecture.keys if isinstance(key, Key)}
    found = dict[str, object]()
    for name, value in vars(hp).items():
        field = fields.get(name, name)
        if name in ("n_ctx_train", "n_next", "next_windowed", "joined"):
            continue
        if isinstance(value, Rope):
            unused = set() if value.kind in ("yarn", "longrope") else {"n_ctx_original"}
            parts = {f"{name}.{part}": one for part, one in vars(value).items() if part not in unused}
            found |= {fields.get(part, part): one for part, one in parts.items()}
        elif isinstance(value, tuple):
            found |= {f"{field}[{i}]": one for i, one in enumerate(value[: hp.n_layer])}
        else:
            found[field] = value
    return found


def _needed(spec: ModelSpec, layer: int) -> Tensors:
    """The tensors of a layer that guesses, of which those that are not optional are needed."""
    network, hp = spec.architecture.network, spec.hparams
    assert isinstance(network, Decoder)
    found = {f"blk.{layer}.{name}": want for name, want in network.layer_tensors(hp, layer).items()}
    whole = spec.architecture.tensors(hp)
    own = (f"blk.{layer}.nextn.{name}.weight" for name in ("enorm", "hnorm", "eh_proj"))
    return found | {name: replace(whole[name], optional=False) for name in own}


def missing_tensor(main: ModelSpec) -> str | None:
    """The first tensor that a model's own file lacks of the layers that guess tokens which it should have."""
    if main.architecture.next_layer is None or not isinstance(main.architecture.network, Decoder):
        return None
    return _count(replace(main, hparams=_sizes(main.hparams, main.file)))[1]


def _count(spec: ModelSpec) -> tuple[int, str | None]:
    """How many layers that guess, from the first on, a file has whole, and what the next one lacks."""
    for i in range(spec.hparams.n_next):
        for name, want in _needed(spec, spec.hparams.n_layer + i).items():
            if not want.optional and name not in spec.file.tensors:
                return i, name
    return spec.hparams.n_next, None


def _sizes(hp: Hyperparams, file: GGUFFile) -> Hyperparams:
    """The model's with those of the layers behind its own."""
    windowed = (*hp.windowed, *(hp.next_windowed or (False,) * hp.n_next)) if hp.windowed else ()
    return replace(hp, windowed=windowed, joined=f"blk.{hp.n_layer}.attn_qkv.weight" in file.tensors)
