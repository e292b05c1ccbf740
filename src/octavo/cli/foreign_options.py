"""What options are called in llama.cpp, Ollama, vLLM and Hugging Face's programs, and what is done about each name.

`OPTIONS` are those that mean something here: each spelling is taken. `VALUES` are spellings that say in their value
what an option here says in its name. `ANSWERED` are those that mean nothing here: who types one is told what to write.
`tools/gen_docs.py` makes the tables of docs/run.md of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """An option, by the names that it has on the command line here, and elsewhere.

    The name that errors use comes first. Of other programs an option stands as it is typed (`--num-ctx`) or as a
    parameter (`num_ctx`); a word in capitals is a variable or a part of a Modelfile. `also` are names that are taken
    without being some program's, or no longer. `python` is the argument, with its function.
    """

    names: str
    value: str = ""
    llama_cpp: str = ""
    ollama: str = ""
    vllm: str = ""
    hugging_face: str = ""
    python: str = ""
    also: str = ""

    @property
    def own(self) -> tuple[str, ...]:
        return tuple(self.names.split())

    @property
    def name(self) -> str:
        """The usual one."""
        return self.own[0]

    def others(self) -> Iterator[str]:
        """All other spellings, as options."""
        for word in f"{self.also} {self.llama_cpp} {self.ollama} {self.vllm} {self.hugging_face}".split():
            found = word if word.startswith("-") else f"--{word.replace('_', '-')}"
            if found not in self.own and not word.isupper():
                yield found


def _same(name: str, value: str, **more: str) -> Option:
    """An option of sampling that all programs have under one name."""
    word = name.removeprefix("--").replace("-", "_")
    usual = {"llama_cpp": name, "ollama": word, "vllm": name, "hugging_face": name, "python": f"generate({word}=)"}
    return Option(name, value, **(usual | more))


OPTIONS = (
    Option("--ctx-size -c", "N", "-c --ctx-size", "num_ctx", "--max-model-len", "--max-total-tokens", "load(n_ctx=)",
           "--ctx --context --n-ctx --context-length --max-seq-len --max-seq-length"),
    Option("--threads -t", "N", "-t --threads", "num_thread", python="load(threads=)", also="--n-threads"),
    Option("--gpu-layers -ngl", "N", "-ngl --n-gpu-layers", "num_gpu", python="load(gpu_layers=)"),
    Option("--n-cpu-moe -ncmoe", "N", "-ncmoe --n-cpu-moe", python="load(n_cpu_moe=)"),
    Option("--cpu-moe -cmoe", "", "-cmoe --cpu-moe", python='load(n_cpu_moe="all")'),
    Option("--override-tensor -ot", "REGEX=DEVICE", "-ot --override-tensor", python="load(override_tensor=)"),
    Option("--tensor-parallel -tp", "N", vllm="--tensor-parallel-size", hugging_face="--num-shard",
           python="load(tensor_parallel=)", also="--tp"),
    Option("--pipeline -pp", "N", vllm="--pipeline-parallel-size", python="load(pipeline=)", also="--pp"),
    Option("--device", "NAME", "-dev --device", "", "--device", "--device", "load(device=)"),
    Option("--cache-type -ctk", "TYPE", "-ctk --cache-type-k", "OLLAMA_KV_CACHE_TYPE", "--kv-cache-dtype",
           python="load(cache_type=)", also="--kv --kv-cache-type"),
    Option("--weight-cache --no-weight-cache", "", python="load(weight_cache=)"),
    Option("--attention", "KIND", python="load(attention=)"),
    Option("--draft -md", "MODEL", "-md --model-draft", python="load(draft=)", also="--draft-model"),
    Option("--speculate", "KIND", python="load(speculate=)"),
    Option("--lora", "ADAPTER[=SCALE]", "--lora --lora-scaled", "ADAPTER", python="load(lora=)",
           also="--adapter --adapter-path"),
    Option("--offline", "", "--offline", hugging_face="HF_HUB_OFFLINE"),
    Option("--max-tokens -n", "N", "-n --predict --n-predict", "num_predict", "--max-tokens", "--max-new-tokens",
           "generate(max_tokens=)"),
    _same("--temp", "T", llama_cpp="--temp --temperature", ollama="temperature", vllm="--temperature",
          hugging_face="--temperature", python="generate(temperature=)"),
    _same("--top-k", "N"), _same("--top-p", "P"), _same("--min-p", "P"),
    _same("--repeat-penalty", "X", vllm="--repetition-penalty", hugging_face="--repetition-penalty"),
    _same("--repeat-last-n", "N", vllm="", hugging_face=""),
    _same("--presence-penalty", "X", hugging_face=""), _same("--frequency-penalty", "X", hugging_face=""),
    Option("--typical-p", "P", "--typical --typical-p", "typical_p", python="generate(typical_p=)"),
    Option("--top-n-sigma", "N", "--top-nsigma --top-n-sigma", python="generate(top_n_sigma=)"),
    Option("--xtc-probability", "P", "--xtc-probability", python="generate(xtc_probability=)"),
    Option("--xtc-threshold", "P", "--xtc-threshold", python="generate(xtc_threshold=)"),
    Option("--dry-multiplier", "X", "--dry-multiplier", python="generate(dry_multiplier=)"),
    Option("--dry-base", "X", "--dry-base", python="generate(dry_base=)"),
    Option("--dry-allowed-length", "N", "--dry-allowed-length", python="generate(dry_allowed_length=)"),
    Option("--dry-penalty-last-n", "N", "--dry-penalty-last-n", python="generate(dry_penalty_last_n=)"),
    Option("--dry-sequence-breaker", "TEXT", "--dry-sequence-breaker", python="generate(dry_sequence_breakers=)"),
    Option("--banned-string", "TEXT", python="generate(banned_strings=)"),
    Option("--reasoning-budget", "N", "--reasoning-budget", python="generate(reasoning_budget=)"),
    Option("--reasoning-budget-message", "TEXT", "--reasoning-budget-message",
           python="generate(reasoning_budget_message=)"),
    _same("--seed", "N", llama_cpp="-s --seed", also="-s"),
    Option("--stop", "TEXT", "-r --reverse-prompt", "stop", "--stop", "--stop-strings", "generate(stop=)"),
    Option("--ignore-eos", "", "--ignore-eos", "", "--ignore-eos", python="generate(ignore_eos=)"),
    Option("--system -sys", "TEXT", "-sys --system-prompt", "SYSTEM", python="generate(system=)"),
    Option("--file -f", "FILE", "-f --file"),
    Option("--think --no-think", "", "--reasoning -rea", "--think", python="generate(think=)"),
    Option("--json-schema", "SCHEMA|FILE", "-j --json-schema -jf --json-schema-file", "--format",
           python="generate(grammar=)"),
    Option("--grammar", "GRAMMAR|FILE", "--grammar --grammar-file", python="generate(grammar=)"),
    Option("--chat-template", "NAME", "--chat-template", "TEMPLATE", python="use_template()"),
    Option("--raw", "", "-no-cnv --no-conversation", "raw", python="generate(raw=)"),
    Option("--stats", "", "--perf --show-timings"),
)
"""Those of `run`; where another command has one, it takes the same names."""

OF_SERVE = (
    Option("--lora-modules", "NAME=ADAPTER", vllm="--lora-modules"),
    Option("--max-loras", "N", vllm="--max-loras"), Option("--max-lora-rank", "R", vllm="--max-lora-rank"),
    Option("--lora-init-without-apply", "", "--lora-init-without-apply"),
    Option("--max-sequences -np", "N", "-np --parallel", "OLLAMA_NUM_PARALLEL", "--max-num-seqs",
           python="load(max_sequences=)"),
    Option("--kv-memory", "BYTES", vllm="--kv-cache-memory-bytes --kv-cache-memory", python="load(kv_memory=)"),
    Option("--cache-disk", "BYTES"),
    Option("--cache-dir", "FOLDER"), Option("--data-dir", "FOLDER"), Option("--share-cache", ""),
    Option("--slot-save-path", "FOLDER", "--slot-save-path"),
    Option("--cache-ram", "BYTES", "-cram --cache-ram"),
    Option("--deterministic", "", python="load(deterministic=)"),
    Option("--itl-target", "SECONDS"),
    Option("--queue", "N", "", "OLLAMA_MAX_QUEUE"),
    Option("--ping", "SECONDS"), Option("--step-timeout", "SECONDS"), Option("--drain-timeout", "SECONDS"),
    Option("--max-connections", "N"),
    Option("--models-dir", "FOLDER", "--models-dir", "OLLAMA_MODELS"),
    Option("--models-preset", "FILE", "--models-preset"),
    Option("--memory", "BYTES"),
    Option("--idle", "SECONDS", "--sleep-idle-seconds", "OLLAMA_KEEP_ALIVE"),
    Option("--allow-delete", ""),
    Option("--host", "NAME", "--host", "OLLAMA_HOST", "--host", "--hostname"),
    Option("--port", "N", "--port", "", "--port", "--port"),
    Option("--api-key", "KEY", "--api-key", "", "--api-key", "--api-key"),
    Option("--api-key-file", "FILE", "--api-key-file"),
    Option("--ssl-key-file", "FILE", "--ssl-key-file", "", "--ssl-keyfile"),
    Option("--ssl-cert-file", "FILE", "--ssl-cert-file", "", "--ssl-certfile"),
    Option("--alias", "NAME", "-a --alias", "", "--served-model-name"),
    Option("--strict-model", ""), Option("--tags", "TAG,TAG"), Option("--allow-host", "NAME"),
    Option("--cors-origin", "ORIGIN", "--cors-origins", "OLLAMA_ORIGINS", "--allowed-origins", "--cors-allow-origin"),
    Option("--log-requests", "", "", "", "--enable-log-requests"),
    Option("--embeddings", "", "--embedding --embeddings"),
    Option("--reasoning -rea", "on|off|auto", "-rea --reasoning"),
    Option("--chat-template-file", "FILE", "--chat-template-file"),
    Option("--kv-events", "ADDRESS", vllm="--kv-events-endpoint"),
    Option("--kv-events-replay", "ADDRESS", vllm="--kv-events-replay-endpoint"),
    Option("--kv-events-topic", "TEXT"),
    Option("--chat-template-kwargs", "JSON", "--chat-template-kwargs", "", "--default-chat-template-kwargs"),
)
"""Those that only `serve` has, with others' names for them."""

OF_OTHERS = (
    Option("--no-normalize", "", "--embd-normalize", python="embed(normalize=)"),
    Option("--output -o", "FILE", "-o --output-file"),
    Option("--type", "TYPE", "--outtype", also="--preset"),
    Option("--replicas", "N", vllm="--data-parallel-size -dp"),
    Option("--ray-address", "ADDRESS"),
    Option("--calibration", "TEXT", hugging_face="--dataset"),
    Option("--samples", "N", hugging_face="--num-calibration-samples --nsamples"),
    Option("--prompt -p", "N", "-p --n-prompt"),
    Option("--generate -n", "N", "-n --n-gen"),
    Option("--rounds -r", "N", "-r --repetitions"),
    Option("--depth", "N", "-d --n-depth"),
    Option("--chunks", "N", "--chunks"),
)
"""Those of commands that measure or write models: of llama-imatrix, convert_hf_to_gguf, llama-bench, llm-compressor."""

_THINK = {"on": "--think", "off": "--no-think", "auto": ""}
_GPU = dict.fromkeys(("cuda", "cuda:0", "cuda0", "rocm", "rocm0", "hip"), "--device gpu")
_NO_VALUE = {"-1": ""}
VALUES: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "--reasoning": (_THINK, {word: f"--reasoning {word}" for word in _THINK}),
    "-rea": (_THINK, {word: f"--reasoning {word}" for word in _THINK}),
    "--format": ({"json": '--json-schema {"type":"object"}'},),
    "--embd-normalize": ({"-1": "--no-normalize", "2": ""},),
}
"""Options that each have a few values: what is typed instead, for commands that have the first of these options."""

MEANT: Mapping[str, Mapping[str, str]] = {
    "--device": _GPU | {"none": "--device cpu"},
    "--cache-type": {"auto": "", "float16": "--cache-type f16", "fp8_e4m3": "--cache-type fp8"},
    "--threads": _NO_VALUE | {"0": ""},
    "--max-tokens": {"-2": "--max-tokens -1"},
    "--max-sequences": _NO_VALUE,
    "--chunks": _NO_VALUE,
    "--gpu-layers": {"-2": "--gpu-layers all"},
}
"""Values that others have: what they are here. Nothing stands for the default."""

ANSWERED = {
    "-m --model --model-path --model-id --model-name-or-path": "the model is the first argument: `{} MODEL`",
    "-p --prompt": "the prompt is the argument after the model: `octavo run MODEL PROMPT`",
    "-hf -hfr --hf-repo": "the model may be a name on the hub: `{} ORG/REPO:QUANT`",
    "-hff --hf-file --model-url -mu": "name the model: `{} ORG/REPO:QUANT`, or a file that was downloaded",
    "-hft --hf-token --token": "set the environment variable HF_TOKEN",
    "--revision": "it is part of the name: ORG/REPO:QUANT@REVISION",
    "--download-dir --cache-dir": "set the environment variable HF_HOME",
    "-cnv --conversation -i --interactive -ins --instruct": "without a prompt it is a conversation: `octavo run MODEL`",
    "-st --single-turn": "with a prompt there is one reply: leave it out",
    "-sysf --system-prompt-file": '`--system "$(cat FILE)"` takes it',
    "-e --escape --no-escape": "the shell can do that: $'one\\ntwo'",
    "-fa --flash-attn --flash-attention --attn-implementation": "attention never keeps all scores: leave it out",
    "--mlock --mmap --no-mmap --numa --direct-io -dio --use-mmap --use-mlock": "how a file is read needs no option: "
    "leave it out",
    "--jinja --no-jinja": "a chat template is always Jinja: leave it out",
    "-tb --threads-batch": "-t counts for prompts and replies alike: leave it out",
    "-b --batch-size -ub --ubatch-size --num-batch --max-num-batched-tokens --enable-chunked-prefill": "prompts are "
    "cut into steps by themselves: leave it out, or see --itl-target of `octavo serve`",
    "-nkvo --no-kv-offload -kvu --kv-unified": "keys and values are where their layers are: --gpu-layers",
    "--cpu-offload-gb --device-map": "--gpu-layers says how many layers are on the GPU, --n-cpu-moe how many of them "
    "have their experts on the CPU",
    "-sm --split-mode -ts --tensor-split -mg --main-gpu --sharded": "CUDA_VISIBLE_DEVICES says which GPUs; --pipeline "
    "gives each some of the layers, --tensor-parallel a part of each layer",
    "--gpu-memory-utilization --cuda-memory-fraction --swap-space": "--kv-memory of `octavo serve` says how much the "
    "cache takes",
    "--kv-events-config --enable-kv-cache-events --kv-events-publisher --kv-events-buffer-steps": "write --kv-events "
    "ADDRESS of `octavo serve`, and --kv-events-replay and --kv-events-topic",
    "--num-gpus --gpus": "CUDA_VISIBLE_DEVICES says which GPUs are used; --tensor-parallel N divides a model among N",
    "--override-kv --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor": (
        "it is as the model's file says: leave it out"),
    "--dtype --torch-dtype -q --quantization --quantize --load-in-4bit --load-in-8bit": "weights are as they are "
    "stored; `octavo quantize` makes others",
    "--samplers --sampler-seq --sampling-seq --mirostat --mirostat-lr --mirostat-ent --tfs-z --dynatemp-range "
    "--dynatemp-exp --num-beams": "there is no such sampler: there are --temp, --top-k, --top-p, --min-p, --typical-p, "
    "--top-n-sigma, XTC, DRY and the penalties",
    "--do-sample": "--temp 0 takes the likeliest token, more than 0 samples",
    "-l --logit-bias": "requests to `octavo serve` have it, and generate(logit_bias=) in Python",
    "--no-display-prompt --simple-io -co --color --no-color --verbose-prompt --no-perf --log-disable --nowordwrap "
    "--hidethinking --keepalive --insecure --no-warmup --warmup": "nothing here depends on it: leave it out",
    "-cb --cont-batching -nocb --no-cont-batching --context-shift --no-context-shift --keep --cache-prompt "
    "--cache-reuse --prompt-cache --slots --no-slots --props --metrics --webui --no-webui --rerank --reranking "
    "--enable-prefix-caching --enforce-eager --enable-auto-tool-choice --tool-call-parser --reasoning-parser "
    "--reasoning-format --enable-lora --max-cpu-loras --fully-sharded-loras": "it works without one: leave it out",
    "--trust-remote-code": "a checkpoint's code is never run: leave it out",
    "--generation-config --override-generation-config": "--temp, --top-k and others of `octavo serve` say it",
    "--draft-max --draft-min --draft-n --draft-p-min --speculative-config --num-speculative-tokens": "--draft MODEL "
    "says which model drafts; how many tokens pay is measured while it runs",
    "--mmproj --image --audio": "pictures and sounds can't be read",
    "--tokenizer --tokenizer-name": "the model's file or folder has it: leave it out",
    "--kl-divergence --kl-divergence-base": "`octavo eval kl MODEL TEXT --base MODEL` compares with another model",
    "-f --file": "where a text is read it is the argument after the model",
    "--outfile": "the file to write is the second argument",
}
"""What those are told who type one of these; {} is the command."""

ELSEWHERE = {"--replicas --ray-address -dp --data-parallel-size": "`octavo serve` and `octavo batch` have it"}
"""What is told of options that other commands have."""

_FILES = "a batch's model, input and output are arguments: `octavo batch MODEL IN OUT`"
ANSWERED_OF = {"batch": dict.fromkeys(("-i", "--input-file", "-o", "--output-file", "-p", "--prompt"), _FILES)}
"""What is told instead, by a command's name and the option's."""

MODELS, PROMPTS = ("-m", "--model", "--model-path", "-hf", "-hfr", "--hf-repo"), ("-p", "--prompt")
"""Of these, those with what is an argument here."""

MODEL_ARGUMENTS = ("model", "models", "name", "src", "folder", "server")
"""What a command's first argument is called in Python where it is a model."""

COMMANDS = {
    "version": "octavo --version", "chat": "octavo run MODEL", "generate": "octavo run MODEL PROMPT",
    "complete": "octavo run MODEL PROMPT --raw", "show": "octavo inspect MODEL", "ls": "octavo list",
    "create": "octavo quantize, and octavo convert", "download": "octavo pull ORG/REPO:QUANT", "delete": "octavo rm",
    "server": "octavo serve MODEL", "perplexity": "octavo eval ppl MODEL TEXT", "help": "octavo --help",
    "ps": "GET /v1/models of a server", "stop": "Ctrl-C in octavo serve",
    "cp": "octavo serve MODEL --alias NAME", "push": "hf upload, which comes with huggingface-hub",
    "embedding": "octavo embed MODEL TEXTS", "rerank": "octavo rank MODEL QUERY DOCUMENTS", "ppl": "octavo eval ppl",
}
"""Commands of others, and what does that here."""
