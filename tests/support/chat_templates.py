"""Ten chat templates, each after a published format and for the sake of one feature; and a model folder for each.

    TEMPLATES[name] -> Case(template, special tokens, stop tokens, does it rewrite earlier turns?)

They are written anew for these tests: the formats are the models', the words are not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORDS = "Say one or two. number 17 <think>abc</think><answer>one || two</answer> system user assistant tool name ä"


@dataclass(frozen=True)
class Case:
    """A template and the special tokens that it is for; `rewrites` if earlier turns do not stay as they were."""

    template: str
    named: dict[str, str]
    more: tuple[str, ...] = ()  # special tokens without a name
    stops: tuple[str, ...] = ()
    rewrites: bool = False
    has_system: bool = True
    features: tuple[str, ...] = field(default=())


_HEADED = {"bos_token": "<|bos|>", "eos_token": "<|eot|>", "pad_token": "<|pad|>"}
_CHATML = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}

TEMPLATES: dict[str, Case] = {
    # Llama 3: the text begins with BOS, heads of roles, contents trimmed.
    "bos": Case(
        """{{ bos_token }}
{%- for message in messages %}
{{- '<|head|>' + message['role'] + '<|/head|>\n\n' + message['content'] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\n\n' }}{% endif %}""",
        _HEADED,
        ("<|head|>", "<|/head|>", "<|eom|>"),
        ("<|eot|>", "<|eom|>"),
        features=("<|bos|>", "<|eot|>"),
    ),
    # Llama 2 and Mistral: no system role, its text goes into the first user message.
    "folds the system message": Case(
        """{% if messages[0].role == 'system' %}
{% set folded = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}
{% set rest = messages[1:] %}
{% else %}
{% set folded, rest = '', messages %}
{% endif %}
{{- bos_token }}
{%- for message in rest %}
{%- if message.role == 'user' %}
{{- '[INST] ' + (folded if loop.first else '') + message.content + ' [/INST]' }}
{%- else %}
{{- message.content + eos_token }}
{%- endif %}
{%- endfor %}""",
        {"bos_token": "<s>", "eos_token": "</s>"},
        ("[INST]", "[/INST]"),
        features=("<s>", "<<SYS>>"),
    ),
    # Gemma: refuses what it does not know, and calls the assistant model.
    "raises exceptions": Case(
        """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('there is no system role here') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles take turns') }}{% endif %}
{{- '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}
{{- message['content'] + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""",
        {"bos_token": "<bos>", "eos_token": "<end_of_turn>"},
        ("<start_of_turn>",),
        has_system=False,
        features=("<bos>", "model\n"),
    ),
    # Qwen 2.5 and Hermes: schemas in the system message, calls as JSON between tags, results in the user's name.
    "calls tools": Case(
        """{%- set first = messages[0].content if messages[0].role == 'system' else 'Be of use.' %}
{{- '<|im_start|>system\n' + first }}
{%- if tools %}
{{- '\n\n<tools>' }}{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}{{ '\n</tools>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' }}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' }}
{%- elif message.role == 'assistant' and message.tool_calls %}
{{- '<|im_start|>assistant' + ('\n' + message.content if message.content else '') }}
{%- for call in message.tool_calls %}
{%- set call = call.function if call.function is defined else call %}
{{- '\n<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}{{ call.arguments | tojson }}{{ '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role != 'system' or not loop.first %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
        _CHATML,
        ("<|im_start|>",),
    ),
    # Qwen 3: thoughts stay out of what comes before the last question.
    "strips reasoning": Case(
        """{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- set text = message.content or '' %}
{%- set thoughts = message.reasoning_content or '' %}
{%- if message.role == 'assistant' and not thoughts and '</think>' in text %}
{%- set thoughts = text.split('</think>')[0].split('<think>')[-1] %}
{%- set text = text.split('</think>')[-1] %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if thoughts and loop.index0 > ns.last %}{{ '<think>' + thoughts + '</think>' }}{% endif %}
{{- text }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}""",
        _CHATML,
        ("<|im_start|>",),
        ("<|im_end|>", "<|pad|>"),
        rewrites=True,
    ),
    # Llama 3.1: today's date, unless one is given.
    "says the date": Case(
        """{{- bos_token }}
{%- if date_string is not defined %}
{%- if strftime_now is defined %}{% set date_string = strftime_now('%d %b %Y') %}
{%- else %}{% set date_string = '26 Jul 2024' %}{% endif %}
{%- endif %}
{{- '<|head|>system<|/head|>\n\nToday: ' + date_string + '\n\n' }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ message.content + eos_token }}{% else %}
{{- eos_token if loop.first }}{{ '<|head|>' + message.role + '<|/head|>\n\n' + message.content + eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\n\n' }}{% endif %}""",
        _HEADED,
        ("<|head|>", "<|/head|>"),
        features=("<|bos|>", "Today: "),
    ),
    # Command R and others: loops that skip and end.
    "controls loops": Case(
        """{%- for message in messages %}
{%- if message.role == 'system' %}{{ '<|head|>' + message.content + '<|/head|>' }}{% break %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'system' %}{% continue %}{% endif %}
{{- '<|turn|>' + message.role | upper + ':' + message.content + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn|>ASSISTANT:' }}{% endif %}""",
        {"eos_token": "<|eot|>"},
        ("<|head|>", "<|/head|>", "<|turn|>"),
        features=("USER:",),
    ),
    # SmolLM3 and templates for fine-tuning: what the assistant said is marked.
    "marks generation": Case(
        """{% for message in messages %}
    {% if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}
        {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}""",
        _CHATML,
        ("<|im_start|>",),
    ),
    # gpt-oss: reasoning in a channel of its own, under another name, and calls in a third one.
    "has channels": Case(
        """{%- macro channel(name, text) %}
{{- '<|start|>assistant<|channel|>' + name + '<|message|>' + text }}
{%- endmacro %}
{%- if tools %}
{{- '<|start|>developer<|message|>' }}
{%- for tool in tools | map(attribute='function') | sort(attribute='name') %}
{{- '// ' + (tool.description or '') + '\ntype ' + tool.name + ' = ' }}
{{- tool.parameters | tojson(indent=1, separators=(',', ':'), sort_keys=true) + '\n' }}
{%- endfor %}
{{- '<|end|>' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- if message.thinking and loop.last %}{{ channel('analysis', message.thinking) + '<|end|>' }}{% endif %}
{%- if message.tool_calls %}
{%- set call = message.tool_calls[0].function %}
{{- channel('commentary to=' + call.name, call.arguments | tojson) }}
{{- '<|call|>' }}
{%- else %}
{{- channel('final', message.content) + '<|return|>' }}
{%- endif %}
{%- elif message.role == 'tool' %}
{{- '<|start|>' + (message.name or 'tool') + '<|message|>' + message.content | tojson + '<|end|>' }}
{%- else %}
{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}""",
        {"eos_token": "<|return|>"},
        ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|call|>"),
        ("<|return|>", "<|call|>"),
        rewrites=True,
    ),
    # DeepSeek R1: the prompt itself opens the thoughts, and earlier ones are cut off.
    "opens thoughts": Case(
        """{{ bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages if message.role == 'system' %}{% set ns.system = ns.system ~ message.content %}{% endfor %}
{{- ns.system }}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<|User|>' + message.content }}
{%- elif message.role == 'assistant' %}{{ '<|Assistant|>' + message.content.split('</think>')[-1] + eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}""",
        {"bos_token": "<|bos|>", "eos_token": "<|eos|>"},
        ("<|User|>", "<|Assistant|>"),
        rewrites=True,
        features=("<|bos|>",),
    ),
}


def model_folder(case: Case, folder: Path, **config: Any) -> Path:
    """A tokenizer of that case, saved as transformers saves it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = list(dict.fromkeys([*case.named.values(), *case.more]))
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 4, trainer)
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=case.template, **case.named)
    saved.save_pretrained(folder)
    if case.stops:
        ids = [tokenizer.token_to_id(one) for one in case.stops]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    if config:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder
