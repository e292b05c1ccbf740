"""Templates written for the tests, with the constructs that the families' own use, and what they render to."""

from __future__ import annotations

from typing import Any

Messages = list[dict[str, Any]]

USER: Messages = [{"role": "user", "content": "Hi"}]
TURNS: Messages = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "<think>\nsum\n</think>\n\nTwo."},
    {"role": "user", "content": "Three?"},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"a": "größer"}}}]
CALL: Messages = [
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "2"},
]

LLAMA_3 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN_2_5 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>' + message.content + '</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN_3 = """\
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not
        (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and reasoning %}
            {{- '<think>' + reasoning.strip('\\n') + '</think>' }}
        {%- endif %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}\
{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + \
'<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

PHI_3 = """\
{% for message in messages %}{{'<|' + message['role'] + '|>' + '\\n' + message['content'] + '<|end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

DEEPSEEK = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=true, system_prompt='') %}\
{%- for message in messages if message['role'] == 'system' %}\
{% set ns.system_prompt = ns.system_prompt + message['content'] %}{%- endfor %}\
{{ bos_token }}{{ ns.system_prompt }}\
{%- for message in messages %}\
{%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is not none %}\
{% set content = message['content'] %}\
{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{%- endif %}\
{%- endfor -%}\
{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"""

MACROS = """\
{%- macro kind(spec) -%}
    {%- if spec is mapping -%}
        { {%- for key, value in spec.items()|sort -%}
            {{ key }}: {{ kind(value) }}{{ ", " if not loop.last }}
        {%- endfor -%} }
    {%- elif spec is iterable and spec is not string -%}
        {{ spec|map("upper")|join("|") }}
    {%- else -%}
        {{ spec|string }}
    {%- endif -%}
{%- endmacro -%}
{%- for message in messages recursive -%}
    {%- if message.role == "skip" %}{% continue %}{% endif -%}
    {%- generation %}{{ message.content }}{% endgeneration -%}
{%- endfor -%}
{{ kind({"b": ["x", "y"], "a": {"n": 1}}) }}
"""

# template, messages, other arguments, expected
CASES: dict[str, tuple[str, Messages, dict[str, Any], str]] = {
    "llama 3": (
        LLAMA_3,
        TURNS[:2],
        {},
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nOne?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "qwen 2.5 with a tool": (
        QWEN_2_5,
        CALL,
        {"tools": TOOLS},
        '<|im_start|>system\n# Tools\n{"type": "function", "function": {"name": "add", "parameters": {"a": "größer"}}}'
        "<|im_end|>\n<|im_start|>user\n1+1<|im_end|>\n"
        '<|im_start|>assistant\n{"name": "add", "arguments": {"a": 1}}<|im_end|>\n'
        "<|im_start|>user\n<tool_response>2</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ),
    "qwen 3": (
        QWEN_3,
        TURNS,
        {"enable_thinking": False},
        "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n"
        "<|im_start|>assistant\nTwo.<|im_end|>\n<|im_start|>user\nThree?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    "qwen 3, thinking": (
        QWEN_3,
        TURNS[1:3],
        {"add_generation_prompt": False},
        "<|im_start|>user\nOne?<|im_end|>\n<think>sum</think><|im_start|>assistant\nTwo.<|im_end|>\n",
    ),
    "mistral": (
        MISTRAL,
        TURNS,
        {},
        "<s>[INST] One?[/INST] <think>\nsum\n</think>\n\nTwo.</s>[INST]  Be brief. \n\nThree?[/INST]",
    ),
    "gemma": (
        GEMMA,
        [*USER, {"role": "assistant", "content": "Ho "}],
        {"add_generation_prompt": False},
        "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHo<end_of_turn>\n",
    ),
    "phi 3": (PHI_3, USER, {}, "<|user|>\nHi<|end|>\n<|assistant|>\n"),
    "phi 3, closed": (PHI_3, USER, {"add_generation_prompt": False}, "<|user|>\nHi<|end|>\n</s>"),
    "deepseek": (
        DEEPSEEK,
        TURNS,
        {},
        "<s> Be brief. <｜User｜>One?<｜Assistant｜>\n\nTwo.<｜end▁of▁sentence｜>"
        "<｜User｜>Three?<｜Assistant｜><think>\n",
    ),
    "macros": (MACROS, [{"role": "skip", "content": "no"}, *USER], {}, "Hi{a: {n: 1}, b: X|Y}"),
}
