"""Convert a problem to the token ids that a Hugging Face model reads, and token ids back to text.

Only this module applies the chat template. Data sets keep the plain problem. A problem that already contains a
template's markers (special tokens of the tokenizer) is refused, because a second template would train on prompts that
no user writes. The authors' scripts apply the template twice.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from nemo_ada.core.schema import STRICT
from nemo_ada.errors import UserError
from nemo_ada.run.files import MAX_TEXT, duplicate, json_of, open_to_read, read_bounded, read_json, write_atomically
from nemo_ada.run.folder import CONTRACT
from nemo_ada.run.inputs import TOKENIZER
from nemo_ada.run.limited import Limited
from nemo_ada.run.torch_parts import hide_cuda_parts
from nemo_ada.tasks.protocol import make_canonical
from nemo_ada.tasks.tokenizer import UNKNOWN

TEMPLATE_SECONDS = 20.0  # of a core, for one prompt; the sandbox of templates has no limit of its own
SHOWN = 60  # characters of a setting in a message
TOKENIZER_FILES = (*TOKENIZER, "chat_template.jinja", "generation_config.json")

Template = Literal["auto", "chat", "plain"]


@dataclass(frozen=True)
class PromptFormat:
    """The settings of how a problem becomes a prompt for a Hugging Face model. Small base models use none of them."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    template: Template = "auto"
    """`auto` uses the tokenizer's chat template if there is one, `chat` needs one, `plain` uses none."""
    system: str | None = None
    """System message of the chat."""
    suffix: str = ""
    """Text after every problem."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict, hash=False)
    """Arguments of the chat template, such as `enable_thinking: false`. The key is NeMo-RL's."""
    keep_special_tokens: bool = False
    """Whether the verifier or the reward sees special tokens in a response. NeMo-RL leaves them out."""


@lru_cache(maxsize=1)
def _start_renderer(seconds: float) -> Limited:
    """Return the process that renders chat templates."""
    return Limited("nemo_ada.tasks.template:render", seconds)


class ModelTokenizer:
    """The tokenizer of a Hugging Face folder or id. Its first use imports transformers.

    Two tokenizers are equal when their folders and formats are. Pickling stores only these two, and another process
    reads the files again.

    Attributes:
        folder: Folder or hub id.
        format: How a problem becomes a prompt.
    """

    def __init__(self, folder: str | Path, prompt_format: PromptFormat | None = None) -> None:
        self.folder, self.format = str(folder), prompt_format or PromptFormat()

    def __reduce__(self) -> tuple[type[ModelTokenizer], tuple[str, PromptFormat]]:
        return ModelTokenizer, (self.folder, self.format)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelTokenizer) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    @cached_property
    def name(self) -> str:
        """Name for data cards: the folder's name, and 16 hex digits of its tokenizer.json if there is one."""
        path = Path(self.folder) / "tokenizer.json"
        digest = f" {hashlib.sha256(read_bounded(path, MAX_TEXT)).hexdigest()[:16]}" if path.is_file() else ""
        return Path(self.folder).name + digest

    def encode(self, text: str) -> list[int]:
        """Ids of the whole prompt.

        Raises:
            ValueError: The tokenizer would lose characters, or the text contains a template's markers.
        """
        for marker in self._markers:
            if marker in text:
                raise ValueError(f"contains the special token {marker!r}; give the problem without chat template")
        plain = text + self.format.suffix
        ids = self._encode_lossless(plain)
        if not self._chat:
            return [*self._bos, *ids]
        messages = [{"role": "system", "content": self.format.system}] if self.format.system else []
        messages.append({"role": "user", "content": plain})
        arguments = {**self._tokenizer.special_tokens_map, **self.format.chat_template_kwargs}
        try:
            whole = _start_renderer(TEMPLATE_SECONDS).ask(self._tokenizer.get_chat_template(), messages, arguments)
        except UserError as problem:
            raise UserError(
                f"the chat template of {self.folder} refuses the prompt: {problem}; change the system message or "
                "chat_template_kwargs, or use --template=plain"
            ) from None
        return [int(i) for i in self._tokenizer(whole, add_special_tokens=False)["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """Return text, without special tokens unless the format keeps them.

        An unknown id gives U+FFFD: no answer matches.
        """
        size = len(self._tokenizer)
        known = [i for i in ids if i < size]
        text = str(self._tokenizer.decode(known, skip_special_tokens=not self.format.keep_special_tokens))
        return text if len(known) == len(ids) else text + UNKNOWN

    @property
    def eos_id(self) -> int:
        """The id that ends a response."""
        stop = self._tokenizer.eos_token_id
        if stop is None:
            raise UserError(f"the tokenizer of {self.folder} has no end-of-sequence token; set eos_token in its files")
        return int(stop)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """All ids that end a response: the tokenizer's, and those of generation_config.json, as vLLM takes them."""
        path = Path(self.folder) / "generation_config.json"
        try:
            listed = json_of(path).get("eos_token_id") if path.is_file() else None
        except (OSError, ValueError, AttributeError) as problem:
            raise UserError(f"{path} cannot be read: {problem}") from None
        more = listed if isinstance(listed, list) else [listed]
        return tuple(dict.fromkeys([self.eos_id, *(int(stop) for stop in more if stop is not None)]))

    def make_contract(self) -> dict[str, Any]:
        """Return what a prompt and the end of a response depend on, for comparisons with `find_differences`."""
        template = getattr(self._tokenizer, "chat_template", None) if self._chat else None
        return {
            **asdict(self.format),
            "template": "chat" if self._chat else "plain",
            "chat_template": template,
            "chat_template_sha256": None if template is None else hashlib.sha256(str(template).encode()).hexdigest(),
            "bos": list(self._bos),
            "stop_ids": list(self.stop_ids),
        }

    @property
    def pad_id(self) -> int:
        """The id that fills rows. No computation reads it."""
        pad = self._tokenizer.pad_token_id
        return self.eos_id if pad is None else int(pad)

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return 1 + max(self._tokenizer.get_vocab().values())

    def line_ends(self) -> tuple[int, ...]:
        """Return the ids whose text contains a line break."""
        ids = range(len(self._tokenizer))
        return tuple(
            i for i, text in zip(ids, self._tokenizer.batch_decode([[i] for i in ids]), strict=True) if "\n" in text
        )

    def write_hf(self, folder: Path) -> None:
        """Copy the tokenizer's files, chat template included, for `transformers.AutoTokenizer`."""
        for name in TOKENIZER_FILES:
            path = Path(self.folder) / name
            if path.is_file():
                duplicate(path, folder / name)
        write_atomically(folder / CONTRACT, json.dumps(self.make_contract(), indent=1, ensure_ascii=False) + "\n")

    def _encode_lossless(self, text: str) -> list[int]:
        """Ids of a text. Raises ValueError when they do not decode to the same text."""
        ids = [int(i) for i in self._tokenizer.encode(text, add_special_tokens=False)]
        back = str(self._tokenizer.decode(ids))
        if make_canonical(back) != make_canonical(text):
            lost = sorted(set(text) - set(back))
            raise ValueError(f"the tokenizer loses characters of its text ({''.join(lost)!r})")
        return ids

    @cached_property
    def _tokenizer(self) -> Any:
        remedy = "give a folder with a tokenizer.json, or an id that this machine has or can download"
        if Path(self.folder).is_absolute() and not Path(self.folder).is_dir():  # check before imports that take seconds
            raise UserError(f"no tokenizer can be read from {self.folder}: no such folder; {remedy}")
        hide_cuda_parts()  # transformers remembers what it saw at its import
        from transformers import AutoTokenizer

        try:
            for file in (Path(self.folder) / name for name in (*TOKENIZER_FILES, "config.json")):
                if os.path.exists(file):
                    open_to_read(file).close()  # a planted pipe would make the library wait for ever
            return AutoTokenizer.from_pretrained(self.folder)
        except Exception as problem:  # noqa: BLE001 - of libraries, for damaged files
            why = (str(problem).splitlines() or [type(problem).__name__])[0]
            raise UserError(f"no tokenizer can be read from {self.folder}: {why}; {remedy}") from None

    @cached_property
    def _bos(self) -> tuple[int, ...]:
        """What the tokenizer puts in front of a text without chat template: BOS of Llama, Mistral and Gemma."""
        bos = self._tokenizer.bos_token_id
        return (int(bos),) if bos is not None and self._tokenizer.encode("a")[:1] == [bos] else ()

    @cached_property
    def _markers(self) -> tuple[str, ...]:
        added = self._tokenizer.added_tokens_decoder.values()
        return tuple(token.content for token in added if token.special and len(token.content.strip()) > 1)

    @cached_property
    def _chat(self) -> bool:
        has = getattr(self._tokenizer, "chat_template", None) is not None
        wanted = self.format.template
        if wanted == "chat" and not has:
            raise UserError(f"--template=chat: the tokenizer of {self.folder} has no chat template; use plain")
        if self.format.system and (wanted == "plain" or not has):
            raise UserError(
                f"a system message needs a chat template, but {self.folder} has none or --template=plain turns it off; "
                "leave out the system message"
            )
        return has and wanted != "plain"


def read_contract(folder: Path) -> dict[str, Any] | None:
    """Return the prompt contract that a run has left in a folder. None where there is none, or where it is damaged."""
    try:
        content = json_of(folder / CONTRACT)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def find_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what two prompt contracts have differently, in words."""
    return [
        f"{name} was {_shorten(before[name])} and is {_shorten(now.get(name))}"
        for name in before
        if name in now and name != "chat_template" and before[name] != now[name]
    ]


def _shorten(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def read_max_positions(folder: Path) -> int | None:
    """Longest sequence of a model in tokens. None when its config.json has no such number.

    Raises:
        UserError: The folder has no config.json that can be read.
    """
    try:
        limit = read_json(folder / "config.json").get("max_position_embeddings")
    except UserError as problem:
        raise UserError(f"{folder} is no Hugging Face model folder: {problem}") from None
    return limit if isinstance(limit, int) else None
