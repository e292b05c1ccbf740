"""Asks llama.cpp which type it gives to each tensor: writes tests/data/llama-quantize-types.json.

    python tools/llama_quantize_types.py        # with a Python that has llama-cpp-python

The models have the shapes of real ones and no data (their files are sparse): a dry run reads none. Types are stored by
kind of tensor, over the layers in order, equal ones counted: "Q6_K*4 Q4_K*2".
"""

from __future__ import annotations

import ctypes
import json
import re
import struct
import tempfile
from importlib.metadata import version
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import llama_cpp

OUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "llama-quantize-types.json"
F16, F32 = 1, 0
FTYPES = {
    "F32": 0, "F16": 1, "BF16": 32, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7, "Q2_K": 10, "Q2_K_S": 21,
    "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18,
    "IQ4_NL": 25, "IQ4_XS": 30, "MXFP4_MOE": 38, "IQ1_S": 24, "IQ1_M": 31, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ2_S": 28,
    "IQ2_M": 29, "IQ3_XXS": 23, "IQ3_XS": 22, "IQ3_S": 26, "IQ3_M": 27, "TQ1_0": 36, "TQ2_0": 37,
}
GGML_TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_XS": 23}
LINE = re.compile(r"\] (\S+) +- \[[^]]*\], type = +(\S+), size = [^(\n]*(?:\((\w+)\))?\n")


def attention(n_embd: int, q: int, kv: int, *, norms: int = 0, bias: bool = False) -> dict[str, list[int]]:
    tensors = {
        "attn_norm.weight": [n_embd], "attn_q.weight": [q, n_embd], "attn_k.weight": [kv, n_embd],
        "attn_v.weight": [kv, n_embd], "attn_output.weight": [n_embd, q],
    }
    if norms:
        tensors |= {f"attn_{n}_norm.weight": [norms] for n in "qk"}
    if bias:
        tensors |= {"attn_q.bias": [q], "attn_k.bias": [kv], "attn_v.bias": [kv]}
    return tensors


def feed_forward(n_embd: int, n_ff: int, experts: int = 0) -> dict[str, list[int]]:
    norm = {"ffn_norm.weight": [n_embd]}
    if experts:
        return norm | {
            "ffn_gate_inp.weight": [experts, n_embd], "ffn_gate_exps.weight": [experts, n_ff, n_embd],
            "ffn_up_exps.weight": [experts, n_ff, n_embd], "ffn_down_exps.weight": [experts, n_embd, n_ff],
        }
    return norm | {
        "ffn_gate.weight": [n_ff, n_embd],
        "ffn_up.weight": [n_ff, n_embd],
        "ffn_down.weight": [n_embd, n_ff],
    }


def model(
    arch: str,
    layers: int,
    width: int,
    ff: int,
    heads: int,
    kv_heads: int,
    head: int,
    vocab: int,
    *,
    tied: bool = False,
    experts: int = 0,
    used: int = 2,
    norms: bool = False,
    bias: bool = False,
) -> dict[str, Any]:
    """A model's facts, and its tensors in NumPy order: `outer` once, `block` once a layer."""
    keys = {
        "block_count": layers, "context_length": 4096, "embedding_length": width, "feed_forward_length": ff,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads,
    } | ({"expert_count": experts, "expert_used_count": used} if experts else {})
    outer = {"token_embd.weight": [vocab, width], "output_norm.weight": [width]}
    if not tied:
        outer["output.weight"] = [vocab, width]
    block = attention(width, heads * head, kv_heads * head, norms=head if norms else 0, bias=bias)
    return {"arch": arch, "keys": keys, "outer": outer, "block": block | feed_forward(width, ff, experts)}


MODELS = {
    "llama-2-7b": model("llama", 32, 4096, 11008, 32, 32, 128, 32000),
    "llama-3-8b": model("llama", 32, 4096, 14336, 32, 8, 128, 128256),
    "llama-3-70b": model("llama", 80, 8192, 28672, 64, 8, 128, 128256),
    "tinyllama": model("llama", 22, 2048, 5632, 32, 4, 64, 32000),
    "smollm-135m": model("llama", 30, 576, 1536, 9, 3, 64, 49152, tied=True),
    "narrow": model("llama", 5, 80, 200, 5, 5, 16, 320),
    "mixtral-8x7b": model("llama", 32, 4096, 14336, 32, 8, 128, 32000, experts=8),
    "mixtral-tied": model("llama", 9, 512, 1024, 8, 8, 64, 320, experts=8, tied=True),
    "qwen2-0.5b": model("qwen2", 24, 896, 4864, 14, 2, 64, 151936, tied=True, bias=True),
    "qwen2-72b": model("qwen2", 80, 8192, 29568, 64, 8, 128, 152064, bias=True),
    "qwen3-0.6b": model("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, tied=True, norms=True),
    "qwen3-8b": model("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, norms=True),
    "qwen3moe-30b": model("qwen3moe", 48, 2048, 768, 32, 4, 128, 151936, experts=128, used=8, norms=True),
}
OPTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3-8b", "Q4_K_M", {"pure": True}),
    ("smollm-135m", "Q4_K_M", {"pure": True}),
    ("llama-3-8b", "Q4_K_M", {"leave_output_tensor": True}),
    ("llama-3-8b", "Q4_K_M", {"output_tensor_type": "Q8_0", "token_embedding_type": "Q5_K"}),
    ("qwen3-0.6b", "Q4_K_M", {"output_tensor_type": "Q8_0"}),
    ("qwen3-0.6b", "Q4_K_M", {"token_embedding_type": "Q4_0"}),
    ("llama-3-8b", "F16", {"output_tensor_type": "Q6_K", "tensor_types": [["attn_v", "Q8_0"]]}),
    ("llama-3-8b", "Q4_K_M", {"tensor_types": [["blk\\.[0-3]\\.attn_v", "Q8_0"], ["ffn_down", "IQ4_XS"]]}),
    ("smollm-135m", "Q4_K_M", {"tensor_types": [["attn_k", "Q6_K"], ["attn_.*weight", "Q5_K"]]}),
    ("mixtral-8x7b", "Q3_K_M", {"tensor_types": [["attn_(q|k)\\.", "F16"]]}),
    ("qwen3moe-30b", "MXFP4_MOE", {"tensor_types": [["ffn_down_exps", "Q8_0"]], "token_embedding_type": "Q4_K"}),
]


def tensors(facts: dict[str, Any]) -> dict[str, list[int]]:
    layers = range(facts["keys"]["block_count"])
    return facts["outer"] | {f"blk.{i}.{name}": shape for i in layers for name, shape in facts["block"].items()}


def write_sparse(path: Path, facts: dict[str, Any]) -> None:
    """A GGUF file with F16 matrices, and F32 vectors and routers; no tensor data is written."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    arch, all_tensors = facts["arch"], tensors(facts)
    pairs = text("general.architecture") + struct.pack("<I", 8) + text(arch)
    pairs += text(f"{arch}.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5)
    for key, value in facts["keys"].items():
        pairs += text(f"{arch}.{key}") + struct.pack("<II", 4, value)
    infos, offset = b"", 0
    for name, shape in all_tensors.items():
        wide = len(shape) == 1 or "gate_inp" in name
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        infos += struct.pack("<IQ", F32 if wide else F16, offset)
        offset += -(-prod(shape) * (4 if wide else 2) // 32) * 32
    header = b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), 2 + len(facts["keys"])) + pairs + infos
    with path.open("wb") as file:
        file.write(header)
        file.truncate(-(-len(header) // 32) * 32 + offset)


def ask(path: Path, preset: str, imatrix: bool, options: dict[str, Any]) -> dict[str, str]:
    """The type of each tensor of the model after a dry run."""
    text: list[str] = []

    @llama_cpp.llama_log_callback
    def log(_level: int, message: bytes, _data: ctypes.c_void_p) -> None:
        text.append(message.decode())

    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.dry_run, params.pure = FTYPES[preset], True, options.get("pure", False)
    params.quantize_output_tensor = not options.get("leave_output_tensor", False)
    for name in ("output_tensor_type", "token_embedding_type"):
        if name in options:
            setattr(params, name, GGML_TYPES[options[name]])
    wanted = options.get("tensor_types", [])
    overrides = (llama_cpp.llama_model_tensor_override * (len(wanted) + 1))()
    for i, (pattern, kind) in enumerate(wanted):
        overrides[i].pattern, overrides[i].type = pattern.encode(), GGML_TYPES[kind]
    if wanted:
        params.tt_overrides = overrides
    value = (ctypes.c_float * 1)(1.0)
    entries = (llama_cpp.llama_model_imatrix_data * 2)()
    entries[0].name, entries[0].data, entries[0].size = b"some.weight", value, 1
    if imatrix:
        params.imatrix = entries
    status = llama_cpp.llama_model_quantize(str(path).encode(), b"/dev/null", ctypes.byref(params))
    if status:
        raise RuntimeError("".join(text)[-500:])
    return {name: (new or old).upper() for name, old, new in LINE.findall("".join(text))}


def folded(types: dict[str, str], facts: dict[str, Any]) -> dict[str, str]:
    """Types by kind of tensor. Vectors and routers are left out: they stay F32."""
    shapes = tensors(facts)
    assert types.keys() == shapes.keys()
    kinds = {name: [types[name]] for name in facts["outer"]}
    for name in facts["block"]:
        kinds[name] = [types[f"blk.{i}.{name}"] for i in range(facts["keys"]["block_count"])]
    out = {}
    for kind, row in kinds.items():
        if len((facts["outer"] | facts["block"])[kind]) == 1 or "gate_inp" in kind:
            assert set(row) == {"F32"}
            continue
        runs = [(t, len(list(run))) for t, run in groupby(row)]
        out[kind.removesuffix(".weight")] = " ".join(t if n == len(row) else f"{t}*{n}" for t, n in runs)
    return out


def main() -> None:
    llama_cpp.llama_backend_init()
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for name, facts in MODELS.items():
            path = Path(folder) / f"{name}.gguf"
            write_sparse(path, facts)
            for preset in FTYPES:
                plain, weighed = (folded(ask(path, preset, imatrix, {}), facts) for imatrix in (False, True))
                cases.append({"model": name, "preset": preset, "imatrix": False, "types": plain})
                if weighed != plain:
                    cases.append({"model": name, "preset": preset, "imatrix": True, "types": weighed})
            for of, preset, options in OPTIONS:
                if of == name:
                    types = folded(ask(path, preset, False, options), facts)
                    cases.append(
                        {"model": name, "preset": preset, "imatrix": False, "options": options, "types": types}
                    )
            path.unlink()
    source = f"llama-cpp-python {version('llama_cpp_python')}, llama.cpp {llama_cpp.llama_version().decode()}"
    note = "imatrix: whether one was given; where only False is listed, it changes nothing"
    head = {"source": f"{source}: llama_model_quantize with dry_run", "note": note, "models": MODELS}
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    models = ",\n".join(f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in MODELS.items())
    OUT.write_text(
        f'{{\n "source": {json.dumps(head["source"])},\n "note": {json.dumps(note)},\n'
        f' "models": {{\n{models}\n }},\n "cases": [\n{lines}\n ]\n}}\n'
    )
    print(f"wrote {len(cases)} cases to {OUT}")


if __name__ == "__main__":
    main()
