"""Folds of every architecture, by random numbers, random orders and rotations: logits stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo.backends.reference import ReferenceBackend
from octavo.calibrate import SchemeMethod
from octavo.calibrate.fold import find_folds, rotate
from octavo.calibrate.fold.find import Kind, random_order
from octavo.calibrate.fold.fold import ChangedFile, ChannelFold, FoldPart, TensorChanges, reordered, scaled
from octavo.calibrate.fold.rotation import rotate_possible
from octavo.errors import ModelError
from octavo.formats import dequantize
from octavo.formats.spec import F32
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.io.safetensors.checkpoint import SINGLE
from octavo.models import read_model
from octavo.quantizers import quantize_checkpoint
from octavo.runtime import EngineConfig
from octavo.runtime.loading import model_of
from tests.models.embedding_checkpoints import KINDS as KINDS_OF_ENCODERS
from tests.models.embedding_checkpoints import save
from tests.models.table import TOKENS, error, logits, saved
from tests.models.tiny_checkpoints import TABLE
from tests.sampling import slow

KINDS: tuple[Kind, ...] = ("scales", "orders")
QUICK = [("mixtral", "scales"), ("glm4-odd", "orders"), ("deepseek2-v3", "scales"), ("deepseek2-v3", "orders"),
         ("gemma4-e", "orders"), ("qwen35", "orders")]
"""Experts and K/V heads that several share; biases, fused matrices and three K/V heads; latent attention; embeddings of
each layer, and values that are normed; the delta rule."""
QUICK_ROTATED = ("glm4-odd", "starcoder2")
"""Heads only, of a size that is not a power of two; layer norms, and an output matrix that is the embedding."""
BEHIND = {"gemma2", "gemma3", "gemma3n", "gemma4", "olmo2", "glm4", "exaone4", "afmoe", "rwkv7", "plamo3"}
"""Architectures with norms behind attention and feed-forward, or behind the embedding."""
STAYING = {"gemma4-moe", "rwkv7", "rwkv7-odd"}
"""Those whose residual stream has one order: a norm before the router has weights that are not a tensor of the file, or
channels are mixed with those of the token before in the order of the file."""
TAPS = ("conv1d.weight", "shortconv.conv.weight", *(f"conv1d_{n}.weight" for n in "qkv"), ".ssm_a", ".ssm_d",
        "ssm_norm.weight", *(f"attn_{n}_norm.weight" for n in "qk"))
"""Of convolutions, whose channels stay, and rates and norms of heads as matrices."""
GATED = {"afmoe", "rwkv7"}
"""Those of BEHIND with a gate behind attention or what stands for it, so that heads can't be turned either."""


FIXED = {"mamba-falcon": 0.75, "rwkv7": 0.8, "rwkv7-odd": 0.8}
"""Models whose q, k and v are clipped, whose scans are told normed numbers without weights, or whose tokens are mixed
with the one before, so that no scale goes through: the share of matrices that none reaches."""


class Models:
    """Checkpoints of the table, each made when it is first asked for."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self.stack = root, stack

    def __getitem__(self, name: str) -> GGUFFile:
        folder = self.root / name
        if not folder.exists():
            saved(folder, TABLE[name])
        return self.stack.enter_context(open_model_file(folder))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with ExitStack() as stack:
        yield Models(tmp_path_factory.mktemp("folds"), stack)


def with_random_norms(file: GGUFFile) -> ChangedFile:
    """The model with norms and biases that are not the ones and zeros of random checkpoints."""
    changes, rng = TensorChanges(), np.random.default_rng(3)
    for name, info in file.tensors.items():
        if name.endswith(("norm.weight", ".bias")):
            changes.add(name, partial(np.add, rng.normal(0, 0.2, info.shape).astype(np.float32)))
    return ChangedFile(file, changes)


def logits_of(file: GGUFFile) -> F32:
    return logits(file, ReferenceBackend(), TOKENS[:24], at_once=True)


def random_change(kind: Kind, fold: ChannelFold, rng: np.random.Generator) -> Callable[[FoldPart, F32], F32]:
    if kind == "scales":
        scales = np.exp(rng.normal(0, 1, fold.size)) * rng.choice([1, -1], fold.size)
        return lambda part, values: scaled(part, scales, values)
    order = random_order(fold, rng)
    return lambda part, values: reordered(part, order, values)


@pytest.mark.parametrize(("name", "kind"), [c if c in QUICK else slow(c) for c in product(TABLE, KINDS)])
def test_scales_and_orders(name: str, kind: Kind, models: Models) -> None:
    """All folds at once. Matrices that no scale reaches are few."""
    file, rng = with_random_norms(models[name]), np.random.default_rng(5)
    want, folds = logits_of(file), find_folds(read_model(file), kind)
    for fold in folds:
        file.changes.add_fold(fold, random_change(kind, fold, rng))
    assert error(logits_of(ChangedFile(models[name], file.changes)), want) < 1e-4
    unlike = TAPS if kind == "orders" else (*TAPS, "coef.weight")
    matrices = {n for n, info in file.tensors.items() if len(info.shape) > 1 and not n.endswith(unlike)}
    left = {n.rpartition(".blk")[2] for n in matrices - {part.tensor for fold in folds for part in fold.parts}}
    if kind == "orders":
        assert bool(left) == (name in STAYING)
    else:
        assert len(left) <= FIXED.get(name, 0.5) * len(matrices)


@pytest.mark.parametrize("name", [n if n in QUICK_ROTATED else slow(n) for n in TABLE])
def test_rotations(name: str, models: Models) -> None:
    file = with_random_norms(models[name])
    stream = TABLE[name].arch not in BEHIND
    want = logits_of(file)
    if not stream:
        with pytest.raises(
            ModelError, match=r"goes into the residual stream, which|no residual stream that can be turned"
        ):
            rotate(file)
    turned = rotate(file, stream=stream)
    assert error(logits_of(turned), want) < 1e-4
    ends = ("attn_output.weight", "ssm_out.weight", "time_mix_output.weight")
    output = next(n for end in ends for n in file.tensors if n.endswith(end))
    same = np.allclose(*(dequantize(f.tensor(output)) for f in (file, turned)), atol=1e-2)
    assert same == (TABLE[name].arch in GATED)


@pytest.mark.parametrize("name", ["olmo2", slow("gemma2"), slow("gemma3"), slow("exaone4")])
def test_a_checkpoint_is_turned_as_far_as_it_can_be(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "src"
    saved(folder, TABLE[name])
    stored, rng = load_file(folder / SINGLE), np.random.default_rng(4)
    for tensor in (t for t in stored if t.endswith("norm.weight")):  # of random checkpoints they are all alike
        stored[tensor] = stored[tensor] + rng.normal(0, 0.2, stored[tensor].shape).astype(np.float32)
    save_file(stored, folder / SINGLE, {"format": "pt"})
    (tmp_path / "text.txt").write_text("a text to go by, " * 20)
    made = {}
    for rotated in (False, True):
        method = SchemeMethod(str(tmp_path / "text.txt"), "rtn", rotated, context=32, device="reference", threads=1)
        quantize_checkpoint(folder, tmp_path / str(rotated), "w8a16", method=method, threads=1)
        with open_model_file(tmp_path / str(rotated)) as file:
            made[rotated] = {t: dequantize(file.tensor(t)) for t in file.tensors}, logits_of(file)
    logger = "octavo.calibrate.schemes.scheme_method"
    (said,) = [record.getMessage() for record in caplog.records if record.name == logger]
    assert said.startswith("only heads' values are turned, not the residual stream: ")
    assert error(*(logits for _, logits in made.values())) < 0.05
    (plain, _), (turned, _) = made.values()
    assert plain.keys() == turned.keys()
    changed = {t.rpartition("blk.0.")[2] for t in plain if not np.allclose(plain[t], turned[t], atol=0.02)}
    assert {t for t in changed if "blk" not in t} == {"attn_v.weight", "attn_output.weight"}


def test_a_model_of_which_nothing_can_be_turned(models: Models) -> None:
    with pytest.raises(ModelError, match="goes into the residual stream"):
        rotate_possible(with_random_norms(models["afmoe"]))
    turned, problem = rotate_possible(models["starcoder2"])
    assert problem is None
    assert "output.weight" in turned.tensors


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", KINDS_OF_ENCODERS)
def test_vectors_of_encoders(name: str, kind: Kind, tmp_path: Path) -> None:
    save(tmp_path, KINDS_OF_ENCODERS[name])
    rng = np.random.default_rng(5)
    with open_model_file(tmp_path) as file:
        model, changes = read_model(file), TensorChanges()
        folds = find_folds(model, kind)
        assert {fold.name.removeprefix("blk.0.") for fold in folds} >= {"cache_v"}
        for fold in folds:
            changes.add_fold(fold, random_change(kind, fold, rng))
        found = [vectors_of(f) for f in (file, ChangedFile(file, changes))]
        assert error(*found) < 1e-4
        if model.architecture.encoder:
            with pytest.raises(ModelError, match=f"architecture {model.architecture.name} has no residual stream"):
                rotate(file)


def vectors_of(file: GGUFFile) -> F32:
    model = model_of(ChangedFile(file, TensorChanges()), [ReferenceBackend()], EngineConfig(n_ctx=64, cache_type="f32"))
    return model.embed_tokens(["a text to embed"])[0]
