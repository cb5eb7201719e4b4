"""The prompt that a model reads."""

from __future__ import annotations

import json

import pytest

from nemo_ada.errors import UserError
from nemo_ada.tasks.prompting import (
    CONTRACT,
    ModelTokenizer,
    PromptFormat,
    find_differences,
    read_contract,
    read_max_positions,
)
from nemo_ada.tasks.tokenizer import CharTokenizer
from nemo_ada.verify.judge import make_judge

TEMPLATE = (
    "{% for m in messages %}⟨pad⟩{{ m.role }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    CharTokenizer().write_hf(folder)
    return folder


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    CharTokenizer().write_hf(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    return folder


def test_a_plain_prompt_is_the_problem_and_its_suffix(plain):
    tokenizer = ModelTokenizer(plain, PromptFormat(suffix="="))
    assert tokenizer.encode("1+2") == CharTokenizer().encode("1+2=")
    assert tokenizer.eos_id == CharTokenizer.eos_id


def test_the_template_is_applied_once(chat):
    tokenizer = ModelTokenizer(chat, PromptFormat(system="think", suffix="="))
    inner = CharTokenizer().encode
    expected = [0, *inner("system:think;"), 0, *inner("user:1+2=;a:")]
    assert tokenizer.encode("1+2") == expected
    assert ModelTokenizer(chat, PromptFormat("plain")).encode("1+2") == inner("1+2")


def test_a_problem_that_holds_the_templates_markers_is_refused(chat):
    with pytest.raises(ValueError, match="contains the special token"):
        ModelTokenizer(chat).encode("⟨pad⟩user:1+2;a:")


def test_text_that_the_tokenizer_does_not_keep_is_refused(plain):
    with pytest.raises(ValueError, match=r"loses characters of its text \('é'\)"):
        ModelTokenizer(plain).encode("caf\u00e9")


def test_ids_without_a_character_do_not_look_like_an_answer(plain):
    tokenizer = ModelTokenizer(plain)
    assert tokenizer.decode(CharTokenizer().encode("42")) == "42"
    assert (
        make_judge("exact").verdicts([(tokenizer.decode([*CharTokenizer().encode("42"), 900]), "42", True)])[0].label
        == 0
    )


@pytest.mark.parametrize(
    ("prompt_format", "message"),
    [(PromptFormat("chat"), "has no chat template"), (PromptFormat(system="think"), "needs a chat template")],
)
def test_a_format_that_the_tokenizer_cannot_give_is_refused(plain, prompt_format, message):
    with pytest.raises(UserError, match=message):
        ModelTokenizer(plain, prompt_format).encode("1")


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(UserError, match="no Hugging Face model folder"):
        read_max_positions(tmp_path)


THINKING = "{% if enable_thinking is defined and not enable_thinking %}x{% endif %}" + TEMPLATE


def with_config(folder, source, **changes):
    folder.mkdir()
    CharTokenizer().write_hf(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_arguments_reach_the_chat_template(tmp_path):
    folder = with_config(tmp_path / "m", None, chat_template=THINKING)
    usual, quiet = (
        ModelTokenizer(folder),
        ModelTokenizer(folder, PromptFormat(chat_template_kwargs={"enable_thinking": False})),
    )
    assert quiet.encode("1") == [*CharTokenizer().encode("x"), *usual.encode("1")]
    assert quiet != usual and len({quiet, usual}) == 2


def test_bos_stays_without_a_chat_template(tmp_path):
    from tokenizers import processors
    from transformers import AutoTokenizer

    folder = with_config(tmp_path / "llama", None, bos_token="⟨eos⟩")
    slow = AutoTokenizer.from_pretrained(folder)
    bos = slow.eos_token_id
    slow.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="⟨eos⟩ $A", special_tokens=[("⟨eos⟩", bos)]
    )
    slow.save_pretrained(folder)
    own = ModelTokenizer(folder)
    assert own.encode("1+2") == [bos, *CharTokenizer().encode("1+2")] and own.make_contract()["bos"] == [bos]


def test_every_stop_token_of_generation_config_ends_a_response(tmp_path):
    folder = with_config(tmp_path / "m", None)
    assert ModelTokenizer(folder).stop_ids == (CharTokenizer.eos_id,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, CharTokenizer.eos_id]}))
    assert ModelTokenizer(folder).stop_ids == (CharTokenizer.eos_id, 5)
    (folder / "generation_config.json").write_text("[")
    with pytest.raises(UserError, match=r"generation_config\.json cannot be read"):
        ModelTokenizer(folder).stop_ids  # noqa: B018


def test_special_tokens_reach_the_reward_where_they_are_asked_for(chat):
    ids = [0, *CharTokenizer().encode("42")]
    assert ModelTokenizer(chat).decode(ids) == "42"
    assert ModelTokenizer(chat, PromptFormat(keep_special_tokens=True)).decode(ids) == "⟨pad⟩42"


def test_a_copied_tokenizer_says_what_its_prompts_were_and_differences_have_names(chat, tmp_path):
    ModelTokenizer(chat, PromptFormat(system="think")).write_hf(tmp_path)
    before = read_contract(tmp_path)
    assert before["chat_template"] == TEMPLATE and before["stop_ids"] == [CharTokenizer.eos_id]
    assert find_differences(before, ModelTokenizer(tmp_path, PromptFormat(system="think")).make_contract()) == []
    (found,) = find_differences(before, ModelTokenizer(tmp_path).make_contract())
    assert found == 'system was "think" and is null'
    found = find_differences(before, ModelTokenizer(tmp_path, PromptFormat("plain")).make_contract())
    assert any(one.startswith("chat_template_sha256 was") for one in found)
    (tmp_path / CONTRACT).write_text("[")
    assert read_contract(tmp_path) is None
