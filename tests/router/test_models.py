"""Which models are loaded, when, and which one is ended for that, with servers that compute nothing."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_options

from octavo.errors import OctavoError, UsageError
from octavo.router import models as module
from octavo.router.models import Models
from octavo.server.http.api_errors import ApiError
from tests.limits import HANG_S
from tests.router.fake_servers import GIB, known, worlds


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(HANG_S):
            await test()

    asyncio.run(limited())


async def ask(models: Models, name: str, until: asyncio.Event | None = None) -> None:
    """A request that is answered at once, or when `until` is set."""
    async with models.taken(models.find(name)):
        if until is not None:
            await until.wait()


async def refused(models: Models, name: str) -> ApiError:
    with pytest.raises(ApiError) as found:
        await ask(models, name)
    return found.value


async def become(models: Models, **states: str) -> None:
    """Wait until models are so."""
    while any(models.models[name].state != state for name, state in states.items()):
        await asyncio.sleep(0.001)


async def waits(models: Models, name: str, n: int = 1) -> None:
    while models.models[name].waiting != n:
        await asyncio.sleep(0.001)


def test_the_least_recently_used_goes_first_and_never_more_is_held() -> None:
    async def test() -> None:
        async with worlds({"a": 2, "b": 2, "c": 2}, memory=5) as (world, models):
            for name in ("a", "b", "a", "c"):
                await ask(models, name)
            assert world.loaded == ["a", "b", "c"]
            assert world.here == {"a", "c"}, "b was used before a"
            await ask(models, "b")
            assert world.here == {"b", "c"}
            assert (world.most, models.evictions) == (4 * GIB, 2)
            assert sum(one.held for one in models.models.values()) == 4 * GIB

    run(test)


def test_a_process_waits_for_the_next_model_while_nobody_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.replicas.pool.FIRST_PAUSE_S", 0.01)

    async def test() -> None:
        async with worlds({"a": 2, "b": 2, "c": 1}, memory=3, spares=True) as (world, models):
            async def waiting(n: int) -> None:
                while len(world.spares) != n:
                    await asyncio.sleep(0.001)

            await waiting(1)
            answered = asyncio.Event()
            asking = asyncio.create_task(ask(models, "a", answered))
            while not models.models["a"].answering:
                await asyncio.sleep(0.001)
            assert (world.began, world.spares) == (["a"], [])
            answered.set()
            await asking
            await waiting(1)
            await ask(models, "b")
            await waiting(1)
            assert (world.began, world.here) == (["a", "b"], {"b"})
            world.sizes["b"] = 3 * GIB  # its next engine finds that it needs all
            async with models.taken(models.find("b")) as pool:
                world.servers["b"].end()
                while not pool.replicas[0].restarts or not pool.up:
                    await asyncio.sleep(0.001)
                assert models.models["b"].held == 3 * GIB
            await asyncio.sleep(0.01)
            assert world.spares == []

    run(test)


def test_no_process_waits_where_all_models_are_loaded() -> None:
    async def test() -> None:
        async with worlds({"a": 1}, spares=True) as (world, models):
            while not world.spares:
                await asyncio.sleep(0.001)
            await ask(models, "a")
            await asyncio.sleep(0.01)
            assert (world.began, world.spares) == (["a"], [])

    run(test)


def test_requests_at_random_are_all_answered_within_memory() -> None:
    async def test() -> None:
        rng = random.Random(1)
        async with worlds({"a": 2, "b": 2, "c": 2, "d": 3}, memory=5, queue=120) as (world, models):
            async def one(name: str) -> None:
                async with models.taken(models.find(name)) as pool:
                    assert pool.up
                    await asyncio.sleep(rng.random() * 0.004)
                    assert name in world.here, "nothing is ended that answers"

            async with asyncio.TaskGroup() as group:
                for _ in range(60):
                    for _ in range(2):
                        group.create_task(one(rng.choice("abcd")))
                    await asyncio.sleep(rng.random() * 0.004)
            assert world.most <= 5 * GIB

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PATIENCE_S", 0.01)
        run(test)


def test_one_that_answers_is_not_ended_and_takes_no_more_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)

    async def test() -> None:
        async with worlds({"a": 3, "b": 3}, memory=5) as (world, models):
            done = asyncio.Event()
            busy = asyncio.create_task(ask(models, "a", done))
            await become(models, a="loaded")
            other = asyncio.create_task(ask(models, "b"))
            await become(models, a="draining")
            late = asyncio.create_task(ask(models, "a"))
            await waits(models, "a")
            assert world.here == {"a"}
            assert not other.done()
            done.set()
            await asyncio.gather(busy, other, late)
            assert world.loaded == ["a", "b", "a"]
            assert world.most == 3 * GIB

    run(test)


def test_those_that_wait_have_their_turns_in_order() -> None:
    async def test() -> None:
        async with worlds({"a": 3, "b": 3, "c": 3}, memory=5) as (world, models):
            done = asyncio.Event()
            busy = asyncio.create_task(ask(models, "a", done))
            await become(models, a="loaded")
            others = []
            for name in "bc":
                others += [asyncio.create_task(ask(models, name)) for _ in range(2)]
                await waits(models, name, 2)
            done.set()
            await asyncio.gather(busy, *others)
            assert world.loaded == ["a", "b", "c"], "two requests for one model load it once"

    run(test)


def test_a_client_that_leaves_costs_no_model_its_place() -> None:
    async def test() -> None:
        async with worlds({"a": 3, "b": 3}, memory=5) as (world, models):
            done = asyncio.Event()
            busy = asyncio.create_task(ask(models, "a", done))
            await become(models, a="loaded")
            leaving = asyncio.create_task(ask(models, "b"))
            await become(models, b="loading")
            await asyncio.sleep(0)
            leaving.cancel()
            await become(models, b="unloaded")
            done.set()
            await busy
            await ask(models, "a")
            assert world.loaded == ["a"]

    run(test)


def test_a_load_that_nobody_waits_for_gives_its_turn_up() -> None:
    async def test() -> None:
        async with worlds({"a": 2, "b": 2}, memory=5) as (world, models):
            world.silent.add("a")
            leaving = asyncio.create_task(ask(models, "a"))
            while "a" not in world.servers:
                await asyncio.sleep(0.001)
            other = asyncio.create_task(ask(models, "b"))
            await waits(models, "b")
            assert not world.loaded
            leaving.cancel()
            await other
            assert (world.loaded, models.models["a"].state, models.models["a"].failures) == (["b"], "unloaded", 0)

    run(test)


def test_one_that_does_not_fit_alone_is_refused_with_the_numbers() -> None:
    async def test() -> None:
        async with worlds({"a": 2, "b": 9}, memory=5) as (world, models):
            await ask(models, "a")
            for _ in range(2):
                error = await refused(models, "b")
                assert (error.status, error.code, error.param) == (400, "model_too_large", "model")
                assert error.message == "b needs at least 9G (weights 9G); --memory is 5G"
            assert world.here == {"a"}, "nothing is ended in vain"
            assert models.models["b"].held == 0

    run(test)


def test_adapters_of_a_model_go_to_it() -> None:
    """MODEL:NAME, of models that have adapters; which names these have is theirs to say."""
    async def test() -> None:
        async with worlds({"a": 2, "b": 2}, memory=5) as (_, models):
            model = models.models["a"]
            model.known = replace(model.known, engine=with_options(model.known.engine, max_loras=2))
            assert models.find("a:poems") is models.find("a")
            for name in ("b:poems", "c:poems", ":poems"):
                with pytest.raises(ApiError, match="unknown model"):
                    models.find(name)

    run(test)


def test_without_a_limit_it_is_what_engines_find_free() -> None:
    async def test() -> None:
        async with worlds({"a": 2, "b": 2, "c": 9}) as (world, models):
            world.free = 3 * GIB
            await ask(models, "a")
            world.free = 1 * GIB
            await ask(models, "b")
            assert world.here == {"b"}
            error = await refused(models, "c")
            assert error.message == ("c needs at least 9G (weights 9G); 1G is free, and no other model takes as "
                                     "much as is lacking")
            assert world.here == {"b"}

    run(test)


def test_idle_models_sleep_and_wake() -> None:
    async def test() -> None:
        async with worlds({"a": 2, "b": 2}, memory=5, idle=0.05) as (world, models):
            done = asyncio.Event()
            busy = asyncio.create_task(ask(models, "a", done))
            await ask(models, "b")
            await become(models, b="sleeping")
            assert world.here == {"a"}
            await ask(models, "b")
            done.set()
            await busy
            await become(models, a="sleeping", b="sleeping")
            assert world.loaded.count("b") == 2

    run(test)


def test_one_that_ends_is_loaded_by_the_next_request_and_ends_no_other() -> None:
    async def test() -> None:
        async with worlds({"a": 2, "b": 2}, memory=5) as (world, models):
            await ask(models, "a")
            await ask(models, "b")
            world.servers["a"].end()
            await become(models, a="unloaded")
            assert (models.models["a"].held, models.models["a"].failures) == (0, 1)
            assert world.here == {"b"}
            await ask(models, "a")
            assert world.here == {"a", "b"}

    run(test)


def test_one_that_ends_while_it_answers_is_started_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.replicas.pool.FIRST_PAUSE_S", 0.01)

    async def test() -> None:
        async with worlds({"a": 2}, memory=3) as (world, models):
            async with models.taken(models.find("a")) as pool:
                world.servers["a"].end()
                while not pool.replicas[0].restarts or not pool.up:
                    await asyncio.sleep(0.001)
            assert world.loaded == ["a", "a"]
            assert models.models["a"].held == 2 * GIB

    run(test)


def test_one_that_ends_while_it_is_loaded_is_tried_again_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.replicas.pool.FIRST_PAUSE_S", 0.01)

    async def test() -> None:
        async with worlds({"a": 2}, memory=3) as (world, models):
            async def end(times: int) -> None:
                for _ in range(times):
                    before = world.servers.get("a")
                    while (server := world.servers.get("a")) is before or server is None:
                        await asyncio.sleep(0.001)
                    server.end()

            world.may_load.clear()
            ending = asyncio.create_task(end(2))
            asking = asyncio.create_task(ask(models, "a"))
            await ending
            world.may_load.set()
            await asking
            assert world.loaded == ["a"]
            models.unload(models.find("a"))
            await become(models, a="unloaded")
            world.may_load.clear()
            ending = asyncio.create_task(end(3))
            error = await refused(models, "a")
            await ending
            assert (error.status, error.code, error.message) == (
                500, "model_not_loaded", "a can't be loaded: it was killed")
            assert models.models["a"].held == 0

    run(test)


@pytest.mark.parametrize(("wrong", "status", "words"), [
    (UsageError("n_ctx is 0", argument="n_ctx"), 400, "a can't be loaded: n_ctx is 0"),
    (OctavoError("the file ends too early"), 500, "a can't be loaded: the file ends too early"),
])
def test_one_that_can_not_be_loaded(wrong: OctavoError, status: int, words: str) -> None:
    async def test() -> None:
        async with worlds({"a": 2, "b": 2}, memory=5) as (world, models):
            world.wrong["a"] = wrong
            together = await asyncio.gather(*(refused(models, "a") for _ in range(3)))
            for error in (*together, await refused(models, "a")):
                assert (error.status, error.code, error.message) == (status, "model_not_loaded", words)
            assert models.models["a"].failures == 1, "it is not tried again at once"
            assert status == 400 or error.headers == {"x-should-retry": "false"}
            await ask(models, "b")
            del world.wrong["a"]
            models.load(models.find("a"))
            await become(models, a="loaded")

    run(test)


def test_a_queue_that_is_full() -> None:
    async def test() -> None:
        async with worlds({"a": 2, "b": 2}, memory=5) as (world, models):
            world.may_load.clear()
            waiting = [asyncio.create_task(ask(models, "a")) for _ in range(3)]
            await waits(models, "a", 3)
            error = await refused(models, "a")
            assert (error.status, error.code, error.headers) == (429, "queue_full", {"Retry-After": "1"})
            world.may_load.set()
            await asyncio.gather(*waiting, ask(models, "b"))

    run(test)


def test_unloading_cuts_off_what_takes_too_long_and_ends_a_load() -> None:
    async def test() -> None:
        async with worlds({"a": 2, "b": 2}, memory=5) as (world, models):
            done = asyncio.Event()
            busy = asyncio.create_task(ask(models, "a", done))
            while not models.models["a"].answering:
                await asyncio.sleep(0.001)
            models.unload(models.find("a"))
            await become(models, a="unloaded")  # after the time that replies have
            assert not world.here
            done.set()
            await busy
            world.may_load.clear()
            models.load(models.find("b"))
            while not models.models["b"].granted.is_set():
                await asyncio.sleep(0.001)
            models.unload(models.find("b"))
            await become(models, b="unloaded")
            assert models.models["b"].held == 0

    run(test)


def test_another_catalog_ends_what_is_gone() -> None:
    async def test() -> None:
        from octavo.router.catalog import Catalog

        async with worlds({"a": 1, "b": 1, "c": 1}, memory=5) as (world, models):
            for name in "abc":
                await ask(models, name)
            before = models.models["a"]
            models.replace(Catalog([known("a"), known("b", tags=("new",))]))
            while world.here != {"a"}:
                await asyncio.sleep(0.001)
            assert models.models["a"] is before
            assert models.models["b"].state == "unloaded"
            assert (await refused(models, "c")).status == 404
            await ask(models, "b")
            assert world.here == {"a", "b"}

    run(test)


def test_events_tell_what_happens() -> None:
    async def test() -> None:
        import msgspec

        async with worlds({"a": 2, "b": 2}, memory=3) as (_, models):
            told: list[Any] = []

            async def listen() -> None:
                async for line in models.events.lines(10.0):
                    told.extend([msgspec.json.decode(line[6:])] if line.startswith(b"data: ") else [])

            listening = asyncio.create_task(listen())
            await asyncio.sleep(0)
            await ask(models, "a")
            await ask(models, "b")
            while not (told and told[-1]["data"]["status"] == "loaded" and told[-1]["model"] == "b"):
                await asyncio.sleep(0.001)
            listening.cancel()
            assert [(one["model"], one["data"]["status"]) for one in told] == [
                ("a", "loading"), ("a", "loading"), ("a", "loaded"), ("b", "loading"), ("a", "unloaded"),
                ("b", "loading"), ("b", "loaded"),
            ]
            assert told[1]["data"]["progress"] == {
                "stages": ["text_model"], "current": "text_model", "value": 0.5, "what": "reading",
            }

    run(test)


def test_the_memory_that_a_refused_load_had_is_free_again() -> None:
    async def test() -> None:
        async with worlds({"a": 4, "b": 4}, memory=5) as (world, models):
            world.wrong["a"] = OctavoError("no")
            await refused(models, "a")
            await ask(models, "b")
            assert world.here == {"b"}

    run(test)


def test_what_happens_to_models_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo.models")

    async def test() -> None:
        async with worlds({"a": 2, "b": 2}, memory=3, idle=0.05) as (_, models):
            await ask(models, "a")
            await ask(models, "b")
            await become(models, b="sleeping")

    run(test)
    said = [re.sub(r"in [0-9.]+ s", "in 0.0 s", one) for one in caplog.messages]
    assert said == [
        "a: loading", "a: loaded in 0.0 s, memory 2G of 3G", "b: loading", "a: ended to make room for b (2G)",
        "b: loaded in 0.0 s, memory 2G of 3G", "b: sleeping after 0.05 s without a request",
    ]


def test_loading_again_waits_until_the_last_server_has_ended() -> None:
    async def test() -> None:
        async with worlds({"a": 2}, memory=3) as (world, models):
            await ask(models, "a")
            model = models.find("a")
            models.unload(model)
            while model.state != "stopping":
                await asyncio.sleep(0)
            models.load(model)
            await become(models, a="loaded")
            assert model.pool is not None
            await ask(models, "a")
            assert (world.loaded, world.here, model.held) == (["a", "a"], {"a"}, 2 * GIB)

    run(test)


@pytest.mark.parametrize("loading", [False, True])
def test_one_that_is_being_unloaded_ends_with_all(loading: bool) -> None:
    async def test() -> None:
        async with worlds({"a": 2}, memory=3) as (world, models):
            model = models.find("a")
            if loading:
                world.may_load.clear()
                models.load(model)
                await asyncio.wait_for(model.granted.wait(), HANG_S)
            else:
                await ask(models, "a")
            models.unload(model)
            while model.state != "stopping":
                await asyncio.sleep(0)
        assert model.state == "unloaded"

    run(test)


def test_a_load_that_is_given_up_ends_what_made_room_for_it() -> None:
    async def test() -> None:
        async with worlds({"a": 2, "b": 2}, memory=3) as (world, models):
            await ask(models, "a")
            models.load(models.find("b"))
            while models.models["a"].state != "stopping":
                await asyncio.sleep(0)
            models.unload(models.find("b"))
            await become(models, a="unloaded", b="unloaded")
            await ask(models, "a")
            assert world.here == {"a"}

    run(test)
