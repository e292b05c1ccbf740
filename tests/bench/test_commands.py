"""The commands `octavo bench ...` and `octavo profile`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.bench import synthetic
from octavo.bench.synthetic import SHAPES, ModelShape
from octavo.io.gguf import GGUFFile
from octavo.sizes import size
from octavo.text import Tokenizer
from tests.cli.conftest import Run
from tests.sampling import slow

FAST = ("-p", "4", "-n", "2", "-r", "1", "--device", "reference")


def test_bench_model_prints_a_table(octavo: Run, model: str, fixed_limit: None) -> None:
    result = octavo("bench", "model", model, *FAST, "--batch", "1,3", "--depth", "0,5")
    assert result.status == 0
    tests = [line.split("|")[1].strip() for line in result.out.splitlines() if line.startswith("|")]
    assert tests == ["test", "---", "prefill 4", "decode 2", "decode 2 x3", "decode 2 @5"]
    assert "Read limit: 40.0 GB/s" in result.out


def test_bench_model_with_a_peer_writes_a_file(
    octavo: Run, model: str, fixed_limit: None, fake_peer: None, tmp_path: Path
) -> None:
    result = octavo("bench", "model", model, *FAST, "--peer", "llama.cpp", "--json", "-o", str(tmp_path))
    assert result.status == 0
    assert "| llama.cpp tok/s | ratio |" in result.out
    (path,) = tmp_path.iterdir()
    written = json.loads(path.read_text())
    assert path.name == f"cpu-tiny-{written['date'][:10]}.json".replace("cpu", "reference")
    assert result.err == f"octavo: wrote {path}\n"
    command = f"octavo bench model tiny.gguf {' '.join(FAST)} --peer llama.cpp --json -o {tmp_path.name}"
    assert written["command"] == command
    assert str(tmp_path) not in path.read_text()


def test_bench_model_prints_json_and_csv(octavo: Run, model: str, fixed_limit: None) -> None:
    assert json.loads(octavo("bench", "model", model, *FAST, "--json").out)["schema"] == 1
    assert octavo("bench", "model", model, *FAST, "--format", "csv").out.startswith("date,machine,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", "1,x"), r"--batch is '1,x' (allowed: numbers separated by commas, such as 1,4,8)"),
        (("--depth", ""), "--depth is ''"),
        (("-r", "0"), "-r is 0 (allowed: 1 or more)"),
        (("--speculate", "draft"), "--speculate draft needs --draft MODEL"),
        (("--speculate", "lookup", "--draft", "demo-mtp"), "--draft demo-mtp is for --speculate auto, mtp or draft"),
        (("--draft", "demo-mtp"), "--draft demo-mtp is for --speculate auto, mtp or draft"),
        (("--speculate", "auto", "--acceptance", "0.5"), "--acceptance is for --speculate simulated"),
        (("--speculate", "simulated"), "simulated drafts need an acceptance: --acceptance P"),
        (("--json", "--format", "csv"), "--json and --format csv can't be used together"),
        (("-o", "no/such/folder/x.md"), "no/such/folder/x.md: there is no folder"),
        (("--peer", "llama.cpp", "--peer-python", "no-python"), "peer llama.cpp: no-python can't be run"),
    ],
)
def test_bench_model_refuses(
    octavo: Run, model: str, fixed_limit: None, arguments: tuple[str, ...], message: str
) -> None:
    assert message in octavo("bench", "model", model, *FAST, *arguments).error()


def test_on_the_cpu_backend(octavo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the read limit as it is measured, of less memory; the model's heads are those of other tests."""
    from octavo.bench import limits

    monkeypatch.setitem(SHAPES, "tiny", ModelShape("qwen3", 2, 64, 48, 4, 2, 64, 260, False))
    model = str(tmp_path / "tiny.gguf")
    synthetic.make("tiny", "F16", model)

    monkeypatch.setattr(limits, "read_limit", partial(limits.read_limit, nbytes=1 << 24, rounds=2))
    options = ("-p", "9", "-n", "2", "-r", "1", "--device", "cpu", "--threads", "1", "--json")
    done = octavo("bench", "model", model, *options)
    assert done.status == 0
    written = json.loads(done.out)
    assert written["device"] == "cpu"
    assert written["fallbacks"] == []
    assert all(0.1 < limit < 10_000 for test in written["tests"] for limit in test["read_limits"])
    profiled = json.loads(octavo("profile", model, "--decode", "--device", "cpu", "--threads", "1", "--json").out)
    assert {row["backend"] for row in profiled["ops"]} == {"cpu"}
    assert profiled["limits"]["cpu"]["gbps"] > 0
    assert {row["op"]: row["bound"] for row in profiled["ops"]}["mul_mat"] == "reading"
    lines = octavo("profile", model, "--decode", "--device", "cpu", "--threads", "1", "-r", "1").out.splitlines()
    assert lines[1].startswith("Limit of cpu: ")
    assert lines[3].split()[-3:] == ["of", "limit", "bound"]


def test_bench_ops(octavo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.bench import cases, limits, others

    small = tuple(cases.OpCase("mul_mat", t, {"n": 32, "k": 256}, (f,)) for t in (1, 8) for f in ("Q4_K", "Q8_0"))
    monkeypatch.setattr(cases, "SPEED_CASES", small)
    monkeypatch.setattr(limits, "read_limit", lambda threads: 40.0)
    monkeypatch.setattr(others.LoadWatch, "others", lambda self: 0.31)
    asked = ("bench", "ops", "--format", "q4_k", "--tokens", "1,8", "--device", "reference")
    *lines, busy = octavo(*asked).out.splitlines()
    assert busy == "Busy machine: other programs took up to 31% of the CPU, so rates mislead."
    monkeypatch.setattr(others.LoadWatch, "others", lambda self: 0.0)
    monkeypatch.setattr(limits, "read_limit", lambda threads: 1e-9)
    *rows, over = octavo(*asked).out.splitlines()
    assert [row.split()[4] for row in rows[1:]] == ["over", "over"]
    assert over.startswith("over: more than the read limit")
    assert [line.split()[0] for line in lines] == ["case", "mul_mat-Q4_K-n32-k256-t1", "mul_mat-Q4_K-n32-k256-t8"]
    rows = octavo(
        "bench", "ops", "--op", "mul_mat", "--tokens", "8", "--device", "reference", "--json"
    ).out.splitlines()
    assert [json.loads(row)["formats"] for row in rows] == [["Q4_K"], ["Q8_0"]]
    assert "no case with op conv (allowed: mul_mat)" in octavo("bench", "ops", "--op", "conv").error()
    assert "no case with tokens 3" in octavo("bench", "ops", "--tokens", "3").error()


def test_bench_make(octavo: Run, tmp_path: Path, fixed_limit: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", ModelShape("qwen3", 8, 256, 512, 2, 1, 128, 300, True))
    path = tmp_path / "out.gguf"
    made = octavo("bench", "make", "tiny", "q4_k_m", str(path))
    assert (made.status, made.out) == (0, f"{path}: tiny with random weights, Q4_K_M, {size(path.stat().st_size)}\n")
    with GGUFFile.open(path) as file:
        kinds = {name: info.type_name for name, info in file.tensors.items()}
    assert kinds["token_embd.weight"] == "Q6_K"
    assert kinds["blk.0.attn_q.weight"] == "Q4_K"
    better = [i for i in range(8) if kinds[f"blk.{i}.ffn_down.weight"] == "Q6_K"]
    assert better == [0, 3, 6, 7]
    answer = octavo("bench", "model", str(path), "-p", "0", "-n", "1", "-r", "1", "--device", "reference")
    assert answer.status == 0
    assert octavo("run", str(path), "a t1 b", "--max-tokens", "1", "--device", "reference").status == 0


@pytest.mark.parametrize("name", [slow("qwen3-30b-a3b"), slow("gemma3-4b"), "gpt-oss-20b", "deepseek-v2-lite"])
def test_shapes_of_other_architectures_run(
    octavo: Run, tmp_path: Path, fixed_limit: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = SHAPES[name]
    sizes = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
    sizes |= {"attention.kv_lora_rank": 32, "attention.key_length_mla": 48, "attention.value_length_mla": 32}
    sizes |= {"attention.value_length": 32, "rope.dimension_count": 16}
    keys = {key: sizes.get(key, value) for key, value in real.keys.items()}
    heads = {"n_head_kv": min(2, real.n_head_kv), "head_dim": 48 if real.n_head_kv == 1 else 32}
    small = replace(real, n_layer=2, n_embd=64, n_ff=64, n_head=4, n_vocab=300, **heads, keys=keys)
    monkeypatch.setitem(SHAPES, "small", small)
    path = str(tmp_path / "small.gguf")
    assert octavo("bench", "make", "small", "MXFP4_MOE", path).status == 0
    with GGUFFile.open(path) as file:
        kinds = {name: info.type_name for name, info in file.tensors.items()}
    assert kinds["blk.1.attn_q.weight"] == "Q8_0"
    assert {kind for name, kind in kinds.items() if name.endswith("_exps.weight")} <= {"MXFP4"}
    assert octavo("bench", "model", path, "-p", "3", "-n", "1", "-r", "1", "--device", "reference").status == 0


def test_bench_make_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", ModelShape("llama", 2, 64, 64, 2, 1, 32, 40, False))
    seen: list[tuple[int, int]] = []
    synthetic.make("tiny", "Q8_0", tmp_path / "a.gguf", progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    with GGUFFile.open(tmp_path / "a.gguf") as file:
        assert seen[-1] == (file.nbytes, file.nbytes)
        assert len(seen) == len(file.tensors)


def test_bench_make_refuses(octavo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "x.gguf")
    assert "unknown shape 'gpt' (allowed: qwen3-0.6b" in octavo("bench", "make", "gpt", "Q8_0", out).error()
    for preset in ("Q9", "Q4_K_L", "I8", "Q8_1"):
        said = octavo("bench", "make", "qwen3-0.6b", preset, out).error()
        assert said.startswith(f"octavo: error: unknown preset {preset!r} (allowed: Q4_K_M, Q5_K_M, MXFP4_MOE, F32,")
    for path, why in ((f"{out}/", "is the name of a folder"), (f"{out}/y.gguf", "there is no folder")):
        assert why in octavo("bench", "make", "qwen3-0.6b", "Q4_0", path).error()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**8))
    assert "but only 100,000,000 are free" in octavo("bench", "make", "qwen3-0.6b", "Q4_0", out).error()
    assert not list(tmp_path.iterdir())


def test_tensors_that_converters_copy_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp loads no RWKV-7 without them."""
    small = replace(SHAPES["rwkv7-1.5b"], n_layer=2, n_embd=64, n_ff=64, n_vocab=300)
    monkeypatch.setitem(SHAPES, "small", small)
    synthetic.make("small", "F16", tmp_path / "a.gguf")
    with GGUFFile.open(tmp_path / "a.gguf") as file:
        assert {f"blk.0.time_mix_v{i}.weight" for i in range(3)} <= set(file.tensors)


def test_help_lists_the_shapes(octavo: Run) -> None:
    text = " ".join(octavo("bench", "make", "--help").out.replace("│", " ").split())
    assert all(shape in text for shape in SHAPES)


def test_profile(octavo: Run, model: str) -> None:
    text = octavo("profile", model, "-p", "7", "--depth", "3", "-r", "1", "--device", "reference").out
    assert text.startswith("Step of 7 tokens after 3 tokens: ")
    assert "of limit: least possible time / time taken" in text
    assert "token_embd" in text
    report = json.loads(octavo("profile", model, "--decode", "-r", "1", "--device", "reference", "--json").out)
    assert report["tokens"] == 1
    assert {"op", "node", "formats", "calls", "seconds", "share", "gbps", "gops"} <= set(report["nodes"][0])
    assert {row["op"] for row in report["ops"]} >= {"mul_mat", "attention", "rms_norm"}
    assert report["nodes_seconds"] == pytest.approx(sum(row["seconds"] for row in report["nodes"]))


@pytest.mark.parametrize(
    "arguments", [("-p", "0"), ("-p", "600"), ("--decode", "-r", "0"), ("--decode", "--depth", "512")]
)
def test_profile_refuses(octavo: Run, model: str, arguments: tuple[str, ...]) -> None:
    assert "allowed" in octavo("profile", model, "--device", "reference", *arguments).error()


def test_text_of_a_made_model_is_cut_into_the_same_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, merges = synthetic.vocabulary(20_000)
    assert len(tokens) == len(set(tokens)) == 20_000
    assert len(merges) == 20_000 - 256
    monkeypatch.setitem(SHAPES, "small", ModelShape("llama", 1, 32, 32, 1, 1, 32, 20_000, True))
    synthetic.make("small", "Q8_0", tmp_path / "a.gguf")
    tokenizer = Tokenizer.from_gguf(tmp_path / "a.gguf")
    words = [256, 300, 999, 19_998, 5000]
    assert tokenizer.encode(tokenizer.decode(words)) == words
