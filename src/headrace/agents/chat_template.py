"""Chat templates: messages and tools to one text, as transformers renders them.

    rendered(template, messages, is_asking, tools, variables)
        ├─ transformers is installed: its own function
        └─ else Jinja alone, with the same variables, helpers (raise_exception, strftime_now, tojson), loop controls,
           {% generation %} blocks and names of reasoning

Templates come with models and are the work of strangers: both ways run them in Jinja's sandbox. CHATML and CHATML_TOOLS
are ours and need no more than Jinja, so a worker that renders nothing else does not import transformers (0.7 s).
Does not know tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

Message = dict[str, Any]  # role and content; also tool_calls, tool_call_id, name, reasoning_content

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_TOOLS = """\
{% if tools %}
{{ '<|im_start|>system\n' + (messages[0].content + '\n\n' if messages[0].role == 'system' else '') }}
{{- 'These tools can be called, one JSON schema a line:\n' }}
{%- for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}
{{ 'Call one as <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>; several calls may follow each other.' }}
{{- '<|im_end|>\n' }}
{%- endif %}
{% for message in messages %}
{% if tools and loop.first and message.role == 'system' %}{% continue %}{% endif %}
{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '\n' if message.content or not loop.first }}{{ '<tool_call>\n{"name": ' + call.function.name | tojson }}
{{- ', "arguments": ' + call.function.arguments | tojson + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""ChatML with tools: for models that have no template of their own and are taught this one."""
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names that a message's reasoning goes by


def rendered(
    template: str,
    messages: Sequence[Message],
    is_asking: bool,
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The template's text; `is_asking` adds the head of the answer to come."""
    theirs = None if template in (CHATML, CHATML_TOOLS) else _theirs()
    given = dict(variables or {})
    if theirs is None:
        return _rendered_here(template, messages, is_asking, tools, given)
    texts, _ = theirs(
        conversations=[list(messages)],
        tools=list(tools) or None,
        chat_template=template,
        add_generation_prompt=is_asking,
        **given,
    )
    return str(texts[0])


@cache
def _theirs() -> Callable[..., Any] | None:
    """transformers' function, where it is installed."""
    try:
        from transformers.utils.chat_template_utils import render_jinja_template
    except ImportError:
        return None
    found: Callable[..., Any] = render_jinja_template
    return found


def _rendered_here(
    template: str,
    messages: Sequence[Message],
    is_asking: bool,
    tools: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
) -> str:
    return str(
        _compiled(template).render(
            messages=[_with_reasoning(one) for one in messages],
            tools=list(tools) or None,
            documents=None,
            add_generation_prompt=is_asking,
            **variables,
        )
    )


def _with_reasoning(message: Message) -> Message:
    """Under every name that templates read it by."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


@lru_cache(16)
def _compiled(template: str) -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}: marks what a model said; the text is the same."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own way

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        """Without Jinja's escapes for HTML."""
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)
