"""The prompt that a model reads."""

from __future__ import annotations

import json

import pytest

from nemo_ada.errors import UserError
from nemo_ada.tasks.prompting import ModelTokenizer, PromptFormat, positions
from nemo_ada.tasks.tokenizer import CharTokenizer
from nemo_ada.verify.judge import Judge

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
    assert Judge("exact").verdicts([(tokenizer.decode([*CharTokenizer().encode("42"), 900]), "42", True)])[0].label == 0


@pytest.mark.parametrize(
    ("prompt_format", "message"),
    [(PromptFormat("chat"), "has no chat template"), (PromptFormat(system="think"), "needs a chat template")],
)
def test_a_format_that_the_tokenizer_cannot_give_is_refused(plain, prompt_format, message):
    with pytest.raises(UserError, match=message):
        ModelTokenizer(plain, prompt_format).encode("1")


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(UserError, match="no Hugging Face model folder"):
        positions(tmp_path)
