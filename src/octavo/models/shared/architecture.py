"""Architecture: all that is known of a kind of model, and ModelSpec: a file of one, read and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from octavo.formats.spec import F32
from octavo.graph.builder import CacheType, GraphBuilder
from octavo.graph.low_rank import LowRank, with_low_rank
from octavo.graph.node import PAGE_SIZE, Graph, Node
from octavo.io.gguf import GGUFFile, LazyTensor
from octavo.io.gguf.metadata import Metadata
from octavo.models.shared.cache_scales import static_scales
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import HyperparamReader, Hyperparams
from octavo.models.shared.keys import READ_BY_SOME, check_keys
from octavo.models.shared.names import OUTER
from octavo.models.shared.weights import Tensors, Weights

H = TypeVar("H", bound=Hyperparams)
Columns = Literal["", "halves", "alternate", "in one", "either"]


@dataclass(frozen=True, kw_only=True)
class RerankHead:
    """What a reranker's scores are made of.

    activation  behind the first of its two matrices
    pooling     of the vectors of tokens, where a file does not say
    """

    activation: Literal["tanh", "gelu"] = "tanh"
    pooling: Literal["cls", "mean"] = "cls"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The vocabulary of checkpoints that have no tokenizer.json.

    file    of tokens by rank, as tiktoken has it, or by id, as RWKV World has it; tokenizer.model may be one of the
            former or a SentencePiece model. In tokenizer.jsonl tokens have scores
    pre     how words are cut before tokens are joined, as `tokenizer.ggml.pre` names it
    nfc     whether text is composed first
    behind  special tokens that the class's own code puts behind those of the file, if tokenizer_config.json lists none
    breaks  whether text is cut at repeated characters and at spaces first, see `text.plamo2`
    """

    file: str
    pre: str
    nfc: bool = False
    behind: tuple[str, ...] = ()
    breaks: bool = False


@dataclass(frozen=True, kw_only=True)
class Architecture(Generic[H]):
    """What is known of models that GGUF calls `name`. Each module of this package that is named so has one, `ARCH`.

    In a GGUF file:
    name               `general.architecture`
    hparams            reads and checks the metadata
    keys               fields under `<name>.` that `hparams` reads beside the shared ones; a field that nobody reads is
                       refused
    tensors            the tensors with their shapes, in the order of a file; others are refused
    build              writes the graph
    updated            an older file as converters write it since, and its metadata
    encoder            tokens see all of a text, and the graph gives their vectors in place of logits
    rerank_head        how a reranker's scores are computed

    In a checkpoint of Hugging Face's, its configuration:
    classes            classes of `transformers`, and what config.json says of each as fields beside the shared ones.
                       Raises ModelError for what has no computation here
    key_aliases        other names that keys of config.json may have, and the usual name of each
    usual_config       config.json in the usual form where that takes more than other names, after `key_aliases`
    rows               tensors whose number of rows no field says, by GGUF name, and the key of config.json that says it
    ropes              kinds of rope scaling
    activation         the feed-forward's, as config.json names it
    tied               whether the embedding is the output matrix where config.json does not say
    whole_pairs        whether yarn's ramp begins and ends at whole pairs
    vocabulary         of checkpoints that have no tokenizer.json

    Its names of tensors:
    names              modules of a layer and their GGUF names, see `models.names`
    class_names        modules by these names that are others in GGUF, by class, or "" where they have no part
    outer              whole names of tensors outside of layers and their GGUF names
    class_outer        the same of tensors that only some classes have, by class; they win over `unused`
    base               what names may begin with or not; `other_bases` what they may begin with instead
    layer              where a layer is, before its number
    unused             beginnings of names of tensors that have no part in what is computed
    ignored            ends of names of tensors that follow from config.json
    layer_scalars      modules of a layer that hold one number, and the metadata key with those of all layers
    copies             tensors that GGUF has and checkpoints lack, and those that they are copies of, by GGUF name

    Its tensors, where GGUF has them otherwise:
    remade             a tensor, by GGUF name, in GGUF's form
    factors            what tensors of floats, or each of their rows, are multiplied by; by GGUF name without the layer
    norm_shift         what is added to the weights of norms, which GGUF has ready to multiply with
    reordered          whether GGUF has rows of q and k in another order where rope turns neighbours
    unit_output        the axis of the output matrix along which its values get a length of 1; None: they stay
    before_positions   rows of a matrix of positions before that of the first token
    columns            how stacked experts lie where their outputs are columns [E, K, N], not rows [E, N, K]: gate and
                       up in one tensor, as halves of its columns or in turn; or all experts "in one" matrix, up as rows
                       [E N, K], down as columns [E K, N]; or "either": halves of columns, unless they have the shape of
                       rows

    When a GGUF file is quantized:
    is_70b             whether a model of 80 layers with these heads, K/V heads and experts is one that llama.cpp calls
                       70B

    When a checkpoint is written:
    writable           whether config.json can say all that a GGUF file says
    config_values      what config.json says of a model beside, or in place of, what it says of all; the inverse of
                       `classes`
    biases             keys of config.json, and the linear layers of a block that each gives biases to
    unwritten_tensors  tensors of a block that no checkpoint is written with, as theirs have another form
    unwritten_classes  classes that no checkpoint is written of, as their matrices lie otherwise than the usual class'
    why_unwritten      why no checkpoint of a model is written; "" where one can be
    """

    name: str
    hparams: Callable[[HyperparamReader], H]
    tensors: Callable[[H], Tensors]
    build: Callable[[GraphBuilder, H, Weights], Node]
    classes: Mapping[str, Callable[[Config], Keys]]
    names: Mapping[str, str]
    keys: frozenset[str] = frozenset()
    ropes: tuple[str, ...] = ("default", "linear", "yarn")
    activation: str = "silu"
    tied: bool = False
    norm_shift: float = 0.0
    reordered: bool = True
    whole_pairs: bool = True
    columns: Columns = ""
    encoder: bool = False
    updated: Callable[[GGUFFile], tuple[GGUFFile, Metadata]] = lambda file: (file, file.metadata)
    base: str = "model."
    other_bases: tuple[str, ...] = ()
    remade: Callable[[str, LazyTensor, H], LazyTensor] = lambda name, tensor, hp: tensor
    factors: Callable[[Config], Mapping[str, float | F32]] = lambda config: {}
    before_positions: Callable[[Config], int] = lambda config: 0
    unit_output: Callable[[Config], int | None] = lambda config: None
    vocabulary: Vocabulary | None = None
    layer: str = "layers"
    outer: Mapping[str, str] = field(default_factory=lambda: OUTER)
    unused: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    class_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    class_outer: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rerank_head: RerankHead = field(default_factory=RerankHead)
    layer_scalars: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    key_aliases: Mapping[str, str] = field(default_factory=dict)
    usual_config: Callable[[Config], Config] = lambda config: config
    rows: Mapping[str, str] = field(default_factory=dict)
    is_70b: Callable[[int, int, int], bool] = lambda heads, kv_heads, experts: False
    writable: bool = True
    unwritten_tensors: tuple[str, ...] = ()
    why_unwritten: Callable[[H], str] = lambda hp: ""
    unwritten_classes: tuple[str, ...] = ()
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    config_values: Callable[[H], Mapping[str, Any]] = lambda hp: {}

    def __post_init__(self) -> None:
        READ_BY_SOME.update(self.keys)

    def plain_name(self, name: str) -> str:
        """The name of a checkpoint's tensor without what it may begin with."""
        found = next((base for base in (self.base, *self.other_bases) if name.startswith(base)), "")
        return name.removeprefix(found)

    def read(self, metadata: Metadata, path: str, shapes: Mapping[str, tuple[int, ...]]) -> H:
        """The hyperparameters of a file with this metadata and tensors of these shapes.

        Raises ModelError or GGUFError naming the key that is missing or wrong, or that nothing is known of.
        """
        check_keys(metadata, path, self.name, self.keys)
        return self.hparams(HyperparamReader(metadata, path, self.name, self.keys, shapes))


@dataclass(frozen=True)
class ModelSpec:
    """A model file, read and checked; `graph` gives its computation.

    added  what adapters add to weights, by GGUF name, see `octavo.models.shared.lora`
    """

    file: GGUFFile
    architecture: Architecture[Any]
    hparams: Hyperparams
    added: Mapping[str, LowRank] = field(default_factory=dict)

    def graph(
        self, *, cache_type: CacheType = "f16", page_size: int = PAGE_SIZE, n_ctx: int | None = None,
        vectors: bool = False, window_pages: bool = False,
    ) -> Graph:
        """The graph of a step: tokens in, logits [outputs, n_vocab] out. `n_ctx` matters to longrope only.

        window_pages  layers with a window have pages of their own
        vectors  what logits are made of comes out in their place, [outputs, n_embd]; an encoder has nothing else
        """
        n_ctx = n_ctx or self.hparams.n_ctx_train
        static = static_scales(self.file, self.hparams, cache_type)
        g = GraphBuilder(cache_type, page_size, n_ctx, window_pages=window_pages, static=static)
        graph = Graph.of(self.architecture.build(g, self.hparams, Weights(self.file)))
        graph = with_low_rank(graph, self.added)
        return Graph.of(_before_output(graph.outputs[0])) if vectors and not self.architecture.encoder else graph


def _before_output(logits: Node) -> Node:
    """What the output matrix is multiplied with."""
    node = logits
    while node.op != "mul_mat":
        node = node.inputs[0]
    return node.inputs[1]
