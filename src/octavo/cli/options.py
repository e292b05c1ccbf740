"""Options that several commands share: where to run, and with what; and the names that an option goes by.

Defaults are told in round brackets: help texts are Rich markup, to which square ones are tags that it leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from octavo.cli.lora_command import adapters
from octavo.cli.option_names import options_of, plain
from octavo.errors import UsageError
from octavo.runtime.argument_checks import integer

if TYPE_CHECKING:
    from octavo.runtime.engine.placement import GpuLayers
    from octavo.runtime.engine.tensor_overrides import CpuExperts

place_option = partial(typer.Option, rich_help_panel="Where to run")
"""An option of where to run."""
Device = Annotated[
    Literal["auto", "cpu", "gpu", "reference"], place_option(help="Where to run; auto: the GPU if there is one.")
]
Threads = Annotated[int | None, place_option("--threads", "-t", help="Threads to use (default: all cores).")]
CacheName = Literal["f16", "f32", "q8_0", "int8", "fp8", "int4"]
Kv = Annotated[CacheName, place_option("--cache-type", "-ctk", help="Type of the KV cache.")]
AttentionName = Annotated[
    Literal["exact", "int8", "fp8"],
    place_option("--attention", help="Arithmetic of attention in prompts; int8 and fp8 need an H100 or H200."),
]
Window = Annotated[
    int | None,
    typer.Option("--ctx-size", "-c", help="Tokens of a window (default: 512, or the model's if it has fewer)."),
]
Context = Annotated[
    int | None, place_option("--ctx-size", "-c", help="Tokens of context (default: the model's, up to 4096).")
]
Layers = Annotated[
    str | None,
    place_option("--gpu-layers", "-ngl", metavar="N|all|auto",
          help="The last N layers run on the GPU, the others on the CPU; auto: as many as fit (default: with --device "
          "auto what fits, with gpu all)."),
]
CpuMoe = Annotated[
    bool, place_option("--cpu-moe", "-cmoe", help="The experts of all layers are on the CPU, all else is on the GPU.")
]
NCpuMoe = Annotated[
    int,
    place_option("--n-cpu-moe", "-ncmoe", metavar="N", show_default=False,
                 help="The experts of the first N layers are on the CPU (default: as few as it takes to fit)."),
]
OverrideTensor = Annotated[
    list[str] | None,
    place_option("--override-tensor", "-ot", metavar="REGEX=DEVICE",
                 help="Weights in whose names REGEX is found are on DEVICE, cpu or gpu; may be repeated; the first "
                 "match wins."),
]
TensorParallel = Annotated[
    int,
    place_option("--tensor-parallel", "-tp", metavar="N",
                 help="Divide the model among N processes, each with part of every layer (on GPUs, one each); needs "
                 "torch."),
]
WeightCache = Annotated[
    bool,
    place_option("--weight-cache/--no-weight-cache",
                 help="Keep weights packed for the CPU on the disk, or remove those of the model."),
]
Pipeline = Annotated[
    int,
    place_option("--pipeline", "-pp", metavar="N", help="Divide the layers among N GPUs; with --tensor-parallel, N "
                 "per process."),
]
Lora = Annotated[
    list[str] | None,
    place_option(metavar="ADAPTER[=SCALE]",
          help="A LoRA adapter for the model: a GGUF file, a PEFT folder or ORG/REPO of the hub; may be repeated."),
]
Draft = Annotated[
    str | None,
    typer.Option("--draft", "-md", metavar="MODEL", rich_help_panel="Speculative decoding",
                 help="A smaller model of the same vocabulary, or a head of the model, which drafts replies; they stay "
                 "the same."),
]
Speculation = Annotated[
    Literal["auto", "mtp", "draft", "lookup", "off"],
    typer.Option("--speculate", rich_help_panel="Speculative decoding",
                 help="Where drafts come from: lookup (earlier text and replies), mtp (the model's own layer that "
                 "guesses tokens), --draft, or auto: what there is (on a GPU without lookup)."),
]

RAY_ADDRESS_HELP = "The Ray cluster for replicas: HOST:PORT, auto (this machine's) or local (started for this command)."
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Chunks = Annotated[int | None, typer.Option(help="Limit to this many windows (default: the whole text).")]
ParseSpecial = Annotated[bool, typer.Option("--parse-special", help="Parse text such as <|im_end|> as control tokens.")]


@dataclass
class Place:
    """Where a model runs, and with which adapters."""

    device: Device = "auto"
    layers: Layers = None
    cpu_moe: CpuMoe = False
    n_cpu_moe: NCpuMoe = 0
    override_tensor: OverrideTensor = None
    threads: Threads = None
    tensor_parallel: TensorParallel = 1
    pipeline: Pipeline = 1
    lora: Lora = None

    def given(self, offline: bool = False) -> dict[str, Any]:
        """As arguments of `load` and `open_subject`; `offline` asks nothing of the hub."""
        return self.plain() | {"lora": adapters(self.lora, offline)}

    def plain(self) -> dict[str, Any]:
        """The same of a model that neither an adapter nor a cache is for."""
        return {
            "device": self.device, "threads": self.threads, "gpu_layers": gpu_layers(self.layers),
            "tensor_parallel": self.tensor_parallel, "pipeline": self.pipeline,
            "n_cpu_moe": self.cpu_experts, "override_tensor": self.overrides,
        }

    @property
    def cpu_experts(self) -> CpuExperts:
        """How many layers have their experts on the CPU."""
        from octavo.runtime.engine.tensor_overrides import MOST_LAYERS

        return "all" if self.cpu_moe else integer("n_cpu_moe", self.n_cpu_moe, 0, MOST_LAYERS)

    @property
    def overrides(self) -> dict[str, str]:
        """The devices of weights by expressions. Raises UsageError for one that is not REGEX=DEVICE."""
        found = dict[str, str]()
        for each in self.override_tensor or ():
            pattern, equals, device = each.rpartition("=")
            if not equals:
                raise UsageError(f"--override-tensor is {each!r} (allowed: REGEX=DEVICE, such as exps=cpu)")
            found.setdefault(pattern, device)
        return found


@dataclass
class DeviceOptions(Place):
    """The same, and how attention computes."""

    attention: AttentionName = "exact"

    def given(self, offline: bool = False) -> dict[str, Any]:
        return super().given(offline) | {"attention": self.attention}


@dataclass
class Where(DeviceOptions):
    """The same, with what cache, and whether packed weights are kept."""

    kv: Kv = "f16"
    weight_cache: WeightCache = True

    def given(self, offline: bool = False) -> dict[str, Any]:
        return super().given(offline) | {"cache_type": self.kv, "weight_cache": self.weight_cache}


sampling_option = partial(typer.Option, rich_help_panel="Sampling")
"""An option of how tokens are sampled."""


@dataclass
class SamplingFlags:
    """How tokens are sampled; None for the model's own setting, or the default."""

    temp: Annotated[
        float | None, sampling_option("--temp", "--temperature", help="0 is greedy (default: the model's, or 0.8).")
    ] = None
    top_k: Annotated[
        int | None,
        sampling_option(help="Sample from the k most likely tokens; 0 or -1: all (default: the model's, or 40)."),
    ] = None
    top_p: Annotated[
        float | None,
        sampling_option(help="Only the likeliest tokens of this probability together (default: the model's, or 0.95)."),
    ] = None
    min_p: Annotated[
        float | None,
        sampling_option(help="Only tokens this likely, relative to the likeliest (default: the model's, or 0.05)."),
    ] = None
    repeat_penalty: Annotated[
        float | None, sampling_option(help="Above 1: recent tokens become less likely (default: the model's, or 1).")
    ] = None
    repeat_last_n: Annotated[
        int | None, sampling_option(help="How many tokens are recent; -1: all (default: the model's, or 64).")
    ] = None
    presence_penalty: Annotated[
        float | None, sampling_option(help="Subtracted from the logits of tokens already in the reply (default: 0).")
    ] = None
    frequency_penalty: Annotated[
        float | None, sampling_option(help="The same, once for each occurrence (default: 0).")
    ] = None

    typical_p: Annotated[
        float | None,
        sampling_option(help="Only tokens of typical information, of this probability together (default: 1, off)."),
    ] = None
    top_n_sigma: Annotated[
        float | None,
        sampling_option(help="Only tokens within this many standard deviations of the best logit (default: off)."),
    ] = None
    xtc_probability: Annotated[
        float | None, sampling_option(help="XTC: how often the likeliest tokens are excluded (default: 0).")
    ] = None
    xtc_threshold: Annotated[
        float | None, sampling_option(help="XTC: how likely these are, at least (default: 0.1).")
    ] = None
    dry_multiplier: Annotated[
        float | None, sampling_option(help="DRY: penalty for going on with a repetition (default: 0, off).")
    ] = None
    dry_base: Annotated[
        float | None, sampling_option(help="DRY: factor of the penalty for each further token (default: 1.75).")
    ] = None
    dry_allowed_length: Annotated[
        int | None, sampling_option(help="DRY: tokens of a repetition without penalty (default: 2).")
    ] = None
    dry_penalty_last_n: Annotated[
        int | None, sampling_option(help="DRY: how many tokens are looked at; -1: all (default: -1).")
    ] = None
    dry_breaker: Annotated[
        list[str] | None,
        sampling_option("--dry-sequence-breaker", metavar="TEXT",
                        help="DRY: a text that no repetition goes across; may be repeated; none: no such text "
                        "(default: line ends, : \" *)."),
    ] = None
    banned: Annotated[
        list[str] | None,
        sampling_option("--banned-string", metavar="TEXT", help="A text that may not be in replies; may be repeated."),
    ] = None
    reasoning_budget: Annotated[
        int | None, sampling_option(help="Maximum number of tokens of thinking; -1: no limit (default: -1).")
    ] = None
    reasoning_budget_message: Annotated[
        str | None, sampling_option(metavar="TEXT", help="Text that closes thinking where its budget ends it.")
    ] = None

    def params(self) -> dict[str, Any]:
        """Those that were given, by the names of SamplingParams."""
        given = {f.name: getattr(self, f.name) for f in fields(SamplingFlags)}
        given["temperature"], given["banned_strings"] = given.pop("temp"), given.pop("banned")
        breakers = given.pop("dry_breaker")
        given["dry_sequence_breakers"] = [] if breakers == ["none"] else breakers
        return {name: value for name, value in given.items() if value is not None}


_PYDANTIC = {
    r"Value error, ": "",
    r"Input should be a valid number, unable to parse string as a number": "not a number",
    r"Input should be a valid integer, unable to parse string as an integer": "not an integer",
    r": Input should be greater than or equal to (\S+)": r" (allowed: \1 or more)",
    r": Input should be less than or equal to (\S+)": r" (allowed: \1 or less)",
}
"""What Typer says of a value in Pydantic's words, and what is said instead."""


def in_plain_words(message: str) -> str:
    """Typer's message on a command line that it can't read, without the words of the library that reads values."""
    for pattern, words in _PYDANTIC.items():
        message = re.sub(pattern, words, message)
    return message


def worded(error: UsageError, arguments: Sequence[str]) -> str:
    """An error's text with the option as the user typed it in `arguments`, instead of Python's name for it."""
    text = str(error)
    rows = options_of(error.argument or "")
    if not rows or not text.startswith(error.argument or ""):
        return text
    given = {plain(argument.partition("=")[0]) for argument in arguments if argument.startswith("-")}
    option = next((name for row in rows for name in (*row.own, *row.others()) if name in given), rows[0].name)
    return option + text.removeprefix(error.argument or "")


def refuse(given: Mapping[str, Any], why: str) -> None:
    """Raise UsageError for the first option that is given: `why` it can't be, behind its name."""
    option = next((option for option, value in given.items() if value), None)
    if option is not None:
        raise UsageError(f"{option} {why}")


def gpu_layers(text: str | None) -> GpuLayers | None:
    """What `--gpu-layers` stands for. Raises UsageError for what is not a number of layers."""
    if text is None or text in ("all", "auto"):
        return cast("GpuLayers | None", text)
    try:
        return int(text)
    except ValueError:
        problem = f"gpu_layers is {text!r} (allowed: 0 or more, all, auto)"
        raise UsageError(problem, argument="gpu_layers") from None
