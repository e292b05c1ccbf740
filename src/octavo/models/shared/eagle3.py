"""EAGLE-3 heads (Li et al., arXiv 2503.01840): a layer that guesses tokens from what three layers of its model read.

`fc` makes one vector of these three, the hidden state, and the layer's attention reads [norm(embedding of token i + 1);
norm(hidden state of i)]. What the layer gives is the hidden state for its next guess. Tensors and keys of a GGUF file
are llama.cpp's (src/models/eagle3.cpp); `target_layers` names layers of the model by what they read. The embedding and
the output are the model's where a file has none; an output of fewer tokens says in `d2t` which ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from octavo.errors import ModelError
from octavo.formats import DeferredQTensor, dequantize
from octavo.formats.spec import F32
from octavo.graph.builder import GraphBuilder, weight
from octavo.graph.node import Node
from octavo.io.gguf import GGUFFile
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, ModelSpec, Sizes
from octavo.models.shared.decoder import Attention, CustomNetwork, FeedForward
from octavo.models.shared.head import HeadSpec, require_vocabulary
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import MetadataReader
from octavo.models.shared.weights import Expected, Tensors, Weights, check_tensors, vector

NAME = "eagle3"
LAYERS, OLDER_LAYERS, WIDTH = "target_layers", "extract_layers", "target_hidden_size"
BEFORE_RESIDUAL, BEFORE_FC = "norm_before_residual", "norm_before_fc"
OTHERS = ("fc_norm", "norm_output")
"""What some programs compute otherwise."""
TOKENS, FEATURES_NORM = "d2t", "enc.output_norm.weight"
UNKNOWN = -1e30
"""The logit of a token that a head can't guess."""


@dataclass(frozen=True)
class Eagle3Sizes(Hyperparams):
    """Sizes of a head.

    target_layers    the layers of its model whose inputs it reads
    target_width     how wide the model is
    n_draft          tokens that it can guess, 0: all
    normed_residual  its residual stream begins with the hidden state as attention reads it, normed
    normed_features  what the layers read is normed before `fc`
    """

    target_layers: tuple[int, ...] = ()
    target_width: int = 0
    n_draft: int = 0
    normed_residual: bool = False
    normed_features: bool = False


def _complete(r: MetadataReader, hp: Eagle3Sizes) -> Eagle3Sizes:
    field = LAYERS if r.has(LAYERS) or not r.has(OLDER_LAYERS) else OLDER_LAYERS
    target = tuple(map(int, r.metadata.get_ints(r.key(field)))) if r.is_array(field) else ()
    if len(target) != 3 or min(target) < 0:
        problem = f"is {list(target)}" if target else "is missing or no list"
        raise r.error(field, problem if len(target) < 4 else f"names {len(target)} layers", "three layers of the model")
    if hp.n_layer != 1:
        raise r.error("block_count", f"is {hp.n_layer}", "1")
    if (told := next((flag for flag in OTHERS if r.flag(flag, False)), None)) is not None:
        raise r.error(told, "is true, which Octavo does not compute", "false")
    return replace(
        hp, target_layers=target, target_width=r.size(WIDTH, 1 << 20), normed_residual=r.flag(BEFORE_RESIDUAL, False),
        normed_features=r.flag(BEFORE_FC, False), n_draft=r.shapes.get(TOKENS, (0,))[0],
    )


def _tensors(hp: Eagle3Sizes) -> Tensors:
    heads, n = Attention().tensors(hp, 0), hp.n_embd
    for name in ("attn_q", "attn_k", "attn_v"):
        heads |= layers.products({name: (heads[f"{name}.weight"].shape[0], 2 * n)})
    inside = layers.norms(n, "attn_norm", "attn_norm_2", "ffn_norm") | heads | FeedForward().tensors(hp, 0)
    features = len(hp.target_layers) * hp.target_width
    outer = layers.products({"fc": (n, features)}) | layers.norms(n, "output_norm") | {
        "output.weight": Expected((hp.n_draft or hp.n_vocab, n), optional=not hp.n_draft),
        "token_embd.weight": Expected((hp.n_vocab, n), optional=True),
        "rope_freqs.weight": vector(hp.freq_factor_pairs, optional=True),
        **({FEATURES_NORM: vector(features)} if hp.normed_features else {}),
        **({TOKENS: vector(hp.n_draft)} if hp.n_draft else {}),
    }
    return outer | {f"blk.0.{name}": want for name, want in inside.items()}


def _no_model(g: GraphBuilder, hp: Eagle3Sizes, w: Weights) -> Node:
    raise AssertionError("a head has no graph of its own")


EAGLE3 = Architecture(
    name=NAME,
    network=CustomNetwork(_tensors, _no_model),
    keys=(LAYERS, OLDER_LAYERS, WIDTH, BEFORE_RESIDUAL, BEFORE_FC, *OTHERS),
    sizes=Sizes(kind=Eagle3Sizes, complete=_complete),
    interleaved=True,
    classes={},
    names=names.LLAMA | {"hidden_norm": "attn_norm_2"},
    outer=names.OUTER | {"fc.weight": "fc.weight", "input_norm.weight": FEATURES_NORM},
    ropes=("default", "linear", "yarn", "llama3"),
    unused=(TOKENS, "t2d"),
)
"""How files of heads are read, and folders of them; no model is of this architecture by itself."""


@dataclass(frozen=True, kw_only=True)
class Eagle3Head(HeadSpec):
    """A head and the model that it is of."""

    hparams: Eagle3Sizes

    @property
    def width(self) -> int:
        return self.hparams.n_embd

    @cached_property
    def _weights(self) -> Weights:
        return Weights(self.file)

    def _own(self, name: str) -> Node | None:
        """The embedding or the output of the head, called otherwise than the model's, which may be in memory already;
        None where it has none."""
        if f"{name}.weight" not in self.file.tensors:
            return None
        stored = self.file.tensor(f"{name}.weight")
        return weight(DeferredQTensor(stored.format, stored.shape, lambda: stored, f"{NAME}.{name}.weight"))

    def tap(self, g: GraphBuilder, residuals: Sequence[Node], last: Node) -> Node:
        w, hp = self._weights, self.hparams
        features = g.beside(*(residuals[layer] for layer in hp.target_layers))
        if hp.normed_features:
            features = g.rms_norm(features, w["enc.output_norm"], hp.eps)
        return layers.linear(g, w, "fc", features)

    def build(self, g: GraphBuilder, hidden: Node) -> tuple[Node, Node]:
        w, hp = self._weights, self.hparams
        b, shared = w.block(0), Weights(self.main.file)
        embedding = g.get_rows(self._own("token_embd") or shared["token_embd"], g.tokens)
        embedding = g.rms_norm(embedding, b["attn_norm"], hp.eps)
        normed = g.rms_norm(hidden, b["attn_norm_2"], hp.eps)
        mixed = Attention().build(g, hp, b, g.beside(embedding, normed), self.main.hparams.n_layer)
        x = g.add(normed if hp.normed_residual else hidden, mixed)
        x = g.add(x, FeedForward().build(g, hp, b, g.rms_norm(x, b["ffn_norm"], hp.eps), 0))
        x = g.last(x)
        return self._logits(g, shared, g.rms_norm(x, w["output_norm"], hp.eps)), x

    def _logits(self, g: GraphBuilder, shared: Weights, x: Node) -> Node:
        """[outputs, n_embd] -> [outputs, n_vocab]."""
        own = self._own("output")
        if own is None:
            tied = shared.get("output") is None
            return g.mul_mat(shared["token_embd"], x) if tied else layers.linear(g, shared, "output", x)
        logits = g.mul_mat(own, x)
        if TOKENS not in self.file.tensors:
            return logits
        return spread(g, logits, dequantize(self.file.tensor(TOKENS)), self.hparams.n_vocab)


def spread(g: GraphBuilder, logits: Node, tokens: F32, n_vocab: int) -> Node:
    """[T, D] of some tokens -> [T, n_vocab], where all others have the logit UNKNOWN."""
    n = len(tokens)
    order = np.full(n_vocab, n, np.float32)
    order[tokens.astype(np.int64)] = np.arange(n, dtype=np.float32)
    if n == n_vocab:
        return g.take_columns(logits, order)
    unknown, width, left = g.clamp(logits, UNKNOWN, UNKNOWN), n, n_vocab - n
    while 2 * width <= left:
        unknown, width = g.beside(unknown, unknown), 2 * width
    parts = [logits, unknown] if width <= left else [logits]
    if left % width:
        parts += g.columns(unknown, left % width)
    return g.take_columns(g.beside(*parts), order)


def is_eagle3(file: GGUFFile) -> bool:
    """Whether a file is that of a head."""
    return file.metadata.get_str("general.architecture", "") == NAME


def read_eagle3(file: GGUFFile, main: ModelSpec) -> Eagle3Head:
    """The head in a file. Raises ModelError for one of a model of other sizes, or that is not understood."""
    shapes = {info.name: tuple(info.shape) for info in file.tensors.values()}
    width = file.metadata.get_int(f"{NAME}.embedding_length")
    shapes.setdefault("token_embd.weight", (main.hparams.n_vocab, width))
    hp = EAGLE3.read(file.metadata, file.path, shapes)
    assert isinstance(hp, Eagle3Sizes)
    _require_fit(file, hp, main)
    check_tensors(file, EAGLE3.tensors(hp))
    if TOKENS in file.tensors:
        _require_tokens(file, hp.n_vocab)
    return Eagle3Head(file=file, architecture=EAGLE3, hparams=hp, main=main)


def _require_fit(file: GGUFFile, hp: Eagle3Sizes, main: ModelSpec) -> None:
    """Raise ModelError where a head is of another model."""

    def refused(field: str, problem: str, allowed: str) -> ModelError:
        return ModelError(problem, file=file.path, field=f"{NAME}.{field}", allowed=allowed)

    of = main.hparams
    if hp.target_width != of.n_embd:
        raise refused(WIDTH, f"is {hp.target_width}, but the model is {of.n_embd} wide", str(of.n_embd))
    if max(hp.target_layers) > of.n_layer:
        raise refused(LAYERS, f"names layer {max(hp.target_layers)}, but the model has {of.n_layer}",
                      f"0 to {of.n_layer}")
    if hp.n_vocab < of.n_vocab:
        raise ModelError(f"has {hp.n_vocab} rows, but the model {of.n_vocab} tokens", file=file.path,
                         field="tensor token_embd.weight", allowed=f"{of.n_vocab} or more")
    lacking = [name for name in ("token_embd", "output") if f"{name}.weight" not in file.tensors]
    if lacking and hp.n_embd != of.n_embd:
        raise refused("embedding_length", f"is {hp.n_embd}, and the head has no {lacking[0]} of its own",
                      f"{of.n_embd}, the model's")
    require_vocabulary(file, main)


def _require_tokens(file: GGUFFile, n_vocab: int) -> None:
    tokens = dequantize(file.tensor(TOKENS))
    if (
        len(np.unique(tokens)) < len(tokens) or not 0 <= tokens.min() <= tokens.max() < n_vocab
        or (tokens != np.floor(tokens)).any()
    ):
        raise ModelError("names a token twice, or one that is not in the vocabulary", file=file.path,
                         field=f"tensor {TOKENS}", allowed=f"different whole numbers of 0 to {n_vocab - 1}")
