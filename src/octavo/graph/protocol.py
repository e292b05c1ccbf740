"""What a backend is: where values lie, what it can run, and what binds a call for each node."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from octavo.formats import QTensor
from octavo.formats.spec import F32, U8, AnyArray
from octavo.graph.communicator import Communicator
from octavo.graph.factors import LowRank
from octavo.graph.node import DType, Graph, Node, Sizes

Call = Callable[[], None]
"""A kernel with its arguments bound; run once a step."""


@runtime_checkable
class MadeReady(Protocol):
    """A call whose kernels are made ready beside other work, from when it is bound on."""

    def is_ready(self) -> bool:
        """Whether it would run at once."""

    def make_ready(self) -> None:
        """Wait until it would."""


@runtime_checkable
class Capturing(Protocol):
    """A call that becomes a graph of a device in its first runs."""

    def is_captured(self) -> bool:
        """Whether it has become one."""


@runtime_checkable
class Releasable(Protocol):
    """A call that holds something of a device."""

    def release(self) -> None:
        """Give it back; it is not called again."""


class AdapterTable(Protocol):
    """Factors of adapters as a backend holds them, see op `lora`."""

    def put(self, slot: int, pairs: Sequence[LowRank | None]) -> None:
        """Have an adapter in a slot, after all calls made so far: what it adds to each product; None for nothing."""


class Binder(Protocol):
    """Makes the calls of one plan on a backend.

    Nodes are bound in the order in which they run. So a call may leave what later ones read in memory that the calls of
    a plan share.
    """

    def bind(self, node: Node, inputs: Sequence[Any], out: Any) -> Call:
        """The call that computes `node` from `inputs` into `out`."""

    def finish(self) -> Sequence[Call]:
        """What was bound since the last time, which runs one after the other, as fewer calls that do the same."""


class Saved(Protocol):
    """Values of a backend, copied to the host."""

    nbytes: int

    def data(self) -> U8:
        """Their bytes; any thread may wait for them."""


class Backend(Protocol):
    """A device and the kernels for it. A buffer, a loaded weight and a view are the backend's own kinds of thing."""

    name: str
    fusions: frozenset[str]
    """Fused ops that it wants in its graphs."""
    quantizes: frozenset[str]
    """Ops whose results it quantizes on their way out, where only a product reads them."""
    chooses: bool
    """Whether it finds the likeliest tokens faster than the host does with all logits."""
    communicator: Communicator | None
    """What it exchanges values with other ranks by; None where a model is not divided."""

    def supports(self, node: Node) -> tuple[bool, str]:
        """Whether it can run `node`, and if not, why."""

    def activation(self, weight: QTensor, op: str) -> DType:
        """The format in which `op`, a product with `weight`, wants its activations."""

    def adds_in_place(self, node: Node) -> bool:
        """Whether the result of `node`, a product and what is added to it, may lie where its last input does."""

    def load(self, tensor: QTensor) -> Any:
        """A weight in the kernels' own layout; made once."""

    def nbytes(self, shape: tuple[int, ...], dtype: DType) -> int:
        """Bytes that a value takes."""

    def allocate(self, nbytes: int) -> Any:
        """Memory for values; `nbytes` is a multiple of 64."""

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: DType) -> Any:
        """The value that lies at `offset` bytes of `memory`."""

    def cache(self, shape: tuple[int, ...], dtype: DType, static: F32 | None = None) -> Any:
        """The keys or the values of a layer, [rows, H, D], zeroed, in a type of `formats.cache`."""

    def page_parts(self, cache: Any, page: int) -> list[Any]:
        """The values that a page of a cache consists of, PAGE_SIZE rows with their scales."""

    def copy_page(self, cache: Any, target: int, source: int) -> None:
        """Copy a page of a cache, PAGE_SIZE rows, over another one, after all calls made so far."""

    def states(self, shape: tuple[int, ...]) -> Any:
        """The states of a layer, float32 [slots, ...]; what they hold before they are written is not read."""

    def copy_state(self, states: Any, target: int, source: int) -> None:
        """Copy a slot over another one, after all calls made so far."""

    def save(self, values: Sequence[Any]) -> Saved:
        """A copy on the host of values as they are once all calls made so far are done, one after the other."""

    def restore(self, values: Sequence[Any], data: U8 | Saved) -> None:
        """Fill values from what they were, after all calls made so far."""

    def adapters(self, shape: tuple[int, ...]) -> AdapterTable:
        """A table [S, R, K, N, N, ...] of factors for products of one activation, with no adapter in it."""

    def alias(self, node: Node, value: Any, shape: tuple[int, ...]) -> Any:
        """`value`, the first input of an alias op, as its result: no copy."""

    def begin_plan(self, graph: Graph) -> Binder:
        """What binds the nodes of one plan, some of those of `graph`."""

    def write(self, value: Any, data: AnyArray) -> None:
        """Fill a value from an array on the host."""

    def read(self, value: Any) -> AnyArray:
        """A value as an array on the host."""

    def synchronize(self) -> None:
        """Return when all calls made so far are done."""


@runtime_checkable
class AsyncBackend(Backend, Protocol):
    """A backend whose calls return before they are done: a step can begin before the one before it has been read."""

    def begin_read(self, value: Any) -> Callable[[], AnyArray]:
        """Copy a value as it is once all calls made so far are done; what is returned waits for it."""

    def copy(self, target: Any, source: Any, places: Sequence[int] | None = None) -> None:
        """Fill the first elements of a value with another one's, of its type, after all calls made so far.

        These are all elements, or those at some places of a source of one dimension; the target has no fewer. The
        source may be another backend's of this kind: later calls of both come after the copy.
        """


@runtime_checkable
class RememberingBackend(Backend, Protocol):
    """A backend with a place for what is found out about the steps of its device."""

    def remembers(self) -> tuple[Path | None, str]:
        """The folder of its compiled kernels, another one for each version of these; and the device and its settings.

        None where nothing is kept.
        """


@runtime_checkable
class BoundedBackend(Backend, Protocol):
    """A backend with memory of its own, which a model may be too large for."""

    def free(self) -> int:
        """Bytes that a model may take."""

    def needs(self, nodes: Sequence[Node], limits: Sizes) -> int:
        """Bytes of what `nodes` read that lasts, and of what their kernels work with; their values are not counted."""


@runtime_checkable
class TensorBackend(AsyncBackend, BoundedBackend, Protocol):
    """A backend whose values are tensors of torch."""

    @property
    def device(self) -> str:
        """What torch calls the device that they lie on."""


@runtime_checkable
class HostBackend(Backend, Protocol):
    """A backend in the system's memory, which a model may be too large for."""

    def begin_loading(self) -> None:
        """Let go of memory that is left of what was loaded: weights from here on share none with those before."""

    def weight_bytes(self, nodes: Sequence[Node]) -> int:
        """Bytes of the weights that `nodes` read, as they are loaded."""

    def cache_bytes(self, nodes: Sequence[Node], limits: Sizes) -> int:
        """Bytes of the caches, when they are full, and of the states that `nodes` read."""


class StandIn(Backend, Protocol):
    """A backend that loads and computes nothing, on which plans are bound to learn which kernels they will run."""

    def compile(self) -> None:
        """Compile the kernels of all that was loaded and bound, unless they are there already."""


@runtime_checkable
class ForecastingBackend(Backend, Protocol):
    """A backend that knows its kernels before any weight is read."""

    def stand_in(self, plans: str) -> StandIn | None:
        """What stands in for this backend to find them; None where they are known to be there.

        plans  a text that is the same for the same plans
        """


@dataclass(frozen=True)
class WeightSource:
    """What a model's weights are read from and made by, for backends that keep what they make of them.

    files  with all that tensors depend on
    names  of the tensors in them; weights with others are not of the model
    code   the sources of what reads and converts them
    label  where the model is, as people know it
    keep   False: what is kept of the model is removed
    """

    files: tuple[str, ...]
    names: Container[str]
    code: tuple[bytes, ...]
    label: str
    keep: bool


@runtime_checkable
class KeepingBackend(Backend, Protocol):
    """A backend that keeps weights, as they are loaded, for the next start."""

    def keeping(self, nodes: Sequence[Node], source: WeightSource) -> AbstractContextManager[int]:
        """While this lasts, the weights that `nodes` read are loaded from what is kept, or into it.

        Gives the bytes of them that lie in the page cache, which the system takes back when it needs memory.
        """
