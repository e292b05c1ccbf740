"""The ways in which models write calls of tools: a table, from which a row is chosen by what is in a chat template."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from octavo.server.tool_calls import readers
from octavo.server.tool_calls.marked_reader import MARK, MarkedReader
from octavo.server.tool_calls.python_reader import PythonReader
from octavo.server.tool_calls.readers import ArrayReader, MistralReader, NamedReader, ObjectReader
from octavo.server.tool_calls.tag_reader import GLM, INVOKE, SEED, TagReader

HARMONY_CALL = "<|channel|>commentary to=functions."
"""What begins a call of gpt-oss; other orders of its header are brought into this one, see `Channels`."""


@dataclass(frozen=True)
class ToolFormat:
    """A way in which models write calls.

    reader     reads calls
    tells      one of these is in a chat template that has it
    also       this is in the template, too
    opens      what begins calls; of `kept` the reader takes a part itself
    closes     what may come after them
    bare       a reply may begin with a call whose first character is this
    separates  what may stand between two calls that are not marked
    call       a call as it is to be written: NAME, ARGUMENTS and NUMBER stand for what differs
    joint      what is written between two calls; None where a reply has one call
    around     what is written before the first and after the last call
    parameter  where ARGUMENTS are not JSON, one of them: KEY and VALUE stand for what differs
    never      what the name of such a parameter can't have in it, each character of it
    comma      what is written between two of these
    raw        values that are texts are written as they are, not as JSON
    words      models may write booleans and null as Python does: True, False and None
    literals   and lists and objects, too: ['a', True]
    tight      some models of this format write no line ends around tags: each of these may be left out
    mark       what is written around texts in values, and around names of members that can't be read without
    thinks     what is written around thinking that comes before calls, where calls are not in the reply's answer
    answers    what is written before an answer that is not a call
    """

    name: str
    reader: Callable[[readers.Tools], readers.Reader]
    tells: tuple[str, ...] = ()
    also: str = ""
    opens: tuple[str, ...] = ()
    kept: str = ""
    closes: tuple[str, ...] = ()
    bare: str = ""
    separates: str = ""
    call: str = '{"name": "NAME", "arguments": ARGUMENTS}'
    joint: str | None = ", "
    around: tuple[str, str] = ("", "")
    parameter: str = ""
    never: str = ""
    comma: str = ""
    raw: bool = False
    words: bool = False
    literals: bool = False
    tight: bool = False
    mark: str = ""
    thinks: tuple[str, str] = ("", "")
    answers: str = ""

    @property
    def example(self) -> str:
        """A call with dots for what differs."""
        one = self.call.replace("NAME", "...").replace("ARGUMENTS", "{...}").replace("NUMBER", "0")
        return one.join(self.around)

    def carries(self, name: str) -> bool:
        """Whether calls can have a parameter of this name, so that it is read as it is."""
        if self.mark:
            return self.mark not in name
        return not self.parameter or (bool(name) and name == name.strip() and not set(self.never) & set(name))

    @property
    def allowed(self) -> str:
        """What names of parameters there may be, in words."""
        if self.mark:
            return f"names without {self.mark!r}"
        return f"names of at least one character, with no space at their ends, and none of {self.never!r}"


_DEEPSEEK = re.compile(
    r"\s*(?:<｜tool▁call▁begin｜>)?\s*(?:function<｜tool▁sep｜>(?P<typed>[^<\s]+)\s*(?:```json)?|(?P<name>[^<\s]+)<｜tool▁sep｜>)\s*"
)
_KIMI = re.compile(
    r"\s*(?:<\|tool_call_begin\|>)?\s*(?:functions\.)?(?P<name>[^<\s]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*"
)
_FUNCTION = re.compile(r"<function=(?P<name>[^>\s]+)>\s*")
_HARMONY = re.compile(r"(?P<name>[^<\s]+)[^{]*<\|message\|>\s*")
_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_CLOSES = ("```", "<｜tool▁call▁end｜>", _SECTION[1])
_HERMES = '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>'

FORMATS = (
    ToolFormat("harmony", partial(NamedReader, head=_HARMONY), tells=("<|channel|>",), opens=(HARMONY_CALL,),
               call=HARMONY_CALL + "NAME <|constrain|>json<|message|>ARGUMENTS", joint=None,
               thinks=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
               answers="<|channel|>final<|message|>"),
    ToolFormat("deepseek_v3", partial(NamedReader, head=_DEEPSEEK), tells=("<｜tool▁sep｜>",), also="```json",
               opens=(_SECTION[0], "<｜tool▁call▁begin｜>"), closes=_DEEPSEEK_CLOSES,
               call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```<｜tool▁call▁end｜>",
               joint="\n", around=_SECTION),
    ToolFormat("deepseek_v31", partial(NamedReader, head=_DEEPSEEK), tells=("<｜tool▁sep｜>",),
               opens=(_SECTION[0], "<｜tool▁call▁begin｜>"), closes=_DEEPSEEK_CLOSES,
               call="<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>", joint="", around=_SECTION),
    ToolFormat("kimi_k2", partial(NamedReader, head=_KIMI), tells=("<|tool_call_argument_begin|>",),
               opens=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
               closes=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
               call="<|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>",
               joint="", around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
    ToolFormat("glm", partial(TagReader, tags=GLM), tells=("<arg_key>",), opens=("<tool_call>",),
               call="<tool_call>NAME\nARGUMENTS</tool_call>", joint="\n", raw=True, tight=True, never="<",
               around=("\n", ""), parameter="<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n"),
    ToolFormat("minimax_m2", partial(TagReader, tags=INVOKE), tells=("<minimax:tool_call>",),
               opens=("<minimax:tool_call>", "<invoke name="), kept="<invoke name=", closes=("</minimax:tool_call>",),
               call='<invoke name="NAME">\nARGUMENTS</invoke>\n', joint="", raw=True,
               around=("<minimax:tool_call>\n", "</minimax:tool_call>"),
               parameter='<parameter name="KEY">VALUE</parameter>\n', never='"\n'),
    ToolFormat("gemma4", MarkedReader, tells=("<|tool_call>call:",), opens=("<|tool_call>",), closes=("<tool_call|>",),
               call="<|tool_call>call:NAME{ARGUMENTS}<tool_call|>", joint="", parameter="KEY:VALUE", comma=",",
               mark=MARK),
    ToolFormat("mistral", MistralReader, tells=("[TOOL_CALLS]",), also="[ARGS]", opens=("[TOOL_CALLS]",),
               call="[TOOL_CALLS]NAME[ARGS]ARGUMENTS", joint=""),
    ToolFormat("mistral_list", MistralReader, tells=("[TOOL_CALLS]",), opens=("[TOOL_CALLS]",),
               around=("[TOOL_CALLS][", "]")),
    ToolFormat("granite", ArrayReader, tells=("<|tool_call|>",), opens=("<|tool_call|>",), closes=("<|/tool_call|>",),
               around=("<|tool_call|>[", "]")),
    ToolFormat("nemotron", ArrayReader, tells=("<TOOLCALL>",), opens=("<TOOLCALL>",), closes=("</TOOLCALL>",),
               around=("<TOOLCALL>[", "]</TOOLCALL>")),
    ToolFormat("jamba", ArrayReader, tells=("<tool_calls>",), opens=("<tool_calls>",), closes=("</tool_calls>",),
               around=("<tool_calls>[", "]</tool_calls>")),
    ToolFormat("seed_oss", partial(TagReader, tags=SEED), tells=("<seed:tool_call>",),
               opens=("<seed:tool_call>", "<function="), kept="<function=", closes=("</seed:tool_call>",), joint="\n",
               raw=True, words=True, literals=True, parameter="<parameter=KEY>VALUE</parameter>\n", never=">\n",
               call="<seed:tool_call>\n<function=NAME>\nARGUMENTS</function>\n</seed:tool_call>"),
    ToolFormat("functionary", partial(NamedReader, head=_FUNCTION), tells=("<function=example_function_name>{",),
               opens=("<function=",), kept="<function=", closes=("</function>",), joint="",
               call="<function=NAME>ARGUMENTS</function>"),
    ToolFormat("xml", TagReader, tells=("<function=",), opens=("<tool_call>", "<function="), kept="<function=",
               closes=("</tool_call>",), joint="\n", raw=True, words=True, never=">\n",
               parameter="<parameter=KEY>\nVALUE\n</parameter>\n",
               call="<tool_call>\n<function=NAME>\nARGUMENTS</function>\n</tool_call>"),
    ToolFormat("hermes", ObjectReader, tells=("<tool_call>",), opens=("<tool_call>",), closes=("</tool_call>",),
               call=_HERMES, joint="\n"),
    ToolFormat("pythonic", PythonReader, tells=("<|tool_call_start|>", "<|python_start|>", "func_name1("),
               opens=("<|tool_call_start|>", "<|python_start|>"), closes=("<|tool_call_end|>", "<|python_end|>"),
               bare="[", call="NAME(ARGUMENTS)", around=("[", "]"), parameter="KEY=VALUE", never="=,()[]{}'\"",
               comma=", ", words=True),
    ToolFormat("llama3", ObjectReader, tells=("<|python_tag|>", '"parameters"'), opens=("<|python_tag|>",), bare="{",
               separates=";,", call='{"name": "NAME", "parameters": ARGUMENTS}', joint="; "),
)
GENERIC = ToolFormat("generic", ObjectReader, opens=("<tool_call>",), closes=("</tool_call>",), call=_HERMES,
                     joint="\n")
"""For templates that know no calls, or have a format that is not listed."""


def format_of(template: str) -> ToolFormat:
    """How a model writes calls, by its chat template."""
    if "tool_calls" not in template and not tells_tools(template):
        return GENERIC
    told = (f for f in FORMATS if any(marker in template for marker in f.tells) and f.also in template)
    return next(told, GENERIC)


def tells_tools(template: str) -> bool:
    """Whether a chat template writes down which tools there are. Some have calls and results only."""
    return "tools" in template
