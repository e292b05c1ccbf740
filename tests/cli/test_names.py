"""Options by the names that other programs have for them, through the parser of the command line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from octavo.cli import app
from octavo.cli.foreign_options import ANSWERED, COMMANDS, OF_OTHERS, OF_SERVE, OPTIONS, VALUES, Option
from octavo.cli.option_names import VERBOSE
from octavo.errors import UsageError
from tests.cli.conftest import Run

ROOT: Any = get_command(app)
ARGUMENTS = {"rank": ["m", "q"], "imatrix": ["m", "t"], "convert": ["m", "o"], "quantize": ["m", "o"],
             "calibrate": ["m", "t"], "frontier": ["m"], "bench model": ["m"], "eval ppl": ["m", "t"]}
VALUE = {
    "--device": "cpu", "--cache-type": "q8_0", "--attention": "int8", "--speculate": "off", "--json-schema": "{}",
    "--reasoning": "off", "--pooling": "cls", "--alias": "a",
}


def parsed(command: str, *typed: str) -> dict[str, Any]:
    """The arguments of a command, as its function would be called with them."""
    found: Any = ROOT
    for name in command.split():
        found = found.commands[name]
    ROOT.make_context("octavo", [], resilient_parsing=True)
    context = found.make_context(found.name, [*ARGUMENTS.get(command, ["m"]), *typed])
    return dict(context.params)


def has(command: str, option: str) -> bool:
    found: Any = ROOT
    for name in command.split():
        found = found.commands[name]
    return any(option in (*p.opts, *p.secondary_opts) for p in found.params)


def commands_with(option: Option) -> list[str]:
    every = ("run", "serve", "embed", "rank", *ARGUMENTS)
    return [command for command in dict.fromkeys(every) if has(command, option.name)]


def taken() -> Iterator[tuple[str, str, str]]:
    """(command, the option here, another name for it): those that are read as they stand."""
    for option in (*OPTIONS, *OF_SERVE, *OF_OTHERS):
        for command in commands_with(option):
            for other in option.others():
                if other not in VALUES and other != "--lora-scaled" and not has(command, other):
                    yield command, option.name, other


@pytest.mark.parametrize(("command", "option", "other"), list(taken()))
def test_others_names_are_taken(command: str, option: str, other: str) -> None:
    found: Any = ROOT
    for name in command.split():
        found = found.commands[name]
    parameter = next(p for p in found.params if option in p.opts)
    values = [] if parameter.is_flag else [VALUE.get(option, "7")]
    needed = [] if command not in ("imatrix", "calibrate", "frontier") or option == "--output" else ["-o", "x"]
    here = parsed(command, option, *values, *needed)
    assert here[parameter.name] not in (None, parameter.default)
    assert parsed(command, other, *values, *needed) == here
    if values and other.startswith("--"):
        assert parsed(command, "--" + other[2:].replace("-", "_"), *values, *needed) == here
        assert parsed(command, f"{other}={values[0]}", *needed) == here


def test_there_are_many() -> None:
    assert len({other for _, _, other in taken()}) + len(VALUES) > 60
    assert len({name for names in ANSWERED for name in names.split()}) > 60


@pytest.mark.parametrize("name", sorted({name for names in ANSWERED for name in names.split()} - {"-f", "--file"}))
def test_what_means_nothing_is_answered(octavo: Run, name: str) -> None:
    assert f"no option {name} here: " in octavo("run", "demo", "hi", name).error()
    assert f"no option {name} here: " in octavo(name, "x").error()


@pytest.mark.parametrize(
    ("typed", "here"),
    [
        ("-no-cnv", "--raw"), ("-n8", "-n 8"), ("-c512", "-c 512"), ("-n=8", "-n 8"), ("-s-1", "-s -1"),
        ("-jf x", "--json-schema x"), ("--format json", '--json-schema {"type":"object"}'), ("-ctv f16", ""),
        ("-ctk q8_0 -ctv q8_0", "--cache-type q8_0"), ("-ctv q8_0 --cache_type=q8_0", "--cache-type q8_0"),
        ("--kv-cache-dtype fp8_e4m3", "--cache-type fp8"), ("--think=false", "--no-think"), ("--think=true", "--think"),
        ("--typical 0.5", "--typical-p 0.5"), ("--top-nsigma 1", "--top-n-sigma 1"), ("-rea on", "--think"),
        ("--lora-scaled a.gguf 0.5", "--lora a.gguf=0.5"), ("--lora-scaled a.gguf:2", "--lora a.gguf=2"),
        ("--device cuda:0", "--device gpu"), ("-dev none", "--device cpu"), ("-t -1", ""), ("-t 0", ""),
        ("--num_gpu 99", "-ngl 99"), ("--num-predict -2", "-n -1"),
        ("-sys -hf", "--system -hf"), ("-- -m", "-- -m"),
    ],
)
def test_other_forms(typed: str, here: str) -> None:
    assert parsed("run", *typed.split()) == parsed("run", *here.split())


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("-m a.gguf -p hi -n 8", "write `octavo run a.gguf hi -n 8 "), ("-hf a/b", "write `octavo run a/b "),
        ("a.gguf -p hi", "write `octavo run a.gguf hi "), ("m -ctv q8_0", "as in --cache-type q8_0"),
        ("m --num-thred 2", "(did you mean --num-thread?)"), ("m --maxtokens 2", "(did you mean --max-tokens?)"),
        ("m -tb 2", "no option -tb here"), ("m -cnv", "no option -cnv here"), ("m --zzz", "No such option: --zzz"),
        ("m -nx", "No such option: -nx"),
        ("m --think=maybe", "--think takes no value"),
    ],
)
def test_what_is_said_instead(octavo: Run, typed: str, said: str) -> None:
    assert said in octavo("run", *typed.split()).error()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("-m a.gguf -p hi -ngl 99 -fa on -tb 2 -c 0 --jinja --no_mmap --device cpu",
         "octavo run a.gguf hi -ngl 99 -c 0 --device cpu`, without -fa, -tb, --jinja and --no-mmap, which it does not"),
        ("-hf a/b -fa --numa=distribute --rope-scale 0.5 --device cpu",
         "write `octavo run a/b --device cpu`, without -fa, --numa and --rope-scale, which it does not need"),
        ("-m a.gguf --jinja hi --device cpu", "write `octavo run a.gguf hi --device cpu`, without --jinja, which"),
        ("-m a.gguf -md b.gguf --device cpu", "write `octavo run a.gguf -md b.gguf --device cpu`\n"),
        ("m hi -fa auto -tb 2 --jinja -c 8", "all scores: leave it out (-tb and --jinja too)\n"),
        ("m -tb 2 -tb 2", "replies alike: leave it out\n"), ("m --jinja -- -fa", "always Jinja: leave it out\n"),
    ],
)
def test_what_can_be_left_out_is_said_once(octavo: Run, typed: str, said: str) -> None:
    assert said in octavo("run", *typed.split()).error() + "\n"


def test_a_command_without_a_model(octavo: Run) -> None:
    for command in (("bench", "gemm", "-m", "64"), ("list", "-m", "a.gguf"), ("bench", "gemm", "8", "-p", "8")):
        assert "No such option: -" in octavo(*command).error()


def test_a_model_before_the_command(octavo: Run) -> None:
    assert "write `octavo run a.gguf hi`" in octavo("-m", "a.gguf", "-p", "hi").error()
    assert "write `octavo run a/b`" in octavo("-hf", "a/b").error()
    assert "comes before the command" in octavo("--temp", "0", "run", "demo").error()


@pytest.mark.parametrize("name", COMMANDS)
def test_others_commands_are_answered(octavo: Run, name: str) -> None:
    assert f"No such command '{name}': there is {COMMANDS[name]}" in octavo(name, "x").error()


def test_commands_of_a_group_are_listed(octavo: Run) -> None:
    assert octavo("eval", "perplexity", "x").error() == (
        "octavo: error: No such command 'octavo eval perplexity' (allowed: ppl, kl, compare, cache, retrieval, demo)"
    )


@pytest.mark.parametrize("name", VERBOSE)
def test_more_is_said_behind_the_command_too(octavo: Run, alphabet: str, name: str) -> None:
    octavo("run", alphabet, "ab", "--raw", "-n", "3", name)
    assert logging.getLogger("octavo").level == logging.INFO


def test_numbers_of_llama_cpp(octavo: Run, alphabet: str) -> None:
    plain = octavo("run", alphabet, "ab", "--raw", "--temp", "0", "--json")
    typed = ("-n -1 -s -1 -c 0 --top-k -1 --repeat-last-n -1 -ngl -1 -t -1").split()
    assert octavo("run", alphabet, "ab", "--raw", "--temp", "0", *typed).out.strip() in plain.out
    assert octavo("run", alphabet, "ab", "--raw", "--temp", "0", "-n", "-2").status == 0
    assert "-n is -3 (allowed: 0 or more, or -1 for no limit)" in octavo("run", alphabet, "ab", "-n", "-3").error()


def test_words_of_a_prompt_need_no_quotes(octavo: Run, alphabet: str) -> None:
    options = ("--raw", "--temp", "0", "-n", "4")
    assert octavo("run", alphabet, "a", *options, "b").out == octavo("run", alphabet, "a b", *options).out


@pytest.mark.parametrize(("typed", "said"), [
    ("batch a b", "Missing argument 'OUT': write `octavo batch MODEL IN OUT`"),
    ("rank demo", "Missing argument 'QUERY': write `octavo rank MODEL QUERY DOCUMENTS`"),
    ("serve demo --port 99999", "Invalid value for '--port' (allowed: 65535 or less)"),
    ("run demo x --replicas 2", "no option --replicas here: `octavo serve` and `octavo batch` have it"),
    ("run demo x --num-gpus 2", "no option --num-gpus here: CUDA_VISIBLE_DEVICES says which GPUs are used"),
])
def test_what_is_missing_or_wrong_is_shown(octavo: Run, typed: str, said: str) -> None:
    assert said in octavo(*typed.split()).error()


def test_an_error_names_what_was_typed(octavo: Run, alphabet: str) -> None:
    assert "error: --num-ctx is 9999999" in octavo("run", alphabet, "ab", "--num-ctx", "9999999").error()
    with pytest.raises(UsageError, match="'--num-ctx' requires an argument"):
        parsed("run", "--num-ctx")
