"""Architecture: all that is known of a kind of model, and ModelSpec: a file of one, read and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from octavo.formats.spec import F32
from octavo.graph.builder import CacheType, GraphBuilder
from octavo.graph.factors import LowRank
from octavo.graph.low_rank import with_low_rank
from octavo.graph.node import PAGE_SIZE, Graph
from octavo.io.gguf import GGUFFile, LazyTensor
from octavo.io.gguf.metadata import Metadata
from octavo.models.shared.cache_scales import static_scales
from octavo.models.shared.config import Config, Keys, rotary_keys
from octavo.models.shared.decoder import Network
from octavo.models.shared.hidden_states import Tap, before_output, tapped
from octavo.models.shared.hparams import Hyperparams, Key, read_shared, without_attention
from octavo.models.shared.keys import SHARED, check_keys
from octavo.models.shared.mrope import Sections
from octavo.models.shared.names import OUTER
from octavo.models.shared.reader import CAUSAL, LAYER_NORM_EPS, NEXTN, RMS_EPS, MetadataReader
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import PATTERN, Windows

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
class VocabularyFile:
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
class Sizes:
    """How the hyperparameters of a file are read beside the rows of an architecture.

    kind           the class of these: Hyperparams, or one with fields of the architecture's own
    complete       what no row says, given what the others say. Raises ModelError naming the key that is wrong
    differs        how sizes differ by layer, see `MetadataReader.by_layer`
    equal_lengths  heads of values are as long as those of keys
    attention      some layers have attention; without it `feed_forward` says whether layers have a width of their own
    """

    kind: type[Hyperparams] = Hyperparams
    complete: Callable[[MetadataReader, Any], Any] = lambda r, hp: hp
    differs: Mapping[str, str] = field(default_factory=dict)
    equal_lengths: bool = True
    attention: bool = True
    feed_forward: bool = False


@dataclass(frozen=True, kw_only=True)
class Modules:
    """Names of a checkpoint's tensors that few architectures have.

    by_class        modules by these names that are others in GGUF, by class, or "" where they have no part
    outer_by_class  whole names of tensors that only some classes have, by class; they win over `Architecture.unused`
    other_bases     what names may begin with instead of `Architecture.base`
    ignored         ends of names of tensors that follow from config.json
    scalars         modules of a layer that hold one number, and the metadata key with those of all layers
    copies          tensors that GGUF has and checkpoints lack, and those that they are copies of, by GGUF name
    rows            tensors whose number of rows no field says, by GGUF name, and the key of config.json that says it
    """

    by_class: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    outer_by_class: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    other_bases: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    scalars: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TensorLayout:
    """How a checkpoint's tensors lie otherwise than GGUF has them.

    permuted           whether GGUF has rows of q and k in another order where rope rotates neighbours
    norm_shift         what is added to the weights of norms, which GGUF has ready to multiply with
    columns            how stacked experts lie where their outputs are columns [E, K, N], not rows [E, N, K]: gate and
                       up in one tensor, as halves of its columns or in turn; or all experts "in one" matrix, up as rows
                       [E N, K], down as columns [E K, N]; or "either": halves of columns, unless they have the shape of
                       rows
    converted          a tensor, by GGUF name, in GGUF's form
    factors            what tensors of floats, or each of their rows, are multiplied by; by GGUF name without the layer
    unit_output        the axis of the output matrix along which its values get a length of 1; None: they stay
    before_positions   rows of a matrix of positions before that of the first token
    """

    permuted: bool = True
    norm_shift: float = 0.0
    columns: Columns = ""
    converted: Callable[[str, LazyTensor, Any], LazyTensor] = lambda name, tensor, hp: tensor
    factors: Callable[[Config], Mapping[str, float | F32]] | None = None
    unit_output: Callable[[Config], int | None] | None = None
    before_positions: Callable[[Config], int] = lambda config: 0


@dataclass(frozen=True, kw_only=True)
class NextLayer:
    """How a layer that guesses tokens (MTP) is computed; see `models.shared.next_layer`.

    reads_normed  the model's hidden states are those behind its last norm, otherwise those before it
    gives_normed  what it gives for the next guess is behind its own last norm, otherwise before it
    norm          that norm; where a file lacks it, it is the model's
    chained       of several layers each reads what the one before it gave at the same position, otherwise all of them
                  what the model gave there
    apart         in a checkpoint they lie under `mtp.`, otherwise behind the others
    """

    reads_normed: bool = True
    gives_normed: bool = True
    norm: str = "nextn.shared_head_norm"
    chained: bool = True
    apart: bool = False


@dataclass(frozen=True, kw_only=True)
class Written:
    """How a checkpoint is written of a GGUF file.

    config   what config.json says of a model beside, or in place of, what it says of all; the inverse of `classes`
    biases   keys of config.json, and the linear layers of a block that each gives biases to
    """

    config: Callable[[Any], Mapping[str, Any]] = lambda hp: {}
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Unwritten:
    """What no checkpoint is written with, even of a checkpoint.

    tensors  of a block, as theirs have another form
    classes  whose matrices lie otherwise than the usual class'
    why      why none is written of a model; "" where one can be
    """

    tensors: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    why: Callable[[Any], str] = lambda hp: ""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What is known of models that GGUF calls `name`. Each module of a family that is named so has one, `ARCH`.

    In a GGUF file:
    name         `general.architecture`
    network      its tensors and its graph
    keys         rows of hyperparameters, and fields under `<name>.` that `sizes.complete` reads; a field that nobody
                 reads is refused
    windows      which layers have a sliding window
    sizes        what no row says
    interleaved  rope rotates pairs of neighbours, otherwise halves of a head
    experts      there are experts (True), none (False), or as a file says (None)
    layer_norms  the key of config.json for what norms add, where they are layer norms; "": they are RMS norms
    whole_pairs  whether yarn's ramp begins and ends at whole pairs
    updated      an older file as converters write it since, and its metadata
    rerank_head  how a reranker's scores are computed
    next_layer   how layers that guess tokens are computed; None: they are left out
    is_70b       whether a model of 80 layers with these heads, K/V heads and experts is one that llama.cpp calls 70B

    In a checkpoint of Hugging Face's:
    classes      classes of `transformers`, and what config.json says of each as fields beside those of `keys`. Raises
                 ModelError for what has no computation here
    only         keys of config.json that have no computation here with other values than these; absent is as good
    rotary_part  the part of a head that rope is applied to where config.json does not say; None: it can't say
    key_aliases  other names that keys of config.json may have, and the usual name of each
    usual_config config.json in the usual form where that takes more than other names, after `key_aliases`
    ropes        kinds of rope scaling
    activation   the feed-forward's, as config.json names it
    tied         whether the embedding is the output matrix where config.json does not say
    vocabulary   of checkpoints that have no tokenizer.json
    names        modules of a layer and their GGUF names, see `models.shared.names`
    outer        whole names of tensors outside of layers and their GGUF names
    base         what names may begin with or not
    layer        where a layer is, before its number
    unused       beginnings of names of tensors that have no part in what is computed
    modules      names that few have
    layout       how tensors lie
    written      how checkpoints are written of files; None: there are none
    unwritten    what no checkpoint is written with
    """

    name: str
    network: Network
    classes: Mapping[str, Callable[[Config], Keys]]
    names: Mapping[str, str]
    keys: tuple[Key | Sections | str, ...] = ()
    windows: Windows | None = None
    sizes: Sizes = Sizes()
    interleaved: bool = False
    experts: bool | None = False
    layer_norms: str = ""
    whole_pairs: bool = True
    updated: Callable[[GGUFFile], tuple[GGUFFile, Metadata]] = lambda file: (file, file.metadata)
    rerank_head: RerankHead = RerankHead()
    next_layer: NextLayer | None = None
    is_70b: Callable[[int, int, int], bool] = lambda heads, kv_heads, experts: False
    only: Mapping[str, object] = field(default_factory=dict)
    rotary_part: float | None = None
    key_aliases: Mapping[str, str] = field(default_factory=dict)
    usual_config: Callable[[Config], Config] = lambda config: config
    ropes: tuple[str, ...] = ("default", "linear", "yarn")
    activation: str = "silu"
    tied: bool = False
    vocabulary: VocabularyFile | None = None
    outer: Mapping[str, str] = field(default_factory=lambda: OUTER)
    base: str = "model."
    layer: str = "layers"
    unused: tuple[str, ...] = ()
    modules: Modules = Modules()
    layout: TensorLayout = TensorLayout()
    written: Written | None = None
    unwritten: Unwritten = Unwritten()

    @cached_property
    def fields(self) -> frozenset[str]:
        """Fields under `<name>.` that are read beside those of all architectures."""
        some = {LAYER_NORM_EPS: self.layer_norms, CAUSAL: self.encoder, PATTERN: self.windows is not None,
                NEXTN: self.next_layer is not None}
        rows = {key if isinstance(key, str) else key.field for key in self.keys}
        return frozenset(rows | {name for name, has in some.items() if has})

    @property
    def encoder(self) -> bool:
        """Whether tokens see all of a text, and the graph gives their vectors in place of logits."""
        return self.network.encodes

    def tensors(self, hp: Any) -> Tensors:
        """The tensors of a model with their shapes."""
        return self.network.tensors(hp)

    def plain_name(self, name: str) -> str:
        """The name of a checkpoint's tensor without what it may begin with."""
        found = next((base for base in (self.base, *self.modules.other_bases) if name.startswith(base)), "")
        return name.removeprefix(found)

    def read(self, metadata: Metadata, path: str, shapes: Mapping[str, tuple[int, ...]]) -> Hyperparams:
        """The hyperparameters of a file with this metadata and tensors of these shapes.

        Raises ModelError or GGUFError naming the key that is missing or wrong, or that nothing is known of.
        """
        check_keys(metadata, path, self.name, self.fields)
        r = MetadataReader(metadata, path, self.name, SHARED | self.fields, shapes)
        eps, sizes = LAYER_NORM_EPS if self.layer_norms else RMS_EPS, self.sizes
        hp = read_shared(
            r, interleaved=self.interleaved, experts=self.experts, eps=eps, equal_lengths=sizes.equal_lengths,
            differs=sizes.differs,
        ) if sizes.attention else without_attention(r, has_ff=sizes.feed_forward, eps=eps)
        hp = replace(hp, rope=replace(hp.rope, whole_pairs=self.whole_pairs))
        if self.encoder and r.flag(CAUSAL, default=False):
            raise r.error(CAUSAL, "is true", "false")
        rows = [key for key in self.keys if not isinstance(key, str)]
        values = {key.name: key.read(r, hp) for key in rows}
        hp = hp.extended(sizes.kind, **{name: value for name, value in values.items() if name})
        if self.windows is not None:
            hp = self.windows.read(r, hp)
        found: Hyperparams = sizes.complete(r, hp)
        return found

    def config_keys(self, config: Config, name: str) -> Keys:
        """What config.json says of a model of the class `name`, as fields beside those of all architectures.

        Raises ModelError for what has no computation here.
        """
        config.only(self.only)
        keys: Keys = {CAUSAL: False} if self.encoder else {}
        if self.layer_norms:
            keys |= {RMS_EPS: None, LAYER_NORM_EPS: config.real(self.layer_norms, 1e-5)}
        if self.rotary_part is not None:
            keys |= rotary_keys(config, self.rotary_part)
        if self.windows is not None:
            keys |= self.windows.keys(config)
        for key in self.keys:
            keys |= {} if isinstance(key, str) else key.keys(config)
        return keys | self.classes[name](config)


@dataclass(frozen=True)
class ModelSpec:
    """A model file, read and checked; `graph` gives its computation.

    added  what adapters add to weights, by GGUF name, see `octavo.models.shared.lora`
    """

    file: GGUFFile
    architecture: Architecture
    hparams: Hyperparams
    added: Mapping[str, LowRank] = field(default_factory=dict)

    def graph(
        self, *, cache_type: CacheType = "f16", page_size: int = PAGE_SIZE, n_ctx: int | None = None,
        vectors: bool = False, window_pages: bool = False, tap: Tap | None = None,
    ) -> Graph:
        """The graph of a step: tokens in, logits [outputs, n_vocab] out. `n_ctx` matters to longrope only.

        window_pages  layers with a window have pages of their own
        vectors  what logits are made of comes out in their place, [outputs, n_embd]; an encoder has nothing else
        tap      makes hidden states, the second output, [tokens, width]
        """
        n_ctx = n_ctx or self.hparams.n_ctx_train
        static = static_scales(self.file, self.hparams, cache_type)
        g = GraphBuilder(cache_type, page_size, n_ctx, window_pages=window_pages, static=static)
        logits = self.architecture.network.build(g, self.hparams, Weights(self.file))
        graph = Graph.of(logits, *(() if tap is None else (tapped(g, logits, tap, self.file.path),)))
        graph = with_low_rank(graph, self.added)
        return Graph.of(before_output(graph.outputs[0])) if vectors and not self.architecture.encoder else graph
