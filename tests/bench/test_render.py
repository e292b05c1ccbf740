"""Results as text, and the table of a page from result files."""

from __future__ import annotations

import copy
import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from octavo.bench.cost import Cost
from octavo.bench.model_bench import Timing, Trial, report
from octavo.bench.render import file_name, to_csv, to_json, to_markdown
from tests.bench.conftest import ROOT


def result(**changes: Any) -> dict[str, Any]:
    """A result with a peer, a batch and a depth."""
    both = {"octavo": [30.0, 36.0, 39.0], "llama.cpp": [29.0, 30.0, 40.0]}
    timings = [
        Timing(Trial("prefill", 256), {"octavo": [300.0], "llama.cpp": [150.0]}, [44.0, 45.0], 0.01),
        Timing(Trial("decode", 64), both, [44.0, 40.0], 0.02),
        Timing(Trial("decode", 64, batch=8), {"octavo": [180.0]}, [44.0], None, [36.0]),
        Timing(Trial("decode", 64, depth=4096), {"octavo": [30.0], "llama.cpp": [24.0]}, [44.0], 0.0, [36.0]),
    ]
    tests = [report(t, Cost(10**9, 0, 10**9), 45.0) for t in timings]
    base = {
        "schema": 1, "command": "octavo bench model m.gguf", "date": "2025-01-31T10:00:00+00:00", "device": "cpu",
        "machine": {"cpu": "Some CPU", "cores": 2, "os": "Linux x86_64"}, "threads": 2, "kv": "f16",
        "versions": {"octavo": "1.0", "commit": "abc", "llama.cpp": "0.3"},
        "peers": {"llama.cpp": {"flash_attention": True}},
        "model": {"file": "Qwen3 1.7B Q4_K_M.gguf", "parameters": 10, "bytes": 1.1e9, "bits_per_weight": 5.2},
        "tests": tests,
    }
    return {**base, **changes}


def test_markdown() -> None:
    text = to_markdown(result())
    assert "**Qwen3 1.7B Q4_K_M.gguf**: 1.1 GB, 5.20 bits per weight" in text
    assert (
        "Some CPU, 2 cores, Linux x86_64; cpu, 2 threads, KV f16; octavo 1.0 (abc), llama.cpp 0.3; 2025-01-31" in text
    )
    assert "Read limit: 45.0 GB/s (measured 40.0 to 45.0)" in text
    assert "Busy machine" not in text
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert {len(r) for r in rows} == {8}
    assert rows[2] == ["prefill 256", "300.0", "150.0", "**2.00**", "", "", "", "1"]
    decode = ["decode 64", "36.00 (35.00 ± 4.58)", "30.00 (33.00 ± 6.08)", "**1.20**", "36.0", "80%", "", "36"]
    assert rows[3] == decode
    assert rows[4][2:] == ["", "", "22.5", "50%", "5.00", "22"]
    assert rows[5][-2] == "0.83"


def test_markdown_names_ranks() -> None:
    assert "cpu, 2 threads of 2 ranks, KV f16" in to_markdown(result(tensor_parallel=2))
    assert "ranks" not in to_markdown(result(tensor_parallel=1))


def test_a_busy_machine_is_told_of() -> None:
    busy = result()
    busy["tests"][1]["others_cpu"] = 0.31
    text = to_markdown(busy)
    assert "**Busy machine**: other programs took up to 31% of the CPU" in text
    ratios = [line.split("|")[4].strip() for line in text.splitlines() if line.startswith("| prefill 256 |")]
    ratios += [line.split("|")[4].strip() for line in text.splitlines() if line.startswith("| decode 64")]
    assert ratios == ["**2.00**", "withheld", "", "**1.25**"]


def test_more_than_the_limit_has_no_ratio() -> None:
    """Someone else had the machine while the limit was measured."""
    fast = result()
    fast["tests"][3]["share_of_read_limit"] = 1.13
    assert "| **1.25** |" in to_markdown(result())
    assert "| **1.25** |" not in to_markdown(fast)


def test_csv_has_a_row_for_each_test_and_subject() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(result()))))
    assert [(r["test"], r["subject"]) for r in rows[2:5]] == [
        ("decode 64", "octavo"), ("decode 64", "llama.cpp"), ("decode 64 x8", "octavo"),
    ]
    assert rows[3]["rounds"] == "29.0 30.0 40.0"
    assert rows[2]["share_of_read_limit"] == "0.8"
    assert rows[3]["share_of_read_limit"] == ""
    assert rows[0]["model"] == "Qwen3 1.7B Q4_K_M.gguf"


def test_json_is_the_whole_result() -> None:
    assert json.loads(to_json(result())) == result()


def test_names_of_result_files() -> None:
    assert file_name(result()) == "cpu-qwen3-1.7b-q4_k_m-2025-01-31.json"


@pytest.fixture
def tool(load_tool: Callable[[str, str], ModuleType]) -> ModuleType:
    return load_tool("gen_bench", "bench")


def write(folder: Path, *results: dict[str, Any]) -> None:
    for i, r in enumerate(results):
        (folder / f"{i}.json").write_text(json.dumps(r))


def test_the_readme_says_what_a_peer_did_without(tool: ModuleType, tmp_path: Path) -> None:
    older = result()
    del older["peers"]
    write(tmp_path, older)
    tool.main([])
    assert "against llama.cpp 0.3 without flash attention; measured on" in tool.tables()


def test_the_readme_says_the_range_of_prompts_on_a_cpu() -> None:
    """That of docs/speed.md: all CPUs and models, prompts against llama.cpp."""
    page = (ROOT / "docs" / "speed.md").read_text("utf-8")
    ratios = [float(x) for x in re.findall(r"^(?:\|[^|\n]*){4}\| ([\d.]+)x \| [\d.]+x \|$", page, re.MULTILINE)]
    assert len(ratios) > 10
    said = f"| prompts on a CPU, same file | {min(ratios):.1f} to {max(ratios):.1f} times llama.cpp's speed |"
    assert said in (ROOT / "README.md").read_text("utf-8")


def test_the_page_has_the_newest_result_of_each_model(tool: ModuleType, tmp_path: Path) -> None:
    old = result(date="2025-01-01T00:00:00+00:00")
    old["tests"][1]["rates"]["octavo"]["median"] = 1.0
    small = copy.deepcopy(result())
    small["model"] |= {"file": "small.gguf", "parameters": 1}
    write(tmp_path, result(), old, small)
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
    text = (tmp_path / "page.md").read_text()
    assert text.startswith(
        "# Title\n<!-- bench:start -->\nSome CPU, 2 of 2 cores, cpu, KV f16; against llama.cpp 0.3 "
        "with flash attention; measured on 2025-01-31\n"
    )
    assert text.endswith("\n<!-- bench:end -->\nrest\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[2:] == [
        "| small | 300 | 36.0 | 80% | 2.00x | 1.20x |",
        "| Qwen3 1.7B Q4_K_M | 300 | 36.0 | 80% | 2.00x | 1.20x |",
    ]


def test_the_readme_tells_cpus_of_one_name_and_days_apart(tool: ModuleType, tmp_path: Path) -> None:
    def measured(file: str, family: str, features: list[str], day: str, flash: bool) -> dict[str, Any]:
        one = result(date=f"{day}T10:00:00+00:00", peers={"llama.cpp": {"flash_attention": flash}})
        one["machine"] = {**one["machine"], "family": family, "features": features}
        one["model"] = {**one["model"], "file": file}
        return one

    old, new = "Maker family 25 model 1", "Maker family 25 model 17"
    wide = ["avx2", "avx512f", "avx512_vnni"]
    write(
        tmp_path,
        measured("a.gguf", old, ["avx2"], "2025-01-01", False),
        measured("a.gguf", new, wide, "2025-01-02", False),
        measured("b.gguf", new, wide, "2025-01-04", True),
        measured("c.gguf", new, wide, "2025-01-03", True),
    )
    heads = [line for line in tool.tables().splitlines() if line.startswith("Some CPU")]
    peer = "2 of 2 cores, cpu, KV f16; against llama.cpp 0.3"
    assert heads == [
        f"Some CPU (family 25 model 1, AVX2), {peer} without flash attention; measured on 2025-01-01",
        f"Some CPU (family 25 model 17, AVX-512 VNNI), {peer} with flash attention; measured on 2025-01-03, 2025-01-04",
        f"Some CPU (family 25 model 17, AVX-512 VNNI), {peer} without flash attention; measured on 2025-01-02",
    ]


def test_the_page_has_the_newest_result_of_a_gpu(tool: ModuleType, tmp_path: Path) -> None:
    def measured(date: str, rate: float) -> dict[str, Any]:
        return {
            "date": date,
            "machine": {"gpu": "Some GPU"},
            "versions": {"torch": "2.11", "triton": "3.6"},
            "models": {"small": [{"test": name, "tokens_per_second": rate} for name in tool.GPU_TESTS]},
        }

    write(tmp_path, measured("2025-01-02", 1234.5), measured("2025-01-01", 1.0), result())
    assert tool.main([]) == 0
    text = (tmp_path / "page.md").read_text()
    title = "Some GPU, gpu, KV f16; torch 2.11, Triton 3.6; measured on 2025-01-02; tokens a second"
    assert f"\n\n{title}\n\n| model | prefill 512 |" in text
    assert "| small | 1,234 | 1,234 | 1,234 | 1,234 | 1,234 |\n<!-- bench:end -->" in text


def test_without_results_or_marks(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main([]) == 0
    assert tool.NONE_YET in (tmp_path / "page.md").read_text()
    (tmp_path / "page.md").write_text("# Title\n")
    assert tool.main(["--check"]) == 1
    assert "needs a line <!-- bench:start -->" in capsys.readouterr().err
    assert (tmp_path / "page.md").read_text() == "# Title\n"


def test_committed_results_can_be_read(tool: ModuleType) -> None:
    every = [json.loads(p.read_text()) for p in (ROOT / "bench" / "results").glob("*.json")]
    found = [r for r in every if "tests" in r]  # of `octavo bench model`
    assert found
    text = tool.table(found)
    assert all(r["model"]["file"].removesuffix(".gguf") in text for r in found)
    assert all("/" not in r["command"] for r in found), "results name no folders"
