"""Chat templates: messages to the prompt text that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from octavo.errors import TemplateError
from octavo.text.fields import Fields
from octavo.text.template_clock import dates

# ChatML, for models that carry no template: https://github.com/openai/openai-python (chatml.md, 2023).
DEFAULT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_KEY = "tokenizer.chat_template"
TOOL_USE = "tool_use"
"""What the template is called that is for requests with tools, where there is one beside others."""


WORLD_TEMPLATE = (
    "{% for message in messages %}"
    "{{ {'system': 'System', 'user': 'User', 'assistant': 'Assistant'}[message['role']] + ': ' }}"
    "{{ message['content'] | trim + '\n\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""RWKV World's, in which an empty line ends a turn (RWKV-v7/RWKV7-G1x-templates.txt of github.com/BlinkDL/RWKV-LM)."""
_NAMED = {"rwkv-world": WORLD_TEMPLATE}
"""Templates that files name, where others have a template's text."""


class ChatTemplate:
    """A Jinja chat template as model files carry them, run in a sandbox with limits on time and size.

    Templates come from model files, so they are not trusted: attributes that lead to Python's internals, and templates
    that run or grow too long, are a TemplateError. Rendering works in any thread, and in several at once.
    """

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        """Compile `source`. Raises TemplateError, with the line, for a template that is invalid or too long."""
        from octavo.text.sandbox import SandboxedTemplate

        self.source = source
        self._special = {"bos_token": bos_token, "eos_token": eos_token}
        self._template = SandboxedTemplate(source)

    @property
    def variables(self) -> Set[str]:
        """Names of what it looks for and does not set itself, functions among them."""
        return self._template.variables

    def render(self, /, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **extra: Any) -> str:
        """The prompt for `messages` (each with "role" and "content"), open for an answer if `add_generation_prompt`.

        `extra`: further variables of the template, such as `tools` or `enable_thinking`; plain data only. Where
        `date_string` and `datetime` are not among them they are today's date. Raises TemplateError, with the line, for
        what the template refuses or fails at.
        """
        own = {"messages": messages, "add_generation_prompt": add_generation_prompt, **self._special}
        variables = {**dates(), **own, **extra}
        return self._template.render(variables)


def read_templates(fields: Fields) -> dict[str, str]:
    """The templates that a file carries by name; the one without a name is ""."""
    found = {}
    for key in fields:
        if key == _KEY or key.startswith(f"{_KEY}."):
            text = fields.text(key) or ""
            found[key[len(_KEY) + 1 :]] = _NAMED.get(text, text)
    return found


def find_template(templates: Mapping[str, str], name: str | None = None) -> str:
    """The source of the template called `name`; without a name, or as "default", the nameless one, or else ChatML.

    Raises TemplateError for a name that is not there.
    """
    if name is None or (name == "default" and "" in templates):
        return templates.get("") or templates.get("default") or DEFAULT_TEMPLATE
    if name not in templates:
        known = ", ".join(sorted({n or "default" for n in templates})) or "none"
        raise TemplateError(f"the model has no chat template called {name!r} (allowed: {known})")
    return templates[name]
