"""Chat templates give the ids that transformers' apply_chat_template gives, with transformers and without."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.agents import chat_template
from headrace.agents.chat_template import CHATML, CHATML_TOOLS, rendered
from headrace.agents.codec import ByteCodec, TokenizerCodec, describe, described
from headrace.agents.engines.protocol import Completion
from headrace.agents.engines.tiny import tiny_codec
from headrace.agents.episode import Conversation
from headrace.errors import UsageError
from support.chat_templates import TEMPLATES, model_folder

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Say a number <b>&amp; ä</b>",
            "parameters": {"type": "object", "properties": {"digit": {"type": "integer"}}, "required": ["digit"]},
        },
    }
    for name in ("guess", "ask")
]
CALL = {
    "id": "call-1-0",
    "type": "function",
    "function": {"name": "guess", "arguments": {"digit": 3, "why": "ä & <b>"}},
}
SAID: dict[str, Any] = {"role": "assistant", "content": "x"}
USER = {"role": "user", "content": "Say one or two. ä"}
THOUGHT = {"role": "assistant", "content": "<think>abc</think><answer>one</answer>"}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "a question": ([USER], []),
    "system": ([{"role": "system", "content": "Be brief."}, USER], []),
    "turns": ([USER, THOUGHT, USER, THOUGHT, USER], []),
    "blanks": ([{"role": "user", "content": "  one \n"}, {"role": "assistant", "content": " two\n\n"}, USER], []),
    "tools": ([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
               {"role": "tool", "name": "guess", "tool_call_id": "call-1-0", "content": '"more" & ä'}], TOOLS),
    "reasoning": ([USER, SAID | {"reasoning_content": "abc", "tool_calls": [CALL]}], TOOLS),
    "thinking": ([USER, SAID | {"thinking": "abc"}], []),
}  # fmt: skip


@pytest.fixture(params=["transformers", "jinja alone"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "jinja alone":
        monkeypatch.setattr(chat_template, "_theirs", lambda: None)
    return str(request.param)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = model_folder(TEMPLATES[name], tmp_path_factory.mktemp("model"))
        return made[name]

    return folder


def either(call: Callable[..., Any], *about: Any) -> Any:
    """What a call returns, or the message of what it raises."""
    try:
        return call(*about)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_apply_chat_template(name: str, way: str, folders: Callable[[str], Path]) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folders(name))
    ours = TokenizerCodec.from_folder(folders(name))
    seen = 0
    for label, (messages, tools) in CONVERSATIONS.items():
        kept = copy.deepcopy(messages)
        for is_asking in (True, False):
            asked = {"tools": tools or None, "add_generation_prompt": is_asking, "return_dict": False}
            for _ in range(2):  # a date may change between the two
                want = either(lambda said, how: list(theirs.apply_chat_template(said, **how)), messages, asked)
                got = either(lambda *about: ours.encode(ours.render(*about)), messages, is_asking, tools)
                if got == want:
                    break
            assert got == want, f"{name}, {label}"
            seen += isinstance(got, list)
            if isinstance(got, list) and label == "system":
                for feature in TEMPLATES[name].features:
                    assert feature in ours.decode(got)
        assert messages == kept, "messages are read, not changed"
    assert seen >= 4, "it renders most of them"


@pytest.mark.parametrize(
    ("changed", "lost"),
    [({"bos_token": "<|new|>"}, "<|new|>"),
     ({"added_tokens_decoder": {"400": {"content": "<|head|>", "special": True}}}, None),
     ({"added_tokens_decoder": {"400": {"content": "assistant<", "special": True}}}, "assistant<"),
     ({"pad_token": "<|new|>"}, None)],
)  # fmt: skip
def test_special_tokens_that_the_tokenizer_lacks_are_not_spelt_out(
    changed: dict[str, Any], lost: str | None, tmp_path: Path
) -> None:
    """transformers adds those of tokenizer_config.json; a template's BOS would be some letters here."""
    folder = model_folder(TEMPLATES["bos"], tmp_path, **changed)
    if lost is None:
        assert TokenizerCodec.from_folder(folder).eos_id
    else:
        with pytest.raises(UsageError, match=re.escape(f"tokenizer.json lacks {lost!r}")):
            TokenizerCodec.from_folder(folder)


def test_a_folder_without_a_chat_template_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = model_folder(TEMPLATES["bos"], tmp_path)
    (folder / "chat_template.jinja").unlink()
    assert TokenizerCodec.from_folder(folder).template == CHATML
    assert "it has no chat template; ChatML is used" in caplog.text


def test_a_tokenizer_that_was_saved_while_it_cut_and_padded_does_neither(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    """As apply_chat_template, although tokenizer.json says so: a trainer leaves it like that."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folders("bos"))
    theirs([USER["content"]], truncation=True, max_length=8, padding="max_length")
    theirs.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["truncation"]["max_length"] == 8
    ours = TokenizerCodec.from_folder(tmp_path)
    want = theirs.apply_chat_template([USER], add_generation_prompt=True, return_dict=False)
    assert ours.encode(ours.render([USER], True)) == list(want)
    assert len(ours.encode("a")) == 1


def test_what_the_features_are_about_is_in_the_ids(way: str, folders: Callable[[str], Path]) -> None:
    """Each name stands for something that Jinja alone, without transformers' variables and helpers, does not do."""

    def codec(name: str, **variables: Any) -> TokenizerCodec:
        return TokenizerCodec.from_folder(folders(name), variables)

    bos = codec("bos")
    assert bos.encode(bos.render([USER], True))[0] == bos.encode("<|bos|>")[0]
    assert datetime.now().strftime("%Y") in codec("says the date").render([USER], True)
    assert "Today: 1 May 2020" in codec("says the date", date_string="1 May 2020").render([USER], True)
    with pytest.raises(Exception, match="there is no system role here"):
        codec("raises exceptions").render([{"role": "system", "content": "a"}, USER], True)
    with pytest.raises(Exception, match="roles take turns"):
        codec("raises exceptions").render([USER, USER], True)
    assert "<<SYS>>\nBe brief." in codec("folds the system message").render(CONVERSATIONS["system"][0], True)
    assert codec("controls loops").render(CONVERSATIONS["system"][0], True).count("Be brief.") == 1
    assert '"why": "ä & <b>"' in codec("calls tools").render(CONVERSATIONS["tools"][0], True, TOOLS), "no HTML escapes"
    assert "abc" not in codec("strips reasoning").render(CONVERSATIONS["turns"][0], True)
    assert "analysis<|message|>abc" in codec("has channels").render(CONVERSATIONS["thinking"][0], False)
    assert codec("strips reasoning", enable_thinking=False).render([USER], True).endswith("</think>\n\n")
    assert codec("marks generation").render([USER, THOUGHT], False).endswith("</answer><|im_end|>\n")
    assert codec("opens thoughts").render([USER], True).endswith("<|Assistant|><think>\n")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_has_the_templates_ids(name: str, folders: Callable[[str], Path]) -> None:
    """Three turns: one row where the template only appends, a row more for each turn that it rewrites."""
    codec, case = TokenizerCodec.from_folder(folders(name)), TEMPLATES[name]
    conversation = Conversation(codec)
    answer = codec.encode("<think>abc</think><answer>one</answer>")
    if name == "has channels":
        answer = codec.encode("<|channel|>analysis<|message|>abc<|end|><|start|>assistant<|channel|>final<|message|>x")
    for turn in range(3):
        ids = conversation.ask(f"number {turn}")
        assert ids == codec.encode(codec.render(conversation.messages, True)), "what transformers would have sent"
        sampled = [*answer, codec.eos_id]
        conversation.answer(Completion(sampled, [-1.0] * len(sampled), [0] * len(sampled), codec.decode(answer)))
    rows = conversation.rows
    assert len(rows) == (3 if case.rewrites else 1)
    assert sum(int(row.loss_mask.sum()) for row in rows) == 3 * (len(answer) + 1), "every sampled token once"


def test_a_template_without_its_bos_token_is_refused() -> None:
    tokenizer = tiny_codec(["a b"], 300).tokenizer_json
    with pytest.raises(UsageError, match=r"variables=\{'bos_token'"):
        TokenizerCodec(tokenizer, template="{{ bos_token }}{{ messages[0].content }}")
    given = TokenizerCodec(tokenizer, template="{{ bos_token }}{{ messages[0].content }}", variables={"bos_token": "a"})
    assert given.render([USER], True).startswith("aSay")


def test_a_folder_tells_its_stop_ids_and_templates(tmp_path: Path) -> None:
    case = TEMPLATES["bos"]
    codec = TokenizerCodec.from_folder(model_folder(case, tmp_path / "a"))
    assert codec.stop_ids == {codec.encode(one)[0] for one in ("<|eot|>", "<|eom|>")}
    assert codec.eos_id == codec.encode("<|eot|>")[0]
    several = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools {{ tools | length }}"}]
    folder = model_folder(case, tmp_path / "b", chat_template=several)
    (folder / "chat_template.jinja").unlink()
    codec = TokenizerCodec.from_folder(folder)
    assert (codec.render([USER], True), codec.render([USER], True, TOOLS)) == ("plain", "tools 2")
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs.apply_chat_template([USER], tools=TOOLS, tokenize=False) == "tools 2"
    older = json.loads((folder / "tokenizer_config.json").read_text())
    kept = {name: older.pop(name) for name in ("bos_token", "eos_token")}
    (folder / "tokenizer_config.json").write_text(json.dumps(older))
    (folder / "special_tokens_map.json").write_text(
        json.dumps({name: {"content": text} for name, text in kept.items()})
    )
    assert TokenizerCodec.from_folder(folder).variables == codec.variables
    (folder / "special_tokens_map.json").unlink()
    with pytest.raises(UsageError, match="eos_token"):
        TokenizerCodec.from_folder(folder)


def test_a_codec_comes_back_whole(folders: Callable[[str], Path]) -> None:
    codec = TokenizerCodec.from_folder(folders("bos"), {"enable_thinking": False})
    codec.encode("built before it travels")
    for again in (described(describe(codec)), pickle.loads(pickle.dumps(codec))):
        assert again == codec
        assert again.stop_ids == codec.stop_ids
        assert again.render([USER], True) == codec.render([USER], True)
    plain = tiny_codec(["a b"], 300)
    assert set(describe(plain)) == {"kind", "tokenizer_json", "eos", "template"}, "as in logs that were written before"
    assert described(describe(plain)) == plain


def test_our_own_templates_need_no_transformers() -> None:
    """A worker renders ChatML without the 0.7 s that importing transformers takes; the text is the same."""
    messages, tools = CONVERSATIONS["tools"]
    theirs = chat_template._theirs()
    assert theirs is not None
    for template, said, given in ((CHATML, CONVERSATIONS["turns"][0], []), (CHATML_TOOLS, messages, tools)):
        (want,), _ = theirs([said], tools=given or None, chat_template=template, add_generation_prompt=True)
        assert rendered(template, said, True, given) == want
    assert ByteCodec().render(messages, True, tools) == rendered(CHATML_TOOLS, messages, True, tools)
    code = (
        "import sys; from headrace.agents.chat_template import *;"
        "rendered(CHATML_TOOLS, [{'role': 'user', 'content': 'a'}], True);"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
