"""tools/demo/small.py: what it writes computes what it trained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from octavo.evals.eval_model import open_subject
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed

TOOLS = Path(__file__).parents[2] / "tools" / "demo"
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np, torch
import small, tokenizer
from model import Decoder
torch.manual_seed(0)
folder, small.TOKENS = Path(sys.argv[2]), 512
words = tokenizer.train(2_000, 1)
words.save(str(folder / "words.json"))
for name, config in small.SHAPES.items():
    model = Decoder(config)
    small.train(model, words, 2, 0)
    small.save(model, folder / "words.json", folder / name)
    halves = {k: w.half().float() if w.ndim == 2 else w for k, w in model.state_dict().items()}
    model.load_state_dict(halves)
    with torch.inference_mode():
        np.save(folder / f"{name}.npy", model(torch.arange(300, 340)[None])[0].numpy())
"""


@pytest.mark.slow
def test_a_checkpoint_computes_what_was_trained(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(TOOLS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("llama-gqa", "moe"):
        wanted = np.load(tmp_path / f"{name}.npy")
        with open_subject(tmp_path / name, 64, device="cpu", cache_type="f32") as model:
            found = model.engine.step([Feed(Sequence(), list(range(300, 340)), 32)])
        assert np.abs(found - wanted[-32:]).max() < 1e-3 * np.abs(wanted).max()
