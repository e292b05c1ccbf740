"""Hashes of pages are those of vLLM's sha256_cbor, which cbor2 and hashlib make."""

from __future__ import annotations

import hashlib

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.server.kv_events.block_hash import block_hash, cbor_head, cbor_text, first_parent, short_hash

KEYS = st.lists(st.tuples(st.sampled_from(["lora", "cache_salt"]), st.text(max_size=300)), max_size=3)


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32), st.lists(st.integers(0, (1 << 64) - 1), max_size=300), KEYS)
def test_a_page(parent: bytes, tokens: list[int], keys: list[tuple[str, str]]) -> None:
    written = cbor2.dumps((parent, tuple(tokens), tuple(keys) or None), canonical=True)
    assert block_hash(parent, tokens, keys) == hashlib.sha256(written).digest()


@pytest.mark.parametrize("n", [0, 23, 24, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1])
def test_heads_take_as_few_bytes_as_they_can(n: int) -> None:
    assert cbor_head(0, n) == cbor2.dumps(n)


def test_texts_have_their_length_in_bytes() -> None:
    assert cbor_text("ü" * 20) == cbor2.dumps("ü" * 20)


def test_before_the_first_page_stands_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert first_parent() == hashlib.sha256(cbor2.dumps("vllm-none-hash")).digest()
    monkeypatch.setenv("PYTHONHASHSEED", "42")
    assert first_parent() == first_parent("42") == hashlib.sha256(cbor2.dumps("42")).digest()


def test_two_pages_as_vllm_0_33_hashes_them() -> None:
    """Its hash_block_tokens with sha256_cbor and the default seed, in the form of integers."""
    first = block_hash(first_parent("vllm-none-hash"), range(64))
    second = block_hash(first, range(64, 128))
    salted = block_hash(first_parent("vllm-none-hash"), range(64), [("cache_salt", "secret")])
    assert [short_hash(one) for one in (first, second, salted)] == [
        12808514736899270552, 17748280381837807086, 4512849570741227354,
    ]
