"""Running models stage by stage: what products are given, weights replaced, two models at once, going on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.calibrate.run_name import run_name
from octavo.calibrate.runner import Journal, Layerwise, OpenStage, ProductInput, Samples
from octavo.errors import FileError, GraphError, NonFiniteError, UsageError
from octavo.evals import collect_imatrix
from octavo.formats import dequantize
from octavo.graph.stages import stages
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.sizes import size
from tests.evals.conftest import Open
from tests.evals.test_importance import CONTEXT, TINY_TOKENS, TOKENS, model_of
from tests.models.checkpoints import CASES, Write, make
from tests.models.table import Models, made_in
from tests.models.tiny_checkpoints import TABLE
from tests.runtime import tiny
from tests.sampling import some

SAMPLES = Samples([TINY_TOKENS[:CONTEXT], TINY_TOKENS[CONTEXT : 2 * CONTEXT], TINY_TOKENS[2 * CONTEXT :][:9]])

READ_LATER = ("gemma3n", "gemma3n-odd", "gemma4-e")
"""Those with layers that read the cache of another, or weights that two stages read."""


def layerwise(path: str, samples: Samples = SAMPLES, **options: Any) -> Layerwise:
    return Layerwise(read_model(GGUFFile.open(path)), [ReferenceBackend()], samples, **options)


@pytest.fixture
def dense(tmp_path: Path) -> str:
    return tiny.write(tmp_path / "dense.gguf")


@pytest.fixture
def experts(tmp_path: Path) -> str:
    return tiny.write(tmp_path / "experts.gguf", "qwen3moe", weights=tiny.tensors("qwen3moe"))


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_every_class_of_checkpoint(name: str, every: Models) -> None:
    tokens = [token % 300 for token in TOKENS]
    if name in READ_LATER:
        with pytest.raises(GraphError, match=r"later layers read blk\.\d\.\w+(\.weight)?, too"):
            compare_with_whole_graph(every[name].file, tokens)
        return
    compare_with_whole_graph(every[name].file, tokens)


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("every")) as models:
        yield models


@pytest.mark.parametrize("name", ["qwen3", "deepseek2-v2"])
def test_products_are_given_what_the_whole_graph_gives_them(name: str, every: Models) -> None:
    compare_with_whole_graph(every[name].file, TOKENS)


def compare_with_whole_graph(file: GGUFFile, tokens: list[int]) -> None:
    want = collect_imatrix(model_of(file, cache_type="f16"), tokens, context=CONTEXT, output=True)
    parts = [tokens[i : i + CONTEXT] for i in range(0, len(tokens), CONTEXT)]
    run = Layerwise(read_model(file), [ReferenceBackend()], Samples(parts))
    seen = set()
    for stage in run.run():
        for given in stage.inputs:
            found = given.statistics()
            for weight in given.names:
                seen.add(weight)
                entry = want.entries[weight]
                assert found.tokens.tolist() == given.counts() == entry.counts.tolist(), weight
                np.testing.assert_allclose(found.mean_square, entry.mean() * (entry.counts > 0)[:, None], rtol=1e-4)
    assert seen == want.entries.keys()


def test_stages_follow_the_products_order(experts: str) -> None:
    run = layerwise(experts)
    names = [(s.layer, [[n.split(".")[-2] for n in x.names] for x in s.inputs]) for s in run.run()]
    layer = [[["attn_q", "attn_k", "attn_v"]], [["attn_output"]], [["ffn_gate_inp"]]]
    layer += [[["ffn_gate_exps", "ffn_up_exps"]], [["ffn_down_exps"]]]
    assert names == [(i, stage) for i in range(2) for stage in layer] + [(None, [["output"]])]


def logits(run: Layerwise, change: Any = lambda stage: None) -> np.ndarray:
    """What comes of the last product, after weights were changed on the way."""
    for stage in run.run():
        change(stage)
    (given,) = stage.inputs
    return np.concatenate(list(given.batches())) @ stage.weight(given.names[0]).T


def halved(stage: OpenStage) -> None:
    for given in stage.inputs:
        for name in given.names:
            if stage.layer is not None:
                stage.replace(name, stage.weight(name) / 2)


def test_replaced_weights_are_computed_with(dense: str, tmp_path: Path, open_tiny: Open) -> None:
    weights = tiny.tensors()
    changed = {
        n: w / 2 if n.startswith("blk.") and w.ndim > 1 else w for n, w in weights.items()
    }  # half of a number is exact
    want = logits(layerwise(tiny.write(tmp_path / "halved.gguf", weights=changed)))
    np.testing.assert_array_equal(logits(layerwise(dense), halved), want)
    model = open_tiny(changed, cache_type="f16")
    np.testing.assert_allclose(model.engine.logits(SAMPLES.tokens[0]), want[:CONTEXT], rtol=1e-4, atol=1e-4)


def test_the_original_runs_beside_it(dense: str) -> None:
    plain = {x.names: np.concatenate(list(x.batches())) for s in layerwise(dense).run() for x in s.inputs}
    for stage in layerwise(dense, original=True).run():
        halved(stage)
        for given in stage.inputs:
            now, then = (np.concatenate(part) for part in zip(*given.pairs(), strict=True))
            np.testing.assert_array_equal(then, plain[given.names])
            assert np.array_equal(now, then) == (stage.number == 1)
            cross = given.cross()
            scale = np.abs(cross.cross()).max()
            assert 0 <= cross.hessian.kept < 1
            cross.hessian.kept = 1.0
            np.testing.assert_allclose(cross.cross(), now.T.astype(np.float64) @ then / len(now), atol=1e-5 * scale)


def test_hessians_keep_what_halves_of_a_text_agree_on() -> None:
    """Beside the diagonal, but of a vector that is far longer than others, as the first token is in some layers: that
    counts as much as all of them."""
    rng = np.random.default_rng(0)
    x, then = rng.standard_normal((2, 301, 8), dtype=np.float32)
    x[7] *= 100
    given = ProductInput(("w",), 8, 0, x, None, (then, None))
    found, others = given.hessian(), np.delete(x, 7, axis=0)
    assert 0 <= found.kept < 1, "channels are independent"
    assert found.tokens == 301
    bulk = others.T.astype(np.float64) @ others / 301
    share = bulk.trace() / (x[7] @ x[7])
    want = bulk * np.where(np.eye(8), 1, found.kept) + share * np.outer(x[7], x[7]).astype(np.float64)
    np.testing.assert_allclose(found.matrix(), want, rtol=1e-5)
    np.testing.assert_allclose(found.diagonal(), np.diag(want), rtol=1e-5)
    cross = given.cross()
    assert cross.hessian.kept == found.kept
    both = others.T.astype(np.float64) @ np.delete(then, 7, axis=0) / 301
    want = both * np.where(np.eye(8), 1, found.kept) + share * np.outer(x[7], then[7]).astype(np.float64)
    np.testing.assert_allclose(cross.cross(), want, rtol=1e-4, atol=1e-5)


def test_what_kinds_of_a_text_do_not_share_is_not_trusted() -> None:
    """Windows of two kinds in turns: halves by their places agree, halves by their kinds only in what both have."""
    rng, trust = np.random.default_rng(0), []
    alike, other = rng.standard_normal((2, 64, 64))
    for second in (alike, other):
        kinds = [(rng.standard_normal((512, 64)) @ way * size).astype(np.float32)
                 for way, size in ((alike, 1.0), (second, np.linspace(0.5, 1.5, 64))) * 8]
        trust.append(ProductInput(("w",), 64, 0, np.concatenate(kinds), None).hessian().kept)
    assert trust[0] > 0.85
    assert trust[1] < 0.6


def test_experts_share_what_both_models_send_them(experts: str) -> None:
    for stage in layerwise(experts, original=True).run():
        halved(stage)
        for given in stage.inputs:
            for expert in range(given.experts):
                pairs = list(given.pairs(expert))
                count = sum(len(now) for now, _ in pairs)
                assert all(now.shape == then.shape for now, then in pairs)
                assert count <= given.tokens(expert)
                assert given.vectors.ndim == 3 or count == given.tokens(expert)
                assert given.cross(expert).tokens == count
                if count == given.tokens(expert):
                    np.testing.assert_array_equal(given.cross(expert).hessian.matrix(), given.hessian(expert).matrix())


def test_what_is_written_to_caches(dense: str) -> None:
    found: dict[str, Any] = {}
    run = layerwise(dense, done=lambda stage, caches: found.update(caches))
    for _ in run.run():
        pass
    assert found.keys() == {f"blk.{i}.cache_{kind}" for i in range(2) for kind in "kv"}
    for cache in found.values():
        assert cache.shape == (tiny.N_HEAD_KV, tiny.HEAD_DIM)
        assert cache.tokens.tolist() == [2 * CONTEXT + 9] * tiny.N_HEAD_KV
        assert (cache.absmax > 0).all()


@pytest.mark.parametrize("original", [False, True])
def test_memory_is_told_before_a_run(
    dense: str, tmp_path: Path, original: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a layer's largest stage (q, k, v), a Hessian of its widest input, and values where they are in memory."""
    monkeypatch.setattr("octavo.calibrate.runner.layerwise.PROCESS", 0)
    told = []
    for limit in (1 << 28, 0):
        monkeypatch.setattr("octavo.calibrate.runner.layerwise.IN_MEMORY", limit)
        journal = Journal(str(tmp_path / f"work{limit}"), "run", resume=False)
        run = layerwise(dense, original=original, journal=journal)
        run.tell_memory()
        told.append(run.kept if limit else 0)
        weights = (tiny.N_HEAD + 2 * tiny.N_HEAD_KV) * tiny.HEAD_DIM * tiny.N_EMBD
        wanted = 8 * weights + (56 if original else 20) * max(tiny.N_FF, tiny.N_EMBD) ** 2 + told[-1]
        assert caplog.messages[-1] == f"{2 * CONTEXT + 9} tokens are run: about {size(wanted)} of memory"
        journal.close(remove=True)
    assert told[0] > told[1]


class KilledError(Exception):
    pass


@pytest.mark.few(2)
@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("original", [False, True])
def test_a_killed_run_goes_on_at_its_stage(
    dense: str, tmp_path: Path, original: bool, files: bool, request: pytest.FixtureRequest
) -> None:
    """Stages that were done are run again with what was made; values in files, and in memory."""
    if files:
        request.getfixturevalue("in_files")
    want = logits(layerwise(dense, original=original), halved)
    folder, starts, found = str(tmp_path / "work"), [], None

    def made(name: str) -> Any:
        return tiny.tensors()[name] / 2 if name.startswith("blk.") else None

    while found is None:
        journal = Journal(folder, "run", resume=bool(starts))
        run = layerwise(dense, original=original, journal=journal, made=made)
        assert run.in_files == files
        starts.append(run.first)
        try:
            found = logits(run, lambda stage: halved(stage) if stage.number < starts[-1] + 2 else kill())
        except KilledError:
            journal.close(remove=False)
            assert any(Path(folder).glob("*.bin")) == files
    np.testing.assert_array_equal(found, want)
    assert starts == sorted(set(starts))
    assert len(starts) > 3
    journal.close(remove=True)
    assert not Path(folder).exists()


def kill() -> None:
    raise KilledError


@pytest.mark.usefixtures("in_files")
def test_a_journal_of_another_run_is_refused(dense: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "work")
    journal = Journal(folder, "one", resume=False)
    stop = iter(layerwise(dense, journal=journal).run())
    next(stop), next(stop)
    with pytest.raises(UsageError, match="another process is at work"):
        Journal(folder, "one", resume=True)
    journal.close(remove=False)
    with pytest.raises(UsageError, match=r"another model, text .* or option"):
        Journal(folder, "two", resume=True)
    assert any(Path(folder).glob("changed-*.bin"))
    Journal(folder, "one", resume=True).close(remove=False)
    assert not any(Path(folder).glob("changed-*.bin"))
    (Path(folder) / "state.json").write_text("{")
    with pytest.raises(FileError, match="not the state of a run"):
        Journal(folder, "one", resume=True)
    (Path(folder) / "mine.txt").write_text("kept")
    Journal(folder, "two", resume=False).close(remove=True)
    assert [p.name for p in Path(folder).iterdir()] == ["mine.txt"]


def test_names_of_runs(dense: str, experts: str) -> None:
    spec, other = (read_model(GGUFFile.open(p)) for p in (dense, experts))
    fewer = Samples(SAMPLES.tokens[:2])
    moved = Samples([SAMPLES.tokens[0][:-1], [SAMPLES.tokens[0][-1], *SAMPLES.tokens[1]]])
    names = {
        run_name(spec.file, SAMPLES),
        run_name(spec.file, SAMPLES, 1),
        run_name(other.file, SAMPLES),
        run_name(spec.file, fewer),
    }
    assert len(names | {run_name(spec.file, moved)}) == 5
    assert run_name(spec.file, SAMPLES, 1) in names


def test_not_a_number_names_the_weight(tmp_path: Path) -> None:
    weights = tiny.tensors()
    weights["blk.1.ffn_norm.weight"][5] = np.nan
    path = tiny.write(tmp_path / "nan.gguf", weights=weights)
    given = (x for stage in layerwise(path).run() for x in stage.inputs)
    with pytest.raises(NonFiniteError, match=r"blk\.1\.ffn_gate"):
        sum(x.hessian().tokens for x in given)


def test_what_is_refused(dense: str, experts: str) -> None:
    stage = next(layerwise(dense).run())
    (given,) = stage.inputs
    with pytest.raises(UsageError, match="is not a weight of this stage"):
        stage.weight("output.weight")
    with pytest.raises(UsageError, match="finite float32"):
        stage.replace("blk.0.attn_q.weight", np.zeros((2, 2), np.float32))
    with pytest.raises(UsageError, match="expert is 0"):
        given.hessian(0)
    with pytest.raises(UsageError, match="original"):
        given.cross()
    with pytest.raises(UsageError, match="no samples"):
        Samples([])
    routed = next(s for s in layerwise(experts).run() if s.inputs[0].experts).inputs[0]
    with pytest.raises(UsageError, match="expert is 4"):
        routed.tokens(4)


@pytest.mark.parametrize("name", some(CASES, 2))
def test_every_product_is_in_a_stage_whose_inputs_come_before(name: str, gguf: Write) -> None:
    graph = read_model(gguf(CASES[name], make(CASES[name]))).graph()
    found = stages(graph)
    given = {i for s in found for i in s.gives}
    products = [p for s in found for p in s.products]
    assert {id(p) for p in products} == {id(n) for n in graph.nodes if n.op.startswith("mul_mat")}
    assert len(products) == len({id(p) for p in products})
    for stage in found:
        assert stage.takes.keys() <= given
        taken = {id(n) for n in stage.takes.values()}
        assert all(id(x) in taken for p in stage.products for x in p.inputs[1:])


def test_weights_are_floats(dense: str) -> None:
    stage = next(layerwise(dense).run())
    np.testing.assert_array_equal(stage.weight("blk.0.attn_q.weight"), dequantize(stage.tensor("blk.0.attn_q.weight")))
