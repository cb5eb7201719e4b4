"""The character tokenizer: what it encodes it decodes, and Hugging Face reads the same ids from its export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.errors import UserError
from nemo_ada.tasks.tokenizer import BASE_CHARSET, CharTokenizer

BASE = CharTokenizer()


@given(st.text(alphabet=BASE_CHARSET))
def test_decoding_inverts_encoding(text: str) -> None:
    ids = BASE.encode(text)
    assert len(ids) == len(text)
    assert all(2 <= i < BASE.symbols for i in ids)
    assert BASE.decode(ids) == text


@given(
    st.lists(st.text(st.characters(exclude_characters="\u27e8\u27e9\ufffd", exclude_categories=["Cs"]), max_size=20))
)
def test_a_tokenizer_covering_some_texts_round_trips_them(texts: list[str]) -> None:
    tokenizer = CharTokenizer.cover(texts)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
    assert tokenizer.vocab_size % 64 == 0
    assert tokenizer.vocab_size >= tokenizer.symbols


def test_one_character_more_adds_64_rows_and_keeps_the_old_ids() -> None:
    larger = CharTokenizer.cover(["A=b"])
    assert [(t.symbols, t.vocab_size) for t in (BASE, larger)] == [(64, 64), (65, 128)]
    assert larger.encode("z9=") == BASE.encode("z9=")


def test_special_and_unknown_ids_cannot_complete_an_answer() -> None:
    seven = BASE.encode("7")
    assert BASE.decode([*seven, BASE.eos_id, BASE.pad_id]) == "7"
    assert BASE.decode([*seven, 64, 1000]) == "7\ufffd\ufffd"
    assert BASE.decode([-1]) == "\ufffd"


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: BASE.encode("2+2=É"), "É"),
        (lambda: CharTokenizer("aba"), "twice"),
        (lambda: CharTokenizer("a\u27e8"), "reserved"),
        (lambda: CharTokenizer("".join(map(chr, range(0x4E00, 0x4E00 + 1023)))), "1022"),
    ],
)
def test_a_text_or_charset_that_cannot_work_is_a_user_error(make: object, names: str) -> None:
    with pytest.raises(UserError, match=names):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("with_model_config", [False, True])
@pytest.mark.parametrize("extra", ["", "AZ\n\té<>", "\x00\x7f\xad", "日本語 ελ 🙂😀"])
def test_hugging_face_reads_the_same_ids(tmp_path: Path, extra: str, with_model_config: bool) -> None:
    transformers = pytest.importorskip("transformers")
    ours = CharTokenizer.cover([extra])
    ours.write_hf(tmp_path)
    if with_model_config:  # beside a model, the model's type must not choose another tokenizer
        config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": ours.vocab_size}
        (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("243?3???1324?21?=", "fetidly=", "  two  spaces ", "<pad><eos>", "a , b . c ' s", extra, ours.charset):
        assert theirs(text)["input_ids"] == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == text
    assert (theirs.pad_token_id, theirs.eos_token_id, len(theirs)) == (ours.pad_id, ours.eos_id, ours.symbols)
    assert theirs.decode([*ours.encode("7"), ours.eos_id, ours.pad_id], skip_special_tokens=True) == "7"
