"""Several guesses in one step are those that are made one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends import select
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.models.shared.eagle3 import read_eagle3
from octavo.models.shared.head import HeadSpec
from octavo.models.shared.next_layer import read_next_layer
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.speculation import head_drafter
from octavo.runtime.speculation.head_drafter import HeadDrafter
from tests.models import eagle3_heads
from tests.runtime import tiny
from tests.runtime.speculation.heads import block, write_head
from tests.runtime.speculation.test_verification import request

TEXTS = [np.random.default_rng(i).integers(0, 250, n).tolist() for i, n in enumerate((40, 3, 64))]


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_the_same_drafts(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several requests, as their texts grow, and of different lengths."""
    tiny.write(tmp_path / "m.gguf")
    if kind == "mtp":
        write_head(tmp_path / "head.gguf", block())
    else:
        eagle3_heads.write(tmp_path / "head.gguf", eagle3_heads.tensors())
    found = []
    with GGUFFile.open(tmp_path / "m.gguf") as file, GGUFFile.open(tmp_path / "head.gguf") as of_head:
        main = read_model(file)
        head: HeadSpec = read_next_layer(of_head, main) if kind == "mtp" else read_eagle3(of_head, main)
        for most in ((0,), head_drafter.AT_ONCE):
            monkeypatch.setattr(head_drafter, "AT_ONCE", most)
            config = EngineConfig(n_ctx=256, cache_type="f32", max_sequences=4)
            engine = Engine(main, select("cpu", 1), config, head=head)
            own = Engine(head, engine.backends, config, shares=engine)
            drafter, requests = HeadDrafter(own, 259), [request(text) for text in TEXTS]
            drafts: list[list[int]] = []
            for grown in range(3):
                for one in requests:
                    text = one.tokens[len(one.sequence) :]
                    engine.prefill(one.sequence, text[:-1] or text)
                    if not grown:
                        continue
                made = drafter.drafts({one: 5 - i for i, one in enumerate(requests)})
                drafts += [made[one] for one in requests]
                for i, one in enumerate(requests):  # some of what was drafted is right, and one token is another
                    for token in (*made[one][:i], 7):
                        one.tokens.append(token)
            assert (drafter._guesses is not None) == (most[-1] > 0)
            found.append(drafts)
    assert found[0] == found[1]
    assert [len(draft) for draft in found[0]][:3] == [5, 4, 3]
