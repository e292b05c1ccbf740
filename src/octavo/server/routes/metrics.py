"""Numbers for Prometheus: by llama-server's names, so that its dashboards work, our own, and vLLM's for routers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from octavo.server.routes.vllm_metrics import as_vllm, cache_config

if TYPE_CHECKING:
    from octavo.server.engine.client import EngineClient
    from octavo.server.engine.engine_protocol import StepOutputs, Vectors

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
SHARE = 0.1
"""The weight of a new measurement in a running mean."""


class Gaps:
    """Seconds between two tokens of a reply, in buckets of GAPS.

    Every token is counted here, and the client library's own histogram takes ten times as long.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(GAPS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(GAPS, seconds)] += 1
        self._sum += seconds

    def family(self) -> HistogramMetricFamily:
        """As Prometheus reads it: each bucket has those before it too."""
        limits = [*(str(float(limit)) for limit in GAPS), "+Inf"]
        name, text = "octavo:inter_token_latency_seconds", "Seconds between two tokens of a reply"
        return HistogramMetricFamily(
            name, text, buckets=list(zip(limits, accumulate(self._counts), strict=True)), sum_value=self._sum
        )


class KeyMetrics:
    """Counts of what was done for each API key, by its name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"octavo:key_{name}", text, ["key"], registry=registry)

        self.requests = counter("requests", "Requests, by the key's name")
        self.refused = counter("requests_refused", "Requests refused because the queue was full, by the key's name")
        self.prompt = counter("prompt_tokens", "Prompt tokens, but for cached ones, by the key's name")
        self.generated = counter("generation_tokens", "Tokens generated, by the key's name")
        self.first = Histogram("octavo:key_time_to_first_token_seconds", "Seconds to a request's first token, by the "
                               "key's name", ["key"], buckets=SECONDS, registry=registry)

    def closed(self, key: str, read: int, generated: int) -> None:
        """Count a request that has ended or was left: tokens of prompts that were read, and of replies."""
        self.requests.labels(key).inc()
        self.prompt.labels(key).inc(read)
        self.generated.labels(key).inc(generated)


class Collected(CollectorRegistry):
    """Families that are there already, in place of what collects them."""

    def __init__(self, families: Sequence[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


class Metrics:
    """Counts of what the server did, and how long it took.

    replies        under way or waiting, and other work that is, such as vectors of texts
    beside         how much of it is other work; the engine has one piece of it under way at a time
    reply_seconds  that a reply takes, as far as is known
    """

    def __init__(self, client: EngineClient, model: str) -> None:
        self.client, self.model, self.registry = client, model, CollectorRegistry()
        self.replies, self.beside, self.reply_seconds = 0, 0, 5.0
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.prompt_seconds = self.generated_seconds = 0.0
        self.later_tokens = 0  # of replies, without the first of each: those that their seconds are of
        self.steps = self.busy = self.most_tokens = 0
        self.first = self._histogram("time_to_first_token_seconds", "Seconds to a request's first token", SECONDS)
        self.gap = Gaps()
        self.per_token = self._histogram("request_time_per_output_token_seconds", "Mean seconds per token", GAPS)
        self.whole = self._histogram("e2e_request_latency_seconds", "Seconds to the end of a reply", SECONDS)
        self.queued = self._histogram("request_queue_time_seconds", "Seconds that a request waited", SECONDS)
        self.step_time = self._histogram("step_seconds", "Seconds of an engine step", GAPS)
        self.finished = Counter("octavo:request_success", "Finished replies, by reason", ["finished_reason"],
                                registry=self.registry)
        self.refused = Counter("octavo:requests_refused", "Requests refused because the queue was full",
                               registry=self.registry)
        self.of_keys = KeyMetrics(self.registry)
        self.registry.register(self)
        client.on_step = self.stepped

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"octavo:{name}", text, buckets=buckets, registry=self.registry)

    def stepped(self, step: StepOutputs) -> None:
        """Count a step of the engine's."""
        self.steps += 1
        self.busy += len(step.outputs)
        self.step_time.observe(step.seconds)

    def ended(self, seconds: float, reason: str, tokens: int) -> None:
        """Count a reply."""
        self.reply_seconds += SHARE * (seconds - self.reply_seconds)
        self.finished.labels(reason).inc()
        self.whole.observe(seconds)
        self.most_tokens = max(self.most_tokens, tokens)

    def embedded(self, lengths: Sequence[int], seconds: float, answers: Sequence[Vectors]) -> None:
        """Count vectors of texts of this many tokens: the seconds that the request took, and what the engine says."""
        self.queued.observe(answers[0].queued)
        self.prompt_tokens += sum(lengths)
        self.prompt_seconds += sum(one.seconds for one in answers)
        pieces = sum(one.pieces for one in answers)
        self.steps += pieces
        self.busy += pieces
        self.ended(seconds, "stop", max(lengths))

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        families = list(self.registry.collect())
        vllm = [*as_vllm(families, self.model), *self._cache_config()]
        return generate_latest(Collected([*families, *vllm]))

    def _cache_config(self) -> Iterator[Metric]:
        """What routers ask of the cache: tokens of a page, and pages."""
        if (info := self.client.info) is not None:
            settings = {"block_size": str(info.page_size), "num_gpu_blocks": str(info.n_pages)}
            yield cache_config(self.model, settings)

    def collect(self) -> Iterator[Metric]:
        """What is counted here and elsewhere, for the registry."""
        yield self.gap.family()
        stats, info = self.client.stats, self.client.info
        running = stats.running + bool(self.beside)
        waiting = max(self.replies - running, 0)
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens computed", self.prompt_tokens),
            ("prompt_tokens_cached", "Prompt tokens found in the cache", self.cached_tokens),
            ("prompt_seconds", "Seconds spent on prompts", self.prompt_seconds),
            ("tokens_predicted", "Tokens generated", self.generated_tokens),
            ("tokens_predicted_seconds", "Seconds spent on replies", self.generated_seconds),
            ("n_decode", "Engine steps", self.steps),
            ("spec_decode_num_drafts", "Drafts verified", stats.drafts),
            ("spec_decode_num_draft_tokens", "Draft tokens verified", stats.drafted_tokens),
            ("spec_decode_num_accepted_tokens", "Draft tokens accepted", stats.accepted_tokens),
        ):
            yield CounterMetricFamily(f"llamacpp:{name}", text, value=value)
        for name, text, value in (
            ("n_tokens_max", "Most tokens of one sequence", self.most_tokens),
            ("prompt_tokens_seconds", "Prompt tokens computed per second",
             _rate(self.prompt_tokens, self.prompt_seconds)),
            ("predicted_tokens_seconds", "Tokens of one reply per second",
             _rate(self.later_tokens, self.generated_seconds)),
            ("requests_processing", "Replies being generated", running),
            ("requests_deferred", "Replies waiting", waiting),
            ("n_busy_slots_per_decode", "Mean number of replies in a step", _rate(self.busy, self.steps)),
        ):
            yield GaugeMetricFamily(f"llamacpp:{name}", text, value=value)
        pages = info.n_pages if info is not None else 0
        for name, text, value in (
            ("num_requests_running", "Replies being generated", running),
            ("num_requests_waiting", "Replies waiting", waiting),
            ("kv_cache_usage_perc", "Share of the KV cache's pages held by replies", _rate(stats.held, pages)),
            ("kv_pages_held", "KV cache pages held by replies", stats.held),
            ("kv_pages_cached", "KV cache pages kept for later prompts", stats.cached),
            ("kv_pages_empty", "Empty KV cache pages", stats.empty),
            ("engine_up", "Whether the engine answers", int(self.client.up)),
        ):
            yield GaugeMetricFamily(f"octavo:{name}", text, value=value)
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", stats.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache", stats.cached_tokens),
            ("num_preemptions", "Preemptions of replies", stats.preemptions),
            ("prompt_tokens", "Prompt tokens, computed or found in the cache", self.prompt_tokens + self.cached_tokens),
            ("generation_tokens", "Tokens generated", self.generated_tokens),
            ("engine_restarts", "Engine restarts", self.client.restarts),
        ):
            yield CounterMetricFamily(f"octavo:{name}", text, value=value)


def _rate(n: float, by: float) -> float:
    return n / by if by else 0.0
