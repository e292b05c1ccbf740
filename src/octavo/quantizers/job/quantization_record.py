"""What a method did to a model, as the model itself keeps it: errors before and after, and what was chosen.

A GGUF file has it as JSON under KEY of its metadata, a checkpoint as FILE beside its weights. A report
reads it, and what applies adapters to a checkpoint looks whether weights were scaled or rotated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octavo.errors import ModelError
from octavo.huggingface import CheckpointFile
from octavo.huggingface.folder import RECORD
from octavo.io.gguf import GGUFFile
from octavo.quantizers.job.method_run import MethodRun
from octavo.quantizers.job.scheme_method import FoldScales
from octavo.quantizers.job.undersampled import UndersampledExpert
from octavo.quantizers.statistics.outliers import OutlierChannels

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
    tried: Mapping[str, float]
    channels: OutlierChannels | None


@dataclass(frozen=True)
class MethodRecord:
    """A run, and what it did. `target` is the preset or the scheme, `starved` are experts that met too few tokens."""

    about: MethodRun
    target: str
    weights: tuple[WeightRecord, ...]
    scales: tuple[FoldScales, ...] = ()
    starved: tuple[UndersampledExpert, ...] = ()


def to_values(record: MethodRecord) -> dict[str, Any]:
    """A record as JSON has it."""
    return {
        "version": VERSION,
        "target": record.target,
        **vars(record.about),
        "weights": [
            {"name": w.name, "how": w.how, "before": rounded(w.before), "error": rounded(w.error)}
            | ({"tried": {way: rounded(x) for way, x in w.tried.items()}} if len(w.tried) > 1 else {})
            | channel_values(w.channels)
            for w in record.weights
        ],
        "scales": [
            values | {key: rounded(values[key]) for key in ("before", "after", "least", "largest")}
            for values in map(scaled_values, record.scales)
        ],
        **starved_values(record.starved),
    }


def to_json(record: MethodRecord) -> str:
    """A record as text, without spaces."""
    return json.dumps(to_values(record), separators=(",", ":"))


def record_bytes(shapes: Mapping[str, Sequence[int]]) -> int:
    """Bytes that the record of a GGUF file with weights of these shapes takes, at most."""
    experts = {name: shape[0] if len(shape) == 3 else 0 for name, shape in shapes.items()}
    each = (WEIGHT_BYTES + EXPERT_BYTES * n + len(json.dumps(name)) * (1 + n) for name, n in experts.items())
    return ABOUT_BYTES + sum(each)


def scaled_values(row: FoldScales) -> dict[str, Any]:
    """What is told of a fold's scales, as JSON has it."""
    return {
        "fold": row.fold, "how": row.how, "setting": row.setting, "before": row.before, "after": row.after,
        "least": row.least, "largest": row.largest, "readers": list(row.readers),
        **channel_values(row.channels),
    }


def starved_values(starved: Sequence[UndersampledExpert]) -> dict[str, Any]:
    """Experts of few tokens as a field of JSON; none where there are none."""
    return {"starved": [asdict(found) for found in starved]} if starved else {}


def channel_values(found: OutlierChannels | None) -> dict[str, Any]:
    """The channels of an input as a field of JSON; none where they are not known."""
    if found is None:
        return {}
    return {"channels": {"size": found.size, "median": found.median, "largest": list(map(list, found.largest))}}


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
    at = JsonFields(values, file, "")
    if (version := at.whole("version")) != VERSION:
        raise at.error("version", f"is {version}", str(VERSION))
    kv = at.values.get("kv")
    about = MethodRun(
        at.text("method"), at.text("text"), at.whole("samples"), at.whole("tokens"), at.text("sha256"),
        at.values.get("rotate") is True, None if kv is None else at.text("kv"),
    )
    return MethodRecord(
        about, at.text("target"), tuple(map(_weight, at.parts("weights"))), tuple(map(scaled_of, at.parts("scales"))),
        starved_of(at),
    )


def scaled_of(at: JsonFields) -> FoldScales:
    """What is told of a fold's scales."""
    setting = None if at.values.get("setting") is None else at.real("setting")
    return FoldScales(
        at.text("fold"), at.text("how"), setting, at.real("before"), at.real("after"), at.real("least"),
        at.real("largest"), tuple(at.texts("readers")), channels_of(at),
    )


def _weight(at: JsonFields) -> WeightRecord:
    tried = at.part("tried") if "tried" in at.values else None
    return WeightRecord(
        at.text("name"), at.text("how"), at.real("before"), at.real("error"),
        {} if tried is None else {way: tried.real(way) for way in tried.values}, channels_of(at),
    )


def channels_of(at: JsonFields) -> OutlierChannels | None:
    """The channels of an input that a part of JSON has; None where it has none."""
    if "channels" not in at.values:
        return None
    part = at.part("channels")
    return OutlierChannels(part.whole("size"), part.real("median"), tuple(part.pairs("largest")))


def starved_of(at: JsonFields) -> tuple[UndersampledExpert, ...]:
    """The experts of few tokens that a part of JSON has."""
    parts = at.parts("starved") if "starved" in at.values else ()
    return tuple(
        UndersampledExpert(p.text("input"), p.whole("expert"), p.whole("tokens"), p.text("how")) for p in parts
    )


class JsonFields:
    """A JSON object; each error names the file, the field and what is allowed."""

    def __init__(self, values: object, file: str, place: str) -> None:
        self.file, self.place = file, place
        if not isinstance(values, dict):
            raise self.error("", "is not a JSON object", "an object")
        self.values: dict[str, Any] = values

    def error(self, key: str, problem: str, allowed: str) -> ModelError:
        return ModelError(problem, file=self.file, field=f"{KEY}: {self.place}{key}", allowed=allowed)

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self.error(key, "is missing or is not text", "text")
        return value

    def whole(self, key: str) -> int:
        value = self.values.get(key)
        if type(value) is not int or value < 0:
            raise self.error(key, "is missing or is not a whole number", "0 or more")
        return value

    def real(self, key: str) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
            raise self.error(key, "is missing or is not a number", "a finite number, 0 or more")
        return float(value)

    def part(self, key: str) -> JsonFields:
        return JsonFields(self.values.get(key), self.file, f"{self.place}{key}.")

    def parts(self, key: str) -> Iterable[JsonFields]:
        return [JsonFields(value, self.file, f"{self.place}{key}.{i}.") for i, value in enumerate(self._list(key))]

    def texts(self, key: str) -> list[str]:
        found = self._list(key)
        if not all(isinstance(value, str) for value in found):
            raise self.error(key, "has values that are not text", "texts")
        return found

    def pairs(self, key: str) -> list[tuple[int, float]]:
        """Channels, each with a number."""
        found = self._list(key)
        for i, pair in enumerate(found):
            values = dict(zip(("channel", "value"), pair, strict=False)) if isinstance(pair, list) else pair
            at = JsonFields(values, self.file, f"{self.place}{key}.{i}.")
            found[i] = at.whole("channel"), at.real("value")
        return found

    def _list(self, key: str) -> list[Any]:
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.error(key, "is missing or is not a list", "a list")
        return list(value)
