"""Compares logits and embeddings with llama.cpp's, and writes bench/results/llama-logits-<date>.json.

    python bench/llama_logits.py [--peer-python PYTHON] [--only NAME ...] [-o FOLDER]

Each case is a tiny random checkpoint of the tests' table, converted to GGUF as F32 and as F16. Octavo's reference
backend and llama.cpp compute the same file, a prompt of 90 tokens past every window, with a cache of F32, and
`transformers` computes the checkpoint. An error is the greatest difference relative to the greatest value.
`--peer-python` is an interpreter with llama-cpp-python and NumPy (default: this one). `NOTES` says what llama.cpp is
known to compute otherwise, and `OPTIONS` what a checkpoint has instead of the table's, so that the rest is compared.
Where octavo-legacy is installed, its cases are in the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import octavo
import results_file
from octavo.backends.reference import ReferenceBackend
from octavo.convert import convert_checkpoint
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.models import embedding_checkpoints as embedding
from tests.models import table
from tests.models import test_ranking as ranking
from tests.models.checkpoints import Case
from tests.models.test_latent_kv import unsplit
from tests.models.tiny_checkpoints import QWEN3_VL, TABLE

if find_spec("octavo_legacy"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "octavo-legacy" / "tests"))
    import legacy_cases  # noqa: F401

TYPES = ("F32", "F16")
TEXTS = ["a", "The software is provided as is.", "copyright " * 9, "Permission, and more of it than that", "to"]

THEIRS = """
import json, sys
import llama_cpp
import numpy as np
path, out, job = sys.argv[1:]
job, f32 = json.loads(job), 0
as_said = dict.fromkeys(("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"), -1.0)
common = dict(n_ctx=512, n_threads=1, n_threads_batch=1, type_k=f32, type_v=f32, verbose=True, **as_said)
if "tokens" in job:
    model = llama_cpp.Llama(path, logits_all=True, **common)
    model.eval(job["tokens"])
    found = model.scores[: len(job["tokens"])]
elif "pairs" in job:
    model, found = llama_cpp.Llama(path, embedding=True, **common), []
    for ids in job["pairs"]:
        model._ctx.kv_cache_clear()
        model._batch.reset()
        model._batch.add_sequence(ids, 0, True)
        model._ctx.decode(model._batch)
        found.append(llama_cpp.llama_get_embeddings_seq(model._ctx.ctx, 0)[0])
    found = np.array(found)
else:
    model = llama_cpp.Llama(path, embedding=True, **common)
    found = np.array([model.embed(text, normalize=True) for text in job["texts"]])
np.save(out, found.astype(np.float32))
"""
VERSION = "import llama_cpp; print(llama_cpp.__version__)"

WINDOWLESS = ("mistral", "qwen2-window", "qwen3-window", "qwen3moe-window", "ministral", "phi3", "starcoder2-window")
GELU = "GELU of llama.cpp is a table of F16 values; it takes the form with tanh also where a model has that with erf"
NOTES = {
    **dict.fromkeys(WINDOWLESS, "llama.cpp has no windows here; compared with one longer than the prompt"),
    **dict.fromkeys(
        ("starcoder2", "gemma3", "gemma2", "bert", "xlm-roberta", "roberta", "gemma-embedding", "jina-bert-v2"), GELU
    ),
    **dict.fromkeys(
        ("gemma4", "gemma4-unified", "gemma4-e", "phi2", "phi2-odd", "gpt2", "gpt2-odd", "starcoder"), GELU
    ),
    **dict.fromkeys(("mpt", "mpt-clipped", "mpt-odd", "bloom", "bloom-odd", "codeshell"), GELU),
    **dict.fromkeys(("gptj", "gptj-odd"), "llama.cpp has no graph of it"),
    "kimi-linear-odd": "llama.cpp reads no rank of queries here; compared without",
    **dict.fromkeys(
        ("arwkv7-odd", "rwkv6-odd"),
        "llama.cpp wants an output matrix, and heads of whole vectors of the CPU; compared with those",
    ),
    "rwkv7-odd": "llama.cpp wants an output matrix, and leaves out what is left of a head beyond whole vectors of the "
    "CPU; compared with one, and with heads of 64",
    "deci": "llama.cpp leaves attention out in layers without a feed-forward; compared without such layers",
    **dict.fromkeys(
        ("baichuan", "baichuan-distance"),
        "llama.cpp has rope in models of 32 layers and ALiBi in those of 40; compared with that many layers",
    ),
    "refact": "llama.cpp has RMS norms; with such ones Octavo's graph is within 2e-6 of it",
    "smallthinker": "llama.cpp has a window of 4,096, whatever the file says; compared with one longer than the prompt",
    "starcoder2-window": f"llama.cpp has no windows here; compared with one longer than the prompt. {GELU}",
    "gemma2-uncapped": f"llama.cpp caps always; compared with caps. {GELU}",
    "gemma4-moe": f"a token takes another expert of llama.cpp's for it; compared with all experts. {GELU}",
    **dict.fromkeys(("gptneox", "gptneox-odd", "falcon", "falcon-new", "falcon-odd"), GELU),
    **dict.fromkeys(
        ("gemma3n", "gemma3n-odd"),
        "llama.cpp has 20 layers with caches, 10 with sparse gates and 4 streams, whatever the file says, and "
        f"divides squared deviations by one less than there are; compared with the others. {GELU}",
    ),
    **dict.fromkeys(
        ("qwen2vl", "qwen2vl-2.5"),
        "llama.cpp 0.3.36 has an epsilon of 0 here, whatever the file says; compared with it",
    ),
    **dict.fromkeys(
        ("qwen3vl", "qwen3vlmoe"),
        "llama.cpp turns pairs beyond three times a section by a fourth position, 0; compared without such pairs",
    ),
    "hunyuan_vl": "llama.cpp turns pairs of a fourth section by a fourth position, 0; compared without such pairs",
    "gemma": GELU,
    "gemma-odd": GELU,
    "bitnet": "llama.cpp 0.3.36 has SiLU, whatever the file says; compared with it",
    "bitnet-silu": "llama.cpp has no output matrix here; compared with the embedding",
    **dict.fromkeys(
        ("phimoe", "phimoe-long"),
        "llama.cpp has RMS norms and normalizes shares of experts here, and wants biases of the output; with the same "
        "two changes Octavo's graph is within 1e-6 of it",
    ),
    **dict.fromkeys(
        ("minicpm3", "minicpm3-long", "plm"), "llama.cpp is given files with one matrix for keys and values"
    ),
    "jina-bert-v3": GELU,
    "neo-bert": "llama.cpp takes all rows of q, then of k, then of v, where each head's lie together; of a file with "
    "rows moved so it is within 2e-7 of Octavo",
    "jais-tied": "llama.cpp wants an output matrix; compared with one",
    "grovemoe": "llama.cpp gives the experts of groups what the others made, and shares of other experts",
    "mistral4": "with F16 a token takes another expert",
    "exaone-moe-odd": "with F16 a token takes another expert",
    "gpt-oss": "llama.cpp rounds the ends of yarn's ramp to whole pairs; compared with ends that are nearly whole",
    "llama4": "llama.cpp has chunks of 8,192 and scores that grow every 8,192 positions, whatever the file says",
    "llama4-dense": "llama.cpp has chunks of 8,192, whatever the file says",
    "qwen35-odd": "llama.cpp has heads of values as long as those of keys; compared with those",
    "qwen35moe": "with F16 a token takes another expert",
    "deepseek2-v2": "llama.cpp reads such a model by its 27 layers; with F16 a token takes another expert",
    **dict.fromkeys(("seed_oss-odd", "ernie4_5-odd"), "llama.cpp has no such biases here; without them"),
    **dict.fromkeys(("olmoe", "dots1"), "llama.cpp has as many heads of keys as of queries here; compared with those"),
    "afmoe": "llama.cpp has rope in all layers but each fourth, whatever the windows are; compared with these",
    "exaone4": "llama.cpp has windows in models of 64 layers only",
    "falcon-h1-odd": "llama.cpp adds no bias behind attention, has convolutions with a bias, and as many groups as "
    "divide a scan's numbers by the model's width; compared with those",
    **dict.fromkeys(
        ("granitehybrid-odd", "nemotron_h-odd", "mamba2-odd"),
        "llama.cpp has convolutions with a bias, and as many groups as divide a scan's numbers by the model's width; "
        "compared with those",
    ),
    "mamba-odd": "llama.cpp has convolutions with a bias, and channels twice the model's width; compared with those",
    "mamba-falcon": "norms of steps, B and C add what other norms add in llama.cpp; compared with that being the same",
    "jamba-odd": "llama.cpp has convolutions with a bias, and channels twice the model's width; compared with those",
    **dict.fromkeys(
        ("plamo2", "plamo2-odd"),
        "llama.cpp has no windows and one rope here, and its norms of q and k add what others do; compared with a "
        "window longer than the prompt, that rope, and 1e-6 for all norms",
    ),
    "deepseek2-v2-groups": "llama.cpp takes a group's two best for its score, as V3 does; compared without groups",
}
"""By case, what llama.cpp computes in another way than `transformers`, and what is compared."""

OWN_SCALE = {"query_pre_attn_scalar": 64}
TAKING_TURNS = {"rope_parameters": {**QWEN3_VL["rope_parameters"], "mrope_section": [11, 11, 10]}}


SCANS = {"mamba_conv_bias": True, "mamba_n_groups": 1}

OPTIONS: dict[str, dict[str, Any]] = {
    "granitehybrid-odd": SCANS,
    "falcon-h1-odd": {**SCANS, "attention_bias": False},
    "nemotron_h-odd": {"use_conv_bias": True, "n_groups": 1},
    "mamba2-odd": {"use_conv_bias": True},
    "mamba-odd": {"use_conv_bias": True, "intermediate_size": 288},
    "mamba-falcon": {"layer_norm_epsilon": 1e-6},
    "kimi-linear-odd": {"q_lora_rank": None},
    "rwkv6-odd": {"tie_word_embeddings": False, "hidden_size": 192, "head_size": 64},
    "arwkv7-odd": {"tie_word_embeddings": False, "hidden_size": 192, "head_dim": 64},
    "rwkv7-odd": {"tie_word_embeddings": False, "hidden_size": 192, "head_dim": 64, "norm_eps": 1e-5},
    "jamba-odd": {"mamba_conv_bias": True, "mamba_expand": 2},
    **{name: {"attention_window_size": 128, "rope_local_theta": 1e4, "rms_norm_eps": 1e-6}
       for name in ("plamo2", "plamo2-odd")},
    **{name: {"sliding_window": 128} for name in WINDOWLESS},
    "baichuan": {"num_hidden_layers": 32},
    "baichuan-distance": {"num_hidden_layers": 40},
    "deci": {"num_hidden_layers": 3},
    "smallthinker": {"layers_window": 512},
    "gemma3": OWN_SCALE,
    "gemma2": OWN_SCALE,
    "gemma2-uncapped": {**OWN_SCALE, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    **{name: {"rms_norm_eps": 1e-12} for name in ("qwen2vl", "qwen2vl-2.5")},
    "qwen3vl": TAKING_TURNS,
    "qwen3vlmoe": TAKING_TURNS,
    "hunyuan_vl": {"rope_parameters": {
        **TABLE["hunyuan_vl"].options["rope_parameters"], "mrope_section": [11, 11, 10]}},
    "bitnet": {"hidden_act": "silu"},
    "jais-tied": {"tie_word_embeddings": False},
    "bitnet-silu": {"tie_word_embeddings": True},
    "gemma4-moe": {"top_k_experts": TABLE["gemma4-moe"].options["num_experts"]},
    **{name: {
        "num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.95] * 6, "altup_num_inputs": 4, "laurel_rank": 64,
        "hidden_size_per_layer_input": 256,
        "layer_types": [*["sliding_attention"] * 4, "full_attention", "sliding_attention"],
    } for name in ("gemma3n", "gemma3n-odd")},
    "gpt-oss": {"rope_parameters": {
        **TABLE["gpt-oss"].options["rope_parameters"], "rope_theta": 224860.0,
        "original_max_position_embeddings": 4379}},
    "llama4": {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1},
    "llama4-dense": {"attention_chunk_size": 8192, "floor_scale": 8192},
    "deepseek2-v2": {"num_hidden_layers": 27},
    "qwen35-odd": {"linear_value_head_dim": TABLE["qwen35-odd"].options["linear_key_head_dim"]},
    "deepseek2-v2-groups": {"topk_method": "greedy"},
    "seed_oss-odd": {"attention_out_bias": False, "mlp_bias": False},
    "ernie4_5-odd": {"use_bias": False},
    **{name: {"num_key_value_heads": 2} for name in ("olmoe", "dots1")},
    "afmoe": {"num_hidden_layers": 4, "layer_types": [*["sliding_attention"] * 3, "full_attention"]},
    "exaone4": {"num_hidden_layers": 64, "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 16},
}
"""By case, what a checkpoint has in place of what the table has."""


def theirs(python: str, path: Path, job: dict[str, Any]) -> F32 | str:
    """What llama.cpp computes of a file, or its first word of an error."""
    out = path.with_suffix(".npy")
    command = [python, "-c", THEIRS, str(path), str(out), json.dumps(job)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if "error" in line or "ASSERT" in line]
        return said[0] if said else f"ended with status {done.returncode}"
    found: F32 = np.load(out)
    return found


def compare_logits(name: str, case: Case, folder: Path, python: str) -> dict[str, Any]:
    """A row of the result: the errors of a case."""
    with ExitStack() as stack:
        want, errors = table.saved(folder, case), {}
        for kind in TYPES:
            path = folder.with_suffix(f".{kind}.gguf")
            convert_checkpoint(folder, path, kind)
            file = stack.enter_context(GGUFFile.open(path))
            ours = table.logits(file, ReferenceBackend(), table.TOKENS, at_once=True)
            if case.arch in ("minicpm3", "plm"):  # of which llama.cpp reads files with one matrix for keys and values
                path = Path(stack.enter_context(unsplit(file, path.with_suffix(".older.gguf"), kind)).path)
            errors[kind] = _errors(ours, theirs(python, path, {"tokens": table.TOKENS}), want)
    return {"case": name, "architecture": case.arch, "class": case.config, **errors, **_note(name)}


def compare_embeddings(name: str, folder: Path, python: str) -> dict[str, Any]:
    """The same of an embedding model: vectors of length 1."""
    kind = embedding.KINDS[name]
    original = embedding.save(folder, kind)
    want, errors = np.stack([original.embed(text, kind.pooling).numpy() for text in TEXTS]), {}
    for stored in TYPES:
        path = folder.with_suffix(f".{stored}.gguf")
        convert_checkpoint(folder, path, stored)
        with octavo.load(path, device="reference") as model:
            ours, arch = model.embed(TEXTS), model.engine.model.hparams.arch
        errors[stored] = _errors(ours, theirs(python, path, {"texts": TEXTS}), want)
    return {"case": f"{name} (embeddings)", "architecture": arch, "class": kind.config, **errors, **_note(name)}


def compare_scores(name: str, folder: Path, python: str) -> dict[str, Any]:
    """The same of a reranker, relative to the greatest score."""
    want, errors = ranking.encoder(folder, name), {}
    for stored in TYPES:
        path = folder.with_suffix(f".{stored}.gguf")
        convert_checkpoint(folder, path, stored)
        with octavo.load(path, device="reference") as model:
            ours = model.rank(ranking.QUERY, ranking.DOCUMENTS)
            pairs = [model.tokenizer.encode_pair(ranking.QUERY, document) for document in ranking.DOCUMENTS]
        errors[stored] = _errors(ours, theirs(python, path, {"pairs": pairs}), want)
    return {"case": f"{name} (scores)", "architecture": "bert", "class": f"{name}Config", **errors, "note": GELU}


def _errors(ours: F32, peer: F32 | str, want: F32) -> dict[str, Any]:
    if isinstance(peer, str):
        return {"octavo_transformers": table.error(ours, want), "llama.cpp": peer}
    return {
        "octavo_llama.cpp": table.error(ours, peer), "octavo_transformers": table.error(ours, want),
        "llama.cpp_transformers": table.error(peer, want),
    }


def _note(name: str) -> dict[str, str]:
    return {"note": NOTES[name]} if name in NOTES else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases of the table, NAME-embeddings, NAME-scores")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as root:
        for name, case in TABLE.items():
            if not args.only or name in args.only:
                changed = replace(case, options=case.options | OPTIONS.get(name, {}))
                rows.append(compare_logits(name, changed, Path(root) / f"tiny-{len(rows)}", args.peer_python))
                print(json.dumps(rows[-1]), flush=True)
        for name in embedding.KINDS:
            if not args.only or f"{name}-embeddings" in args.only:
                (folder := Path(root) / f"tiny-{len(rows)}").mkdir()
                rows.append(compare_embeddings(name, folder, args.peer_python))
                print(json.dumps(rows[-1]), flush=True)
        for name in ranking.TOKENIZERS:
            if not args.only or f"{name}-scores" in args.only:
                (folder := Path(root) / f"tiny-{len(rows)}").mkdir()
                rows.append(compare_scores(name, folder, args.peer_python))
                print(json.dumps(rows[-1]), flush=True)
    version = subprocess.run([args.peer_python, "-c", VERSION], stdout=subprocess.PIPE, text=True, check=True)
    versions: dict[str, Any] = {"llama-cpp-python": version.stdout.strip().splitlines()[-1]}
    result = {**results_file.described(**versions), "tokens": len(table.TOKENS), "texts": TEXTS, "cases": rows}
    results_file.write("llama-logits", result, args.output)


if __name__ == "__main__":
    main()
