"""Which replica a request goes to."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from octavo.replicas import routing
from octavo.replicas.routing import BLOCK, BOUND, FEW, PrefixRouter, blocks_of

SYSTEM = {"role": "system", "content": "You answer questions about numbers. " * 20}


def blocks(messages: list[Any], key: bytes = b"", **more: Any) -> list[int]:
    return blocks_of(json.dumps({**more, "messages": messages}).encode(), key)


def turns(name: str, n: int) -> list[Any]:
    """A conversation of this many turns."""
    talk = [{"role": role, "content": f"{name} says {i} " * 12} for i in range(n) for role in ("user", "assistant")]
    return [SYSTEM, *talk[:-1]]


def test_a_longer_conversation_begins_with_the_blocks_of_a_shorter_one() -> None:
    found = [blocks(turns("a", n)) for n in range(1, 9)]
    for shorter, longer in itertools.pairwise(found):
        assert len(longer) > len(shorter) > 5
        assert longer[: len(shorter)] == shorter
    other = blocks(turns("b", 8))
    common = next(i for i, (a, b) in enumerate(zip(found[-1], other, strict=False)) if a != b)
    assert 5 < common < 20, "the system prompt"


@pytest.mark.parametrize("body", [
    {"prompt": "a b " * 100}, {"prompt": [[5] * 200]}, {"prompt": list(range(200))}, {"input": "a b " * 100},
    {"input": [{"role": "user", "content": "a b " * 100}]}, {"system": "s " * 100, "messages": []},
    {"instructions": "s " * 100, "input": "hello"}, {"messages": [], "tools": [{"name": "t " * 100}]},
])
def test_prompts_of_all_routes_have_blocks(body: dict[str, Any]) -> None:
    found = blocks_of(json.dumps(body).encode(), b"")
    assert len(found) > 1
    assert found == blocks_of(json.dumps({**body, "temperature": 1, "stream": True}).encode(), b"")
    assert not set(found) & set(blocks_of(json.dumps(body).encode(), b"another key"))
    assert not set(found) & set(blocks_of(json.dumps({**body, "cache_salt": "x"}).encode(), b""))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b"{}", b'{"prompt":7}', b'{"messages":"hi"}', b"\xff",
                                  b'{"messages":[[[[' * 30_000, b'{"prompt":"short"}', b'{"prompt":"\\ud800"}'])
def test_what_is_not_a_prompt_has_none(body: bytes) -> None:
    assert blocks_of(body, b"") == []


def test_a_long_prompt_has_few_blocks() -> None:
    found = blocks_of(json.dumps({"prompt": "word " * 200_000}).encode(), b"")
    assert len(found) < 110
    assert BLOCK == 64


def test_a_conversation_stays_where_it_began() -> None:
    router, loads = PrefixRouter(), dict.fromkeys(range(4), 0)
    first = {name: router.choose(blocks(turns(name, 1)), loads) for name in "abcdefgh"}
    for n in range(2, 9):
        assert {name: router.choose(blocks(turns(name, n)), loads) for name in first} == first


def test_conversations_that_share_only_their_beginning_are_spread() -> None:
    router, loads = PrefixRouter(), dict.fromkeys(range(4), 0)
    chosen = [router.choose(blocks(turns(f"caller {i} " * 40, 1)), loads) for i in range(40)]
    assert [chosen.count(i) for i in range(4)] == [10] * 4


def test_no_replica_has_much_more_than_the_others() -> None:
    router, loads = PrefixRouter(), dict.fromkeys(range(4), 0)
    same = blocks(turns("a", 3))
    for n in range(1, 200):
        chosen = router.choose(same, loads)
        loads[chosen] += 1
        assert loads[chosen] <= max(FEW, BOUND * n / 4 + 1)
    assert max(loads.values()) > min(loads.values()), "those that hold it have as much as they may"


def hits(replicas: int, conversations: int = 24, n: int = 8) -> float:
    """The share of prompts that is cached where each request goes, with conversations that come and go as they do."""
    rng, router = random.Random(1), PrefixRouter()
    caches = [set[int]() for _ in range(replicas)]
    loads, under_way = dict.fromkeys(range(replicas), 0), list[int]()
    found = total = 0
    left = [(str(name), turn) for name in range(conversations) for turn in range(1, n + 1)]
    left.sort(key=lambda one: (one[1], rng.random()))  # a turn comes after those before it, the others in any order
    for name, turn in left:
        prompt = blocks(turns(name, turn))
        chosen = router.choose(prompt, loads)
        found += len(caches[chosen].intersection(prompt))
        total += len(prompt)
        caches[chosen].update(prompt)
        under_way.append(chosen)
        loads[chosen] += 1
        while len(under_way) > rng.randrange(1, 12):
            loads[under_way.pop(rng.randrange(len(under_way)))] -= 1
    return found / total


def test_four_replicas_have_nine_tenths_of_the_hits_of_one() -> None:
    """As bench/replicas.py measures it with servers."""
    one, four = hits(1), hits(4)
    assert one > 0.8
    assert four >= 0.9 * one


def test_one_that_ends_holds_nothing() -> None:
    router, loads = PrefixRouter(), {0: 0, 1: 0}
    same = blocks(turns("a", 3))
    first = router.choose(same, loads)
    other = 1 - first
    assert router.choose(same, {other: 0}) == other, "while the first is away"
    router.forget(first)
    assert router.choose(same, loads) == other


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MOST_BLOCKS", 100)
    router, loads = PrefixRouter(), {0: 0, 1: 0}
    kept = blocks(turns("kept", 2))
    where = router.choose(kept, loads)
    for i in range(50):
        router.choose(blocks(turns(f"other {i}", 2)), loads)
        assert len(router._holders) <= 100
        assert router.choose(kept, loads) == where, "what is used again is kept"
