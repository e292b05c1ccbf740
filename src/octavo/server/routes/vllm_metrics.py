"""Metrics by the names that vLLM has for them, with its labels: what routers of other projects read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

NAMES = {
    f"octavo:{name}": f"vllm:{name}" for name in (
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries",
        "prefix_cache_hits", "num_preemptions", "request_success", "time_to_first_token_seconds",
        "inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds",
        "request_queue_time_seconds", "prompt_tokens", "generation_tokens",
    )
}
REASONS = {"tool_calls": "stop", "context": "length", "left": "abort", "interrupted": "abort"}
"""What vLLM calls reasons for a reply's end that it has no word of its own for."""
ENGINE = "0"


def as_vllm(families: Iterable[Metric], model: str) -> Iterator[Metric]:
    """The families that vLLM has too, with the labels `model_name` and `engine`."""
    labels = {"model_name": model, "engine": ENGINE}
    for family in families:
        if (name := NAMES.get(family.name)) is None:
            continue
        found = Metric(name, family.documentation, family.type)
        values = dict[tuple[str, tuple[tuple[str, str], ...]], float]()
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            more = {label: REASONS.get(value, value) if label == "finished_reason" else value
                    for label, value in sample.labels.items()}
            key = sample.name.replace(family.name, name, 1), tuple(more.items())
            values[key] = values.get(key, 0.0) + sample.value  # reasons that are one there are added
        found.samples = [Sample(one, {**labels, **dict(rest)}, value) for (one, rest), value in values.items()]
        yield found


def cache_config(model: str, settings: Mapping[str, str]) -> Metric:
    """`vllm:cache_config_info`: a gauge of 1, whose labels are settings of the cache."""
    family = GaugeMetricFamily("vllm:cache_config_info", "Settings of the KV cache, as labels",
                               labels=["model_name", "engine", *settings])
    family.add_metric([model, ENGINE, *settings.values()], 1)
    return family
