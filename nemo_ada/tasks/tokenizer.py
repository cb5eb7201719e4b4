"""A character tokenizer that is fast in plain Python and exports to Hugging Face with the same ids.

Id 0 is pad, id 1 is end of sequence, and then each character has an id. Every task starts from the same 62 characters,
so its vocabulary has 64 ids. Other characters of a data file extend it. The vocabulary grows in multiples of 64, which
usual tensor-parallel sizes divide.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import AnyStr

from nemo_ada.errors import UserError
from nemo_ada.run.files import write_atomically

BASE_CHARSET = string.digits + string.ascii_lowercase + " ?=+-*/().,:;!'\"<>[]_%^&|#"
VOCAB_MULTIPLE = 64
MAX_SYMBOLS = 1024
PAD_ID, EOS_ID = 0, 1
# U+27E8 and U+27E9 cannot occur in a charset, so no text can spell a special token.
PAD_TOKEN, EOS_TOKEN = "\u27e8pad\u27e9", "\u27e8eos\u27e9"
UNKNOWN = "\ufffd"


class CharTokenizer:
    """One id per character of `charset`, in its order, after pad (0) and end of sequence (1).

    Attributes:
        charset: The characters.

    Raises:
        UserError: The charset has a repeated or reserved character, or more than `MAX_SYMBOLS` symbols.
    """

    pad_id = PAD_ID
    eos_id = EOS_ID
    stop_ids = (EOS_ID,)

    def __init__(self, charset: str = BASE_CHARSET) -> None:
        if len(set(charset)) != len(charset):
            raise UserError("the charset of a character tokenizer holds a character twice; list each one once")
        if reserved := sorted(set(charset) & set(PAD_TOKEN[0] + PAD_TOKEN[-1] + UNKNOWN)):
            raise UserError(
                f"the characters {reserved} are reserved by the character tokenizer; remove them from the data"
            )
        if len(charset) + 2 > MAX_SYMBOLS:
            raise UserError(
                f"the data has {len(charset)} different characters, a character tokenizer takes at most "
                f"{MAX_SYMBOLS - 2}; use a data file in one script"
            )
        self.charset = charset
        self._id_of = {char: i + 2 for i, char in enumerate(charset)}
        self._text_of = ["", "", *charset]
        self._parts = len(_list_parts([char.encode() for char in charset]))

    @classmethod
    def cover(cls, texts: Iterable[str]) -> CharTokenizer:
        """Return a tokenizer for the base charset and every other character of `texts`, in the order of code points."""
        extra = set().union(*texts) - set(BASE_CHARSET)
        return cls(BASE_CHARSET + "".join(sorted(extra)))

    @property
    def symbols(self) -> int:
        """Number of ids: two special ones, one per character, and those for parts of characters in the export."""
        return len(self._text_of) + self._parts

    @property
    def vocab_size(self) -> int:
        """Number of rows of the embedding: `symbols` rounded up to a multiple of 64."""
        return -(-self.symbols // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    def encode(self, text: str) -> list[int]:
        """Ids of the characters, without an end of sequence. Raises UserError for a character outside the charset."""
        try:
            return [self._id_of[char] for char in text]
        except KeyError:
            missing = "".join(sorted(set(text) - set(self.charset)))
            raise UserError(
                f"the text {text[:60]!r} has characters outside the tokenizer's charset: {missing!r}; "
                f"use {self.charset!r}"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """Return text of the ids.

        Pad and end of sequence give nothing. Unknown ids give U+FFFD, so no answer matches.
        """
        texts = self._text_of
        return "".join([texts[i] if 0 <= i < len(texts) else UNKNOWN for i in ids])

    def line_ends(self) -> tuple[int, ...]:
        """Return the id of the line break, if the charset has one."""
        return (self._id_of["\n"],) if "\n" in self._id_of else ()

    def write_hf(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json for `transformers.AutoTokenizer.from_pretrained(folder)`.

        The file describes a byte-level BPE with one token per character. Only this form gives the same ids both alone
        and beside a Qwen2 config.json, where transformers 5 rebuilds Qwen2's tokenizer from the vocabulary and the
        merges. A character of several bytes needs a chain of merges. The parts of the chain are tokens too, and their
        ids follow the charset's. Qwen2 composes characters (NFC), so this tokenizer does as well.
        """
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        spelled = [level.pre_tokenize_str(char)[0][0] for char in self.charset]  # one character per byte
        tokens = {PAD_TOKEN: PAD_ID, EOS_TOKEN: EOS_ID} | {text: i + 2 for i, text in enumerate(spelled)}
        tokens |= {part: len(self._text_of) + k for k, part in enumerate(_list_parts(spelled))}
        merges = [(text[:k], text[k]) for text in spelled for k in range(1, len(text))]
        tokenizer = Tokenizer(models.BPE(tokens, list(dict.fromkeys(merges))))
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = level
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD_TOKEN, EOS_TOKEN)])
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD_TOKEN,
            "eos_token": EOS_TOKEN,
            "unk_token": None,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
        }
        path = folder / "tokenizer_config.json"
        write_atomically(path, json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def _list_parts(characters: Sequence[AnyStr]) -> list[AnyStr]:
    """Return the prefixes and the later bytes of characters of several bytes. The export needs them as tokens."""
    return list(dict.fromkeys(
        part for char in characters
        for part in [char[:k] for k in range(1, len(char))] + [char[k : k + 1] for k in range(1, len(char))]
    ))  # fmt: skip
