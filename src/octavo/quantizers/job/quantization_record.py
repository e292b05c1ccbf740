"""What a method did to a model, as the model itself keeps it: errors before and after, and what was chosen.

A GGUF file has it as JSON under KEY of its metadata, a checkpoint as FILE beside its weights. A report
reads it, and what applies adapters to a checkpoint looks whether weights were scaled or rotated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from octavo.errors import ModelError
from octavo.huggingface import CheckpointFile
from octavo.huggingface.folder import RECORD
from octavo.io.gguf import GGUFFile
from octavo.quantizers.job.method_result import MethodRun, UndersampledExpert
from octavo.quantizers.job.scheme_method import FoldScales
from octavo.quantizers.statistics.outliers import OutlierChannels

T = TypeVar("T")

KEY, FILE = "octavo.calibration", RECORD
VERSION = 1
DIGITS = 6
"""Significant digits of errors and scales."""
WEIGHT_BYTES, EXPERT_BYTES, ABOUT_BYTES = 400, 80, 4096
"""Bytes of JSON that a weight of a GGUF file takes beside its name, an expert of few tokens, and what is told of the
run, at most."""


@dataclass(frozen=True)
class WeightRecord:
    """A weight.

    how      what was chosen for it, as in "qronos"
    before   the root of sum |y' - y|^2 / sum |y|^2 of its outputs y over the text, with the codes that are nearest
    error    the same, as it is
    tried    the same of each way that was tried for it, where there were several
    channels of its input
    """

    name: str
    how: str
    before: float
    error: float
    tried: Mapping[str, float] = field(default_factory=dict)
    channels: OutlierChannels | None = None


@dataclass(frozen=True)
class MethodRecord:
    """A run, and what it did. `target` is the preset or the scheme, `starved` are experts that met too few tokens."""

    about: MethodRun
    target: str
    weights: tuple[WeightRecord, ...]
    scales: tuple[FoldScales, ...] = ()
    starved: tuple[UndersampledExpert, ...] = ()


def to_values(record: MethodRecord) -> dict[str, Any]:
    """A record as JSON has it: what is not known of a weight or of scales is left out."""
    starved = {"starved": [asdict(found) for found in record.starved]} if record.starved else {}
    found: dict[str, Any] = json.loads(json.dumps({
        "version": VERSION, "target": record.target, **vars(record.about),
        "weights": [
            {k: v for k, v in _rounded(asdict(w)).items() if v is not None and (k != "tried" or len(v) > 1)}
            for w in record.weights
        ],
        "scales": [
            {k: v for k, v in _rounded(asdict(row)).items() if v is not None or k == "setting"}
            for row in record.scales
        ],
        **starved,
    }))
    return found


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """A row with as many digits of its errors and scales as are kept of them."""
    found = row | {key: rounded(row[key]) for key in ("before", "after", "error", "least", "largest") if key in row}
    return found | ({"tried": {way: rounded(x) for way, x in row["tried"].items()}} if "tried" in row else {})


def to_json(record: MethodRecord) -> str:
    """A record as text, without spaces."""
    return json.dumps(to_values(record), separators=(",", ":"))


def record_bytes(shapes: Mapping[str, Sequence[int]]) -> int:
    """Bytes that the record of a GGUF file with weights of these shapes takes, at most."""
    experts = {name: shape[0] if len(shape) == 3 else 0 for name, shape in shapes.items()}
    each = (WEIGHT_BYTES + EXPERT_BYTES * n + len(json.dumps(name)) * (1 + n) for name, n in experts.items())
    return ABOUT_BYTES + sum(each)


def rounded(x: float) -> float:
    """A number with as many digits as are kept of it."""
    return float(f"{x:.{DIGITS}g}")


def read_record(file: GGUFFile) -> MethodRecord | None:
    """What a model's file says of how it was made; None where it says nothing.

    Raises ModelError naming the field for what is not as a method writes it, FileError for anything but a JSON object.
    """
    if isinstance(file, CheckpointFile):
        checkpoint = file.folder.checkpoint
        values = checkpoint.json(FILE)
        return None if values is None else record_of(values, checkpoint.path(FILE))
    text = file.metadata.get_str(KEY, "")
    if not text:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ModelError("is not valid JSON", file=file.path, field=KEY) from None
    return record_of(values, file.path)


def record_of(values: object, file: str) -> MethodRecord:
    """A record of what JSON has. Raises ModelError as `read_record` does."""
    reader = JsonReader(file)
    if not isinstance(values, dict):
        reader.fail("", "is not a JSON object", "an object")
    if (version := reader.read(int, values.get("version"), "version")) != VERSION:
        reader.fail("version", f"is {version}", str(VERSION))
    reader.read(MethodRun, values)
    return reader.read(MethodRecord, {**values, "about": values})


class LaterValues(Sequence[Any]):
    """Values that are read whenever one is asked for."""

    def __init__(self, values: list[Any], read: Callable[[Any], Any]) -> None:
        self._values, self._read = values, read

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, i: Any) -> Any:
        return self._read(self._values[i])


@dataclass(frozen=True)
class JsonReader:
    """Reads values of JSON as types have them; each error names the file, the field and what is allowed.

    array  gives the array that a value stands for, if there are some; values of a `Sequence` are then read later
    """

    file: str
    array: Callable[[Any], Any] | None = None

    def fail(self, place: str, problem: str, allowed: str) -> NoReturn:
        raise ModelError(problem, file=self.file, field=f"{KEY}: {place}", allowed=allowed)

    def read(self, kind: type[T], value: Any, place: str = "") -> T:
        """A value of a type: a dataclass, a tuple, a mapping, a number of 0 or more, text, or an array."""
        found: T = self._read(kind, value, place)
        return found

    def _read(self, kind: Any, value: Any, place: str) -> Any:
        if is_dataclass(kind) or hasattr(kind, "_fields"):
            return self._record(kind, value, place)
        origin, args = get_origin(kind), get_args(kind)
        if origin is UnionType:
            return None if value is None else self._read(args[0], value, place)
        if origin in (tuple, list, Sequence):
            if not isinstance(value, list):
                self.fail(place, "is missing or is not a list", "a list")
            if origin is Sequence and self.array is not None:
                return LaterValues(value, lambda each: self._read(args[0], each, place))
            return (list if origin is list else tuple)(
                self._read(args[0], each, f"{place}.{i}") for i, each in enumerate(value)
            )
        if origin in (dict, Mapping):
            if not isinstance(value, dict):
                self.fail(f"{place}.", "is not a JSON object", "an object")
            return {key: self._read(args[1], each, f"{place}.{key}") for key, each in value.items()}
        if origin is not None and self.array is not None:
            return self.array(value)
        return self._plain(kind, value, place)

    def _record(self, kind: Any, value: Any, place: str) -> Any:
        """A dataclass of an object, or a NamedTuple of a list; what has a default may be missing."""
        hints, inside = get_type_hints(kind), f"{place}." if place else ""
        if hasattr(kind, "_fields") and isinstance(value, list):
            value = dict(zip(kind._fields, value, strict=False))
        if not isinstance(value, dict):
            self.fail(inside, "is not a JSON object", "an object")
        free = {} if hasattr(kind, "_fields") else {
            f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING
        }
        named = [name for name in hints if name in value or name not in free]
        return kind(**{name: self._read(hints[name], value.get(name), inside + name) for name in named})

    def _plain(self, kind: Any, value: Any, place: str) -> Any:
        if kind is float:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not (math.isfinite(value) and value >= 0):
                self.fail(place, "is missing or is not a number", "a finite number, 0 or more")
            return float(value)
        if type(value) is not kind or (kind is int and value < 0):
            words = {int: ("a whole number", "0 or more"), str: ("text", "text"), bool: ("true or false",) * 2}[kind]
            self.fail(place, f"is missing or is not {words[0]}", words[1])
        return value
