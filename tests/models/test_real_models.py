"""Real models against what llama.cpp made of the same files: ids, chats and greedy text, as recorded.

tests/data/real-models.json says of which version. The models are fetched by tools/real_models.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.evals.eval_model import open_subject
from octavo.quantizers import quantize_file

ROOT = Path(__file__).parents[2]
RECORDED: dict[str, Any] = json.loads((ROOT / "tests/data/real-models.json").read_text())
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tools():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        import pad_model
        import real_models

        yield real_models, pad_model
    sys.modules.pop("real_models"), sys.modules.pop("pad_model")


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def model(request: pytest.FixtureRequest, tools, tmp_path_factory: pytest.TempPathFactory):
    """Its values as F16, as llama.cpp ran it, and what that found."""
    path = tmp_path_factory.mktemp("real") / "f16.gguf"
    quantize_file(tools[0].fetch(request.param), path, "F16", allow_requantize=True)
    with octavo.load(path, device="cpu", n_ctx=512, cache_type="f32") as loaded:
        yield loaded, RECORDED["models"][request.param]


def test_ids(model) -> None:
    loaded, recorded = model
    got = [loaded.tokenizer.encode(text, add_special=False, parse_special=False) for text in RECORDED["texts"]]
    assert got == recorded["ids"]


def test_chats(model) -> None:
    loaded, recorded = model
    if not recorded["chats"]:
        assert loaded.template is None
        return
    got = [loaded.template.render(messages=messages) for messages in RECORDED["messages"]]
    assert got == recorded["chats"]


def test_greedy_text(model) -> None:
    loaded, recorded = model
    for prompt, wanted in zip(RECORDED["prompts"], recorded["greedy"], strict=True):
        ids = loaded.tokenizer.encode(prompt)
        got = []
        for _ in range(len(wanted)):
            got.append(int(np.argmax(loaded.logits([*ids, *got])[-1])))
        assert got == wanted, prompt


def test_smollm2_in_rows_of_768_is_an_equal_model(tools, tmp_path: Path) -> None:
    real_models, pad_model = tools
    source = real_models.fetch("smollm2")
    pad_model.pad(source, tmp_path / "padded.gguf")
    found = []
    for path in (source, tmp_path / "padded.gguf"):
        with open_subject(path, 64, device="cpu", floats=True) as model:
            tokens = model.tokenizer.encode("In the middle of the night a train stopped between two stations.")
            found.append(model.logits(tokens).astype(np.float64))
    p, q = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in found)
    assert (np.exp(p) * (p - q)).sum(axis=1).max() < 1e-4  # F16 rounds what Q4_1 holds


def test_sentence_vectors(tools) -> None:
    """Cosines that sentence-transformers' way gives, by transformers on the same folder."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModel, AutoTokenizer

    folder = tools[0].fetch("minilm")
    texts = ["a cat sits on the mat", "a kitten rests on a rug", "interest rates were raised", "die Katze schläft"]
    theirs, words = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    given = words(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = theirs(**given).last_hidden_state
    mask = given["attention_mask"][..., None]
    wanted = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1).numpy()
    with octavo.load(folder, device="cpu") as mine:
        got = mine.embed(texts)
    np.testing.assert_allclose(np.asarray(got), wanted, atol=2e-5)
