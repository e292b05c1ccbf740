"""What a model needs of memory, before it is loaded, and how an error says it."""

from __future__ import annotations

import logging

import msgspec
import pytest

from octavo.data import resolve
from octavo.router.memory import PROCESSES, at_least, estimate, in_unit, too_large
from octavo.server.engine.engine_protocol import Asks
from octavo.server.serve_options import EngineOptions
from tests.router.live_models import ENGINE, served, serving

MIB = 1 << 20


@pytest.mark.parametrize(("nbytes", "unit", "text"), [
    (300 << 20, "M", "300M"), ((300 << 20) + 1, "M", "301M"), (12 << 30, "G", "12G"), (300 << 20, "G", "0.3G"),
    (5000, "", "5000"), (1 << 20, "K", "1024K"),
])
def test_memory_is_told_in_the_unit_that_was_typed(nbytes: int, unit: str, text: str) -> None:
    assert in_unit(nbytes, unit) == text


def test_an_estimate_has_weights_cache_and_processes() -> None:
    path = resolve("demo")
    given = estimate(EngineOptions(path, device="cpu", kv_memory=64 << 20))
    assert given is not None
    assert (given.caches, given.process) == (64 << 20, PROCESSES)
    assert 14 * MIB < given.weights < 15 * MIB
    usual, small = estimate(EngineOptions(path, device="cpu")), estimate(EngineOptions(path, device="cpu", n_ctx=256))
    assert usual is not None
    assert small is not None
    assert usual.caches == (usual.weights + PROCESSES) // 3, "a quarter of what it is then allowed"
    assert 0 < small.caches < usual.caches
    assert estimate(EngineOptions("/nowhere.gguf", device="cpu")) is None


def test_what_is_named_is_enough() -> None:
    """A cache that is bounded by the memory grows with it; one of all contexts does not."""
    options = EngineOptions(resolve("demo"), device="cpu")
    asked = Asks(15 * MIB, 75 * MIB, 2 * MIB, 316 * MIB)
    needs = at_least(asked, estimate(options), options)
    assert needs.total - needs.caches + needs.total // 4 <= needs.total
    fixed = msgspec.structs.replace(options, kv_memory=75 * MIB)
    assert at_least(asked, estimate(fixed), fixed) == asked


def test_advice_is_of_the_cache_only_where_that_is_too_large() -> None:
    needs = Asks(14 * MIB, 100 * MIB, 0, 316 * MIB)
    assert str(too_large("one", 0, needs, 300 * MIB, None, "M")) == (
        "one needs at least 430M (processes 316M, weights 14M, cache 100M); --memory is 300M")
    assert str(too_large("one", 0, needs, 400 * MIB, None, "M")) == (
        "one needs at least 430M (processes 316M, weights 14M, cache 100M); --memory is 400M: a smaller --kv-memory, "
        "--ctx-size or --max-sequences needs less")


def test_what_fits_nowhere_is_warned_of_at_the_start_and_refused_with_all_numbers(
    caplog: pytest.LogCaptureFixture
) -> None:
    with serving([served("one", resolve("demo"))], memory=100 * MIB, unit="M") as (server, _):
        status, error = server.refused("/v1/completions", {"model": "one", "prompt": "x"})
    words = "one needs at least 331M (processes 300M, weights 15M, cache 16M); --memory is 100M"
    assert (status, error["code"], error["message"]) == (400, "model_too_large", words)
    assert ENGINE.kv_memory == 16 * MIB
    assert ("octavo.models", logging.WARNING, words) in caplog.record_tuples
