"""docs/checkpoints.md has the schemes as the code has them, and figures from the newest result file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from octavo.huggingface.schemes import CHECKPOINT_SCHEMES

ROOT = Path(__file__).parents[2]
MODELS = ("demo", "llama-gqa", "moe", "retrieval")
TEXT = (ROOT / "docs" / "checkpoints.md").read_text()


def test_figures_are_those_of_the_result_file() -> None:
    for row in newest("demo-schemes-*.json"):
        told = (
            f"| {row['name']} | {row['file_bytes'] / 1e6:.2f} MB | {row['bits_per_weight']:.2f} "
            f"| {row['kl'][0]:.5f} ± {row['kl'][1]:.5f} | {row['same_top'][0]:.2%} | {row['accuracy']:.1%} |"
        )
        assert told in TEXT


def newest(pattern: str) -> list[dict[str, Any]]:
    """Rows of the last of some result files."""
    path = sorted((ROOT / "bench" / "results").glob(pattern), key=lambda path: path.stem[-10:])[-1]
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def by_method(rows: list[dict[str, Any]], **wanted: str) -> dict[str, list[float]]:
    """Divergences of methods, order by order, of the rows that have what is wanted."""
    found: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row["order"]):
        if wanted.items() <= row.items():
            found.setdefault(row["method"] + ", rotated" * row.get("rotate", False), []).append(row["kl"][0])
    return found


def cell(model: str, found: list[float], base: list[float]) -> str:
    """A mean, and how many times that of the base it is, with the interval of 95%; of the base itself the mean."""
    logs = np.log(found) - np.log(base)
    ends = np.exp(logs.mean() + 1.96 * logs.std(ddof=1) / np.sqrt(len(logs)) * np.array([0, -1, 1]))
    ratio = "" if found == base else " ({:.2f}x, {:.2f} to {:.2f})".format(*ends)
    return f" {np.mean(found):.5f}{ratio} |" if model != "retrieval" else f" {np.mean(found):#.3g}{ratio} |"


def test_the_table_of_four_and_eight_bits_is_of_the_result_files() -> None:
    lines = {name: f"| {name} |" for name in ("rtn", "gptq", "qqq", "qqq, rotated")}
    for model in MODELS:
        rows = newest(f"scheme-methods-{model}-*w4a8*.json")
        for scheme in ("w4a8", "w4a8-g128"):
            kl = by_method(rows, table="w4a8", scheme=scheme)
            for name, found in kl.items():
                lines[name] += cell(model, found, kl["rtn"])
    for line in lines.values():
        assert line in TEXT


def test_the_table_next_to_llm_compressor_is_of_the_result_files() -> None:
    theirs = {"default": "extremes, its default", "memoryless_mse": "least squared error"}
    lines = {name: f"| llm-compressor | gptq, ranges of {told} |" for name, told in theirs.items()}
    lines |= {name: f"| Octavo | {name} |" for name in ("rtn", "awq", "gptq", "qronos", "auto")}
    for model in MODELS:
        kl = by_method(newest(f"reference-gptq-{model}-*.json"))
        for name in lines:
            assert len(kl[name]) == 8, "orders"
            lines[name] += cell(model, kl[name], kl["default"])
        assert np.mean(kl["auto"]) <= min(np.mean(kl[name]) for name in ("rtn", "awq", "gptq"))
    for line in lines.values():
        assert line in TEXT


def test_the_table_next_to_qqqs_authors_is_of_the_result_files() -> None:
    ours = ("gptq, rotated", "qqq", "qqq, rotated", "auto, rotated")
    lines = {"authors, rotated": "| QQQ | rotated |"} | {name: f"| Octavo | {name} |" for name in ours}
    for model in MODELS:
        rows = newest(f"reference-qqq-{model}-*.json")
        for scheme in ("w4a8", "w4a8-g128"):
            kl = by_method(rows, scheme=scheme)
            assert {len(found) for found in kl.values()} == {8}, "orders"
            for name, found in kl.items():
                lines[name] += cell(model, found, kl["authors, rotated"])
    for line in lines.values():
        assert line in TEXT


def test_every_scheme_and_its_layout_is_told() -> None:
    for scheme in CHECKPOINT_SCHEMES.values():
        assert f"| `{scheme.name}` | {scheme.layouts[0]} |" in TEXT
        assert scheme.row in TEXT
