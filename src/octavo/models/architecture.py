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
from octavo.models.cache_scales import static_scales
from octavo.models.config import Config, Keys
from octavo.models.hparams import HyperparamReader, Hyperparams
from octavo.models.keys import check_keys
from octavo.models.names import OUTER
from octavo.models.weights import Tensors, Weights

H = TypeVar("H", bound=Hyperparams)
Columns = Literal["", "halves", "alternate", "in one", "either"]


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a reranker's scores are made of.

    activation  behind the first of its two matrices
    pooling     of the vectors of tokens, where a file does not say
    """

    activation: Literal["tanh", "gelu"] = "tanh"
    pooling: Literal["cls", "mean"] = "cls"


@dataclass(frozen=True, kw_only=True)
class Words:
    """The vocabulary of checkpoints that have no tokenizer.json.

    file    of tokens by rank, as tiktoken has it; tokenizer.model may be one or a SentencePiece model
    pre     how words are cut before tokens are joined, as `tokenizer.ggml.pre` names it
    nfc     whether text is composed first
    behind  special tokens that the class's own code puts behind those of the file, if tokenizer_config.json lists none
    """

    file: str
    pre: str
    nfc: bool = False
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Architecture(Generic[H]):
    """What is known of models that GGUF calls `name`. Each module of this package that is named so has one, `ARCH`.

    In a GGUF file:
    name       `general.architecture`
    hparams    reads and checks the metadata
    keys       fields under `<name>.` that `hparams` reads beside the shared ones; those that nobody reads are refused
    tensors    the tensors with their shapes, in the order of a file; others are refused
    build      writes the graph
    today      an older file as converters write it since, and its metadata
    encoder    tokens see all of a text, and the graph gives their vectors in place of logits

    In a checkpoint of Hugging Face's:
    classes    classes of `transformers`, and what config.json says of each as fields beside the shared ones.
               Raises ModelError for what has no computation here
    names      modules of a layer by their names there, as GGUF names them, see `models.names`
    class_names  the same of some classes, whose modules by these names are others in GGUF
    base       what names of tensors may begin with or not; `other_bases` what they may begin with instead
    unit_output  the axis of the output matrix along which its values have a length of 1, None: they stay
    vocabulary of checkpoints that have no tokenizer.json
    layer      where a layer is, before its number
    outer      whole names of tensors outside of layers, as GGUF names them
    remade     a tensor, by GGUF's name, as GGUF has it where that is not as the checkpoint does
    factors    what tensors of floats are multiplied by, or each of their rows, by GGUF's name without that of the layer
    before_positions  of a matrix of positions, the rows before that of the first token
    unused     what names of tensors begin with that have no part in what is computed
    ignored    ends of names of tensors that follow from config.json
    heads      whole names of tensors that some classes have, as GGUF names them, though `unused` may name them
    head       what a reranker's scores are made of
    numbers    what a layer's modules of one number each are called, and keys of metadata that have those of all layers
    words      other words that config.json may have for what the others say with the usual ones
    reworded   config.json in the usual words where that is more than other names, after `words`
    rows       tensors whose number of rows no field says, as GGUF names them, and the word of config.json that says it
    ropes      kinds of rope scaling
    activation the feed-forward's, as config.json names it
    tied       whether the embedding is the output matrix where config.json does not say
    norm_shift what is added to the weights of norms, which GGUF has ready to multiply with
    reordered  whether rows of q and k are in another order in GGUF where that has rope on neighbours
    whole_pairs whether yarn's ramp begins and ends at whole pairs
    columns    how experts that are stacked lie where their outputs are columns [E, K, N], and not rows [E, N, K]: gate
               and up in one tensor, as halves of its columns or in turn; or all experts "in one" matrix, up as rows
               [E N, K], down as columns [E K, N]; or "either": halves of columns, unless they have the shape of rows

    When a GGUF file is quantized:
    is_70b     whether a model of 80 layers with these heads, K/V heads and experts is one that llama.cpp calls 70B

    When a checkpoint is made of a GGUF file:
    writable   whether config.json has words for all that the file says
    unlike     tensors of a block that checkpoints have otherwise, which nothing writes back
    unwritable  why nothing writes a model's checkpoint, "" where something does
    unwritten  classes whose matrices lie otherwise than those of the class that is written
    biases     words of config.json, and the linear layers of a block that each gives biases to
    words_of   what config.json says of a model beside what it says of all, or in place of that: as `classes` reads it
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
    today: Callable[[GGUFFile], tuple[GGUFFile, Metadata]] = lambda file: (file, file.metadata)
    base: str = "model."
    other_bases: tuple[str, ...] = ()
    remade: Callable[[str, LazyTensor, H], LazyTensor] = lambda name, tensor, hp: tensor
    factors: Callable[[Config], Mapping[str, float | F32]] = lambda config: {}
    before_positions: Callable[[Config], int] = lambda config: 0
    unit_output: Callable[[Config], int | None] = lambda config: None
    vocabulary: Words | None = None
    layer: str = "layers"
    outer: Mapping[str, str] = field(default_factory=lambda: OUTER)
    unused: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    class_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    heads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    head: Head = field(default_factory=Head)
    numbers: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    reworded: Callable[[Config], Config] = lambda config: config
    rows: Mapping[str, str] = field(default_factory=dict)
    is_70b: Callable[[int, int, int], bool] = lambda heads, kv_heads, experts: False
    writable: bool = True
    unlike: tuple[str, ...] = ()
    unwritable: Callable[[H], str] = lambda hp: ""
    unwritten: tuple[str, ...] = ()
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words_of: Callable[[H], Mapping[str, Any]] = lambda hp: {}

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

    added  what adapters add to weights, by GGUF name, see `octavo.models.lora`
    """

    file: GGUFFile
    architecture: Architecture[Any]
    hparams: Hyperparams
    added: Mapping[str, LowRank] = field(default_factory=dict)

    def graph(
        self, *, cache_type: CacheType = "f16", page_size: int = PAGE_SIZE, n_ctx: int | None = None,
        vectors: bool = False, window_pages: bool = False,
    ) -> Graph:  # fmt: skip
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
