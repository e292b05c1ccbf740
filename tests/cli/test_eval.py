"""`octavo eval`: its tables, its JSON, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from octavo.evals.retrieval import KEY, VALUE
from tests.cli.conftest import Run
from tests.runtime import tiny

REFERENCE = ("--device", "reference")
SMALL = ("-c", "64", "--chunks", "3", *REFERENCE)


def test_perplexity(octavo: Run, models: tuple[str, str], text: str) -> None:
    done = octavo("eval", "ppl", models[0], text, *SMALL)
    assert done.status == 0
    assert done.out.startswith("perplexity ")
    assert done.out.endswith("(93 tokens in 3 windows of 64)\n")
    report = json.loads(octavo("eval", "ppl", models[0], text, "--json", *SMALL).out)
    assert (report["model"], report["text"]) == (models[0], "text.txt")
    assert (report["tokens"], report["chunks"], report["context"]) == (93, 3, 64)
    assert f"{report['perplexity']['value']:.0f}"[:2] in done.out
    assert 1 < report["perplexity"]["value"] < 1e5
    assert report["perplexity"]["error"] > 0


def test_divergence(octavo: Run, models: tuple[str, str], text: str) -> None:
    base, near = models
    done = octavo("eval", "kl", near, text, "--base", base, *SMALL)
    assert done.status == 0
    assert "93 tokens in 3 windows of 64" in done.out
    for row in (
        "KL divergence",
        "same top token",
        "ratio",
        "difference",
        "root mean square",
        "99.9",
        "median",
        "least",
    ):
        assert row in done.out
    report = json.loads(octavo("eval", "kl", near, text, "--base", base, "--json", *SMALL).out)
    assert 0 < report["kl"]["value"] < 0.1
    assert report["kl_spread"]["percentiles"]["99.9"] > report["kl_spread"]["percentiles"]["50.0"]
    itself = json.loads(octavo("eval", "kl", base, text, "--base", base, "--json", *SMALL).out)
    assert (itself["kl"]["value"], itself["same_top"]["value"]) == (0, 1)


@pytest.mark.slow
def test_the_demo_text(octavo: Run) -> None:
    report = json.loads(octavo("eval", "ppl", "demo", "demo", "--chunks", "2", "--json", *REFERENCE).out)
    assert report["text"].startswith("demo, test")
    assert 1 <= report["perplexity"]["value"] < 1.01
    kl = ("eval", "kl", "demo", "demo", "--base", "demo", "--chunks", "1", "--json", *REFERENCE)
    assert json.loads(octavo(*kl, "--answers").out)["tokens"] < json.loads(octavo(*kl).out)["tokens"] == 255


def test_demo(octavo: Run) -> None:
    done = octavo("eval", "demo", "-n", "3", *REFERENCE)
    assert done.status == 0
    assert ["all", "3", "3", "100.0%"] in [line.split()[:4] for line in done.out.splitlines()]
    report = json.loads(octavo("eval", "demo", "demo", "-n", "2", "--seed", "7", "--json", "--misses", *REFERENCE).out)
    assert report["total"]["n"] == 2
    assert report["misses"] == []


def test_misses(octavo: Run, models: tuple[str, str]) -> None:
    done = octavo("eval", "demo", models[0], "-n", "1", "--misses", *REFERENCE)
    assert done.status == 0
    assert ["all", "0", "1", "0.0%"] in [line.split()[:4] for line in done.out.splitlines()]
    assert ", not " in done.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eval", "ppl", "MODEL", "none.txt"), "none.txt: can't be opened"),
        (("eval", "ppl", "none.gguf", "TEXT"), "none.gguf"),
        (("eval", "ppl", "MODEL", "TEXT", "-c", "3"), "error: -c is 3 (allowed: 4 or more)"),
        (("eval", "ppl", "MODEL", "TEXT", "-c", "513"), "513"),
        (("eval", "ppl", "MODEL", "TEXT", "-c", "512", "--chunks", "-2"), "--chunks is -2"),
        (("eval", "kl", "MODEL", "TEXT"), "--base"),
        (("eval", "kl", "MODEL", "TEXT", "--base", "MODEL", "--answers"), "--answers is for the text `demo`"),
        (("eval", "kl", "MODEL", "TEXT", "--base", "demo", "-c", "64"), "models of one vocabulary"),
        (("eval", "demo", "MODEL", "-n", "0"), "questions is 0"),
    ],
)
def test_bad_input(octavo: Run, models: tuple[str, str], text: str, arguments: tuple[str, ...], message: str) -> None:
    given = [models[0] if a == "MODEL" else text if a == "TEXT" else a for a in arguments]
    assert message in octavo(*given, *REFERENCE).error()


def test_types_of_the_cache(octavo: Run, models: tuple[str, str], text: str) -> None:
    done = octavo("eval", "cache", models[0], text, "--types", "f16,int8", *SMALL)
    assert done.status == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["type", "f16", "int8"]
    rows = json.loads(octavo("eval", "cache", models[0], text, "--types", "f16,int8", "--json", *SMALL).out)["types"]
    assert 0 < rows["f16"]["kl"]["value"] < rows["int8"]["kl"]["value"]
    assert rows["int8"]["saturation"] == []
    assert "--cache-type" in octavo("eval", "cache", models[0], text, "--cache-type", "int8", *SMALL).error()
    refused = octavo("eval", "cache", models[0], text, "--types", "f16,int5", *SMALL)
    assert refused.status == 2
    assert "--types has 'int5'" in refused.err


def test_the_cache_says_how_far_it_is(
    octavo: Run, models: tuple[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.cli.progress_bar.LINE_S", 0.0)  # a line each time
    done = octavo("eval", "cache", models[0], text, "--types", "f16,int8", "--json", *SMALL)
    assert json.loads(done.out)["types"].keys() == {"f16", "int8"}
    lines = [line for line in done.err.splitlines() if ", chunk 1 of " in line]
    assert [line.split(",")[0] for line in lines] == ["octavo: f16", "octavo: int8"]
    assert all(": KL 0.0" in line and line.endswith("%)") for line in lines)


def test_retrieval(octavo: Run, tmp_path: Path) -> None:
    named = [KEY.format(i) for i in range(40)] + [VALUE.format(i) for i in range(8)]
    model = tiny.write(tmp_path / "m.gguf", keys={"tokenizer.ggml.tokens": [*named, *tiny.TOKENS[48:]]})
    asked = ("eval", "retrieval", model, "-c", "48", "--rows", "3", *REFERENCE)
    found = json.loads(octavo(*asked, "--json", "--cache-type", "int8").out)
    assert (found["n"], found["context"], found["cache_type"], found["attention"]) == (18, 48, "int8", "exact")
    assert re.fullmatch(r"\d+ of 18 values, \d+\.\d\d% \(\d+\.\d\d% to \d+\.\d\d%\)\n", octavo(*asked).out)


def test_retrieval_needs_a_model_for_it(octavo: Run, models: tuple[str, str]) -> None:
    refused = octavo("eval", "retrieval", models[0], "-c", "64", *REFERENCE)
    assert refused.status == 2
    assert "no token <key 0>" in refused.err
    assert "no token <key 0>" in octavo("eval", "retrieval", models[0], *REFERENCE).error(), "512 tokens, not 8192"


def test_the_floor_of_the_cache_is_named(
    octavo: Run, models: tuple[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("eval", "cache", models[0], text, "--types", "f16,int8", *SMALL)
    assert "floor" not in octavo(*asked).out, "activations are floats"
    monkeypatch.setattr("octavo.cli.evaluate.cache_divergence.NOISE", 0.0)
    lines = octavo(*asked).out.splitlines()
    assert lines[-1].startswith(f"floor {lines[1].split()[1]}, that of f16: ")
