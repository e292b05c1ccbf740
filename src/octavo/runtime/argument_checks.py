"""What arguments of the public functions may be, in errors that name the argument and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

from octavo.errors import UsageError

KNOWN_AS = {
    "context": "n_ctx", "context_length": "n_ctx", "ctx": "n_ctx", "ctx_size": "n_ctx", "max_model_len": "n_ctx",
    "num_ctx": "n_ctx", "kv": "cache_type", "kv_cache_dtype": "cache_type", "type_k": "cache_type",
    "n_threads": "threads", "n_gpu_layers": "gpu_layers", "num_gpu": "gpu_layers", "ngl": "gpu_layers",
    "temp": "temperature", "max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens", "num_predict": "max_tokens", "max_length": "max_tokens",
    "repetition_penalty": "repeat_penalty", "system_prompt": "system", "stop_strings": "stop",
    "stop_sequences": "stop", "random_seed": "seed", "top_logprobs": "logprobs", "n_probs": "logprobs",
    "tensor_parallel_size": "tensor_parallel", "tp_size": "tensor_parallel", "num_shard": "tensor_parallel",
    "pipeline_parallel": "pipeline", "pipeline_parallel_size": "pipeline", "pp_size": "pipeline",
}
"""What other programs call the arguments of `load` and `generate`."""


def require_known(function: str, given: Iterable[str], names: Sequence[str]) -> None:
    """Raise UsageError for the first name that is none of `names`, and say which was meant."""
    for name in given:
        if name in names:
            continue
        meant = KNOWN_AS.get(name)
        close = [meant] if meant in names else difflib.get_close_matches(name, names, n=1)
        hint = f": did you mean {close[0]}?" if close else ""
        raise UsageError(f"{name} is not an argument of {function}{hint} (allowed: {', '.join(names)})", argument=name)


def integer(name: str, value: Any, low: int, high: int | None = None, also: str = "") -> int:
    """An integer of any type in a range. Raises UsageError for anything else, a bool too."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and low <= value and (high is None or value <= high):
        return int(value)
    top = f"2^{high.bit_length()} - 1" if high is not None and high.bit_length() > 40 else high
    allowed = (f"{low} or more" if high is None else f"{low} to {top}") + also
    raise wrong(name, value, allowed if whole else f"an integer, {allowed}")


def number(name: str, value: Any, low: float, high: float) -> float:
    """A finite number of any type in a range. Raises UsageError for anything else, a bool too."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if real and low <= value <= high:
        return float(value)
    allowed = f"{low:g} to {high:g}"
    raise wrong(name, value, allowed if real else f"a number, {allowed}")


def choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise UsageError unless `value` is one of the texts that are allowed."""
    if not isinstance(value, str) or value not in allowed:
        raise wrong(name, value, ", ".join(allowed))


def texts(name: str, value: object) -> list[str]:
    """A text or several, or None for none of them, as a list. Raises UsageError for anything else."""
    found = [] if value is None else [value] if isinstance(value, str) else value
    if isinstance(found, list | tuple | set | frozenset) and all(isinstance(text, str) for text in found):
        return list(found)
    raise wrong(name, value, "a string or a list of strings")


def flag(name: str, value: object) -> None:
    """Raise UsageError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise wrong(name, value, "True or False")


def wrong(name: str, value: object, allowed: str) -> UsageError:
    """The error of an argument whose value is none that is allowed."""
    text = str(value) if isinstance(value, Real) else repr(value)
    return UsageError(f"{name} is {text if len(text) < 60 else text[:57] + '...'} (allowed: {allowed})", argument=name)
