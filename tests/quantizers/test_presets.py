"""Every preset gives each tensor the type that llama.cpp gives it; the answers are recorded."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import UsageError
from octavo.formats import by_name
from octavo.quantizers.mix.mixing import Choices, Facts, choose_types, fallback, is_kept
from octavo.quantizers.mix.presets import ALIASES, PRESETS, find_preset
from tests.sampling import some

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "llama-quantize-types.json").read_text())
MODELS: dict[str, Any] = RECORDED["models"]


def shapes(model: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    layers = range(model["keys"]["block_count"])
    blocks = {f"blk.{i}.{name}": tuple(shape) for i in layers for name, shape in model["block"].items()}
    return {name: tuple(shape) for name, shape in model["outer"].items()} | blocks


def facts(model: dict[str, Any]) -> Facts:
    keys = model["keys"]
    heads, kv = keys["attention.head_count"], keys["attention.head_count_kv"]
    big = keys["block_count"] == 80 and model["arch"] in ("llama", "qwen2") and heads != kv
    return Facts(keys["block_count"], heads // kv, keys.get("expert_count", 0), big)


def unfolded(types: dict[str, str], model: dict[str, Any]) -> dict[str, str]:
    """The recorded types by tensor name; "Q6_K*2 Q4_K" is Q6_K, Q6_K, Q4_K over the layers."""
    out = {}
    for kind, row in types.items():
        if f"{kind}.weight" in model["outer"]:
            out[f"{kind}.weight"] = row
            continue
        runs = [run.partition("*") for run in row.split()]
        layers = model["keys"]["block_count"]
        each = list(chain.from_iterable([kind_] * int(n or layers) for kind_, _, n in runs))
        assert len(each) == layers
        out |= {f"blk.{i}.{kind}.weight": kind_ for i, kind_ in enumerate(each)}
    return out


def choices(options: dict[str, Any]) -> Choices:
    return Choices(
        pure=options.get("pure", False),
        leave_output=options.get("leave_output_tensor", False),
        output_type=options.get("output_tensor_type"),
        embedding_type=options.get("token_embedding_type"),
        tensor_types=tuple((pattern, kind) for pattern, kind in options.get("tensor_types", ())),
    )


@pytest.mark.parametrize("name", MODELS)
def test_types_are_llama_quantizes(name: str) -> None:
    model = MODELS[name]
    sizes = shapes(model)
    cases = [c for c in RECORDED["cases"] if c["model"] == name]
    assert {c["preset"] for c in cases} == {p.name for p in PRESETS} - {"COPY"}
    for case in cases:
        chosen = choices(case.get("options", {}))
        got = choose_types(sizes, facts(model), find_preset(case["preset"]), chosen, has_imatrix=case["imatrix"])
        want = unfolded(case["types"], model)
        if chosen.leave_output:
            assert want.pop("output.weight") == "F16"  # as it is in the source
        assert {n: f.name for n, f in got.items()} == want, (case["preset"], case["imatrix"], case.get("options"))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", some(MODELS, 5))
def test_an_imatrix_that_changes_nothing_is_not_recorded(name: str) -> None:
    model = MODELS[name]
    recorded = {c["preset"] for c in RECORDED["cases"] if c["model"] == name and c["imatrix"]}
    for preset in PRESETS:
        plain, weighed = (
            choose_types(shapes(model), facts(model), preset, Choices(), has_imatrix=given) for given in (False, True)
        )
        assert (plain != weighed) is (preset.name in recorded), preset.name


def test_order_of_tensors_does_not_matter() -> None:
    model = MODELS["qwen3-0.6b"]
    sizes = shapes(model)
    backwards = dict(reversed(sizes.items()))
    preset = find_preset("Q4_K_M")
    assert choose_types(sizes, facts(model), preset, Choices()) == choose_types(
        backwards, facts(model), preset, Choices()
    )


def test_copy_changes_nothing() -> None:
    model = MODELS["llama-3-8b"]
    assert choose_types(shapes(model), facts(model), find_preset("copy"), Choices()) == {}


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_aliases(alias: str, name: str) -> None:
    assert find_preset(alias.lower()).name == name


@pytest.mark.parametrize(("name", "shape", "kept"), [
    ("blk.0.attn_norm.weight", (64,), True),
    ("blk.0.attn_q.bias", (64, 64), True),
    ("blk.0.ffn_gate_inp.weight", (8, 64), True),
    ("blk.0.attn_q.weight", (1, 64), True),
    ("blk.0.attn_q.weight", (2, 64), False),
    ("blk.0.ffn_up_exps.weight", (1, 4, 64), False),
    ("output.weight", (9, 64), False),
])
def test_kept(name: str, shape: tuple[int, ...], kept: bool) -> None:
    assert is_kept(name, shape, Choices()) is kept


@pytest.mark.parametrize(("name", "k", "got"), [
    ("Q4_K", 512, "Q4_K"), ("Q4_K", 288, "Q5_0"), ("Q4_K", 250, "F16"), ("IQ4_XS", 32, "IQ4_NL"), ("Q8_0", 16, "F16"),
])
def test_rows_that_do_not_fit_fall_back(name: str, k: int, got: str) -> None:
    assert fallback(by_name(name), k).name == got


@pytest.mark.parametrize("name", ["Q9_K", "", "Q2_0", "q4_k_m "])
def test_unknown_presets_say_what_is_allowed(name: str) -> None:
    with pytest.raises(UsageError, match=r"allowed: F32, .*Q4_K_M.*Q3_K") as error:
        find_preset(name)
    assert repr(name) in str(error.value)
    assert ("no encoder" in str(error.value)) is (name == "Q2_0")


@pytest.mark.parametrize(("given", "says"), [
    ({"output_type": "Q4"}, "'Q4'.*allowed: F32"),
    ({"embedding_type": "Q8_1"}, "'Q8_1'"),
    ({"tensor_types": (("attn_(q", "Q4_K"),)}, r"attn_\(q"),
    ({"tensor_types": (("attn_q", "Q2_0"),)}, "'Q2_0'"),
    ({"output_type": "Q4_K"}, "output.weight.*rows of 80"),
])
def test_wrong_choices_are_named(given: dict[str, Any], says: str) -> None:
    model = MODELS["narrow"]
    with pytest.raises(UsageError, match=says):
        choose_types(shapes(model), facts(model), find_preset("Q4_K_M"), Choices(**given))


@pytest.mark.parametrize(("name", "said"), [
    ("Q4_K_M", "; Q5_0 makes a smaller file"), ("Q6_K", "; Q5_1 makes a smaller file"), ("Q2_K", ""), ("Q4_0", ""),
])
def test_a_preset_that_saves_nothing_says_so(name: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    """Rows of 576, as SmolLM2's, are not whole blocks of 256."""
    sizes = {"attn_q": (576, 576), "attn_v": (192, 576), "ffn_up": (1536, 576), "ffn_down": (576, 1536)}
    shapes = {f"blk.{i}.{part}.weight": size for i in range(4) for part, size in sizes.items()}
    choose_types(shapes | {"token_embd.weight": (4096, 576)}, Facts(layers=4), find_preset(name), Choices())
    assert [message.endswith(said) for message in caplog.messages] == [True]
    assert f"{1 if name == 'Q4_0' else 13} of 17 tensors" in caplog.text  # the embedding, which is the output, too
    assert " bits in all" in caplog.text
    assert ("a smaller file" in caplog.text) is bool(said)
    assert "(576 values, not a multiple of " in caplog.text
