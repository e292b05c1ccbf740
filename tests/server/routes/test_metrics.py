"""What /metrics counts of work that is not a reply."""

from __future__ import annotations

import re
import time
from contextlib import closing

from prometheus_client.parser import text_string_to_metric_families

from octavo.runtime import Model
from octavo.server.engine.engine_protocol import Embed, Score, Vectors
from octavo.server.engine.fake import FakeClient
from octavo.server.engine.side_tasks import SideWork
from octavo.server.routes.metrics import Metrics
from tests.server.engine.test_side_tasks import Silent, embed
from tests.server.live_server import Server, running, running_model
from tests.server.scripted_engine import request, until


def counts(server: Server) -> dict[str, float]:
    """The numbers of /metrics by name and labels."""
    text = server.send("GET", "/metrics")[2].decode()
    return {name: float(value) for name, value in re.findall(r"^([^# ]+) (\S+)$", text, re.MULTILINE)}


def test_vectors_of_texts_are_counted(model: Model) -> None:
    with running_model(model, embeddings=True) as server:
        before = counts(server)
        told = [server.post("/v1/embeddings", input=given)["usage"]["prompt_tokens"]
                for given in ("A cat.", [[5] * 40, [7]], ["a", "b", "c"] * 20)]
        after = counts(server)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["llamacpp:prompt_tokens_total"] == sum(told)
    assert 0 < grown["llamacpp:prompt_seconds_total"] <= grown["octavo:e2e_request_latency_seconds_sum"]
    assert after["llamacpp:prompt_tokens_seconds"] > 0
    assert grown["llamacpp:n_decode_total"] >= 4  # two of the 60 texts, which are computed 32 at a time
    assert after["llamacpp:n_busy_slots_per_decode"] == 1
    assert after["llamacpp:n_tokens_max"] == 40
    for name in ("e2e_request_latency_seconds_count", "request_queue_time_seconds_count"):
        assert grown[f"octavo:{name}"] == 3, name
    assert grown['octavo:request_success_total{finished_reason="stop"}'] == 3
    assert grown["octavo:time_to_first_token_seconds_count"] == grown["llamacpp:tokens_predicted_total"] == 0
    assert after["octavo:num_requests_running"] == after["octavo:num_requests_waiting"] == 0


READ = {
    "llm-d's endpoint picker": {
        "num_requests_waiting": "gauge", "num_requests_running": "gauge", "kv_cache_usage_perc": "gauge",
        "cache_config_info": "gauge",
    },
    "AIBrix's gateway": {
        "num_preemptions": "counter", "e2e_request_latency_seconds": "histogram", "prompt_tokens": "counter",
        "request_queue_time_seconds": "histogram", "generation_tokens": "counter", "prefix_cache_hits": "counter",
        "time_to_first_token_seconds": "histogram", "inter_token_latency_seconds": "histogram",
        "request_time_per_output_token_seconds": "histogram", "prefix_cache_queries": "counter",
        "request_success": "counter",
    },
}
"""Metrics of vLLM's that routers read, with their types."""


def test_routers_read_what_vllm_has(model: Model) -> None:
    """By Prometheus's own parser: types, labels, and the numbers that stand beside them by our names."""
    with running_model(model) as server:
        for text in ("What is 12 times 7?", "What is 12 times 8?" * 9):
            server.chat(text, max_tokens=6, ignore_eos=True)
            server.chat(text, max_tokens=6, ignore_eos=True)
        parsed = text_string_to_metric_families(server.send("GET", "/metrics")[2].decode())
        found, own = {family.name: family for family in parsed}, counts(server)
    for names in READ.values():
        for name, kind in names.items():
            family = found[f"vllm:{name}"]
            assert family.type == kind, name
            for sample in family.samples:
                assert (sample.labels.pop("model_name"), sample.labels.pop("engine")) == ("demo", "0")
                if name == "cache_config_info":
                    pages = int(sum(own[f"octavo:kv_pages_{kind}"] for kind in ("held", "cached", "empty")))
                    assert sample.labels == {"block_size": "64", "num_gpu_blocks": str(pages)}
                    continue
                labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
                ours = sample.name.replace("vllm:", "octavo:") + (f"{{{labels}}}" if labels else "")
                assert sample.value == own[ours], ours
    assert own["octavo:generation_tokens_total"] == own['octavo:request_success_total{finished_reason="length"}'] * 6
    assert own["octavo:prompt_tokens_total"] == (
        own["llamacpp:prompt_tokens_total"] + own["llamacpp:prompt_tokens_cached_total"]
    )
    assert own["llamacpp:prompt_tokens_cached_total"] > 0


def test_reasons_that_vllm_has_no_word_for_are_added() -> None:
    metrics = Metrics(FakeClient(), "demo")
    for reason in ("stop", "tool_calls", "left", "length"):
        metrics.ended(1.0, reason, 3)
    families = text_string_to_metric_families(metrics.text().decode())
    (family,) = (family for family in families if family.name == "vllm:request_success")
    counted = {sample.labels["finished_reason"]: sample.value for sample in family.samples}
    assert counted == {"stop": 2, "abort": 1, "length": 1}


def test_when_the_server_began_is_told(model: Model) -> None:
    before = int(time.time())
    with running(Silent(), model) as server:
        _, headers, _ = server.send("GET", "/metrics")
    assert before <= int(headers["process-start-time-unix"]) <= time.time()


def test_one_is_under_way_and_others_wait(model: Model) -> None:
    fake = Silent()
    with running(fake, model) as server:
        socks = [server.connect() for _ in range(3)]
        for sock in socks:
            sock.sendall(request({"input": "a cat"}, "/v1/embeddings"))
        until(lambda: len([m for m in fake.sent if isinstance(m, Embed)]) == 3)
        for running_name, waiting_name in (
            ("octavo:num_requests_running", "octavo:num_requests_waiting"),
            ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
        ):
            found = counts(server)
            assert (found[running_name], found[waiting_name]) == (1, 2)
        for sock in socks:
            sock.close()
        until(lambda: counts(server)["octavo:num_requests_running"] == 0)


def test_likelihoods_of_a_prompt_are_under_way_too(model: Model) -> None:
    fake = Silent()
    with running(fake, model) as server, closing(server.connect()) as sock:
        sock.sendall(request({"prompt": "a cat", "echo": True, "logprobs": 1, "max_tokens": 0}, "/v1/completions"))
        until(lambda: any(isinstance(m, Score) for m in fake.sent))
        assert counts(server)["octavo:num_requests_running"] == 1


def test_times_of_vectors(model: Model) -> None:
    """Two that come together: the second waits as long as the first takes."""
    sent: list[Vectors] = []
    side = SideWork(model, None, sent.append, embeddings=True)  # type: ignore[arg-type]
    for one in (1, 2):
        side.add(embed([5] * 300, id=one))
    side.add(embed([5], id=3))
    side.cancel([3])
    while side:
        side.piece()
    first, second = sent
    assert first.queued >= 0
    assert 0 < first.seconds <= second.queued
    assert second.seconds > 0
    assert first.pieces == second.pieces > 0
