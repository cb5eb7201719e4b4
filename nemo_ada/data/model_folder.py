"""What every provider of responses knows of its model: a Hugging Face folder, its identity and its room for tokens."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_ada.data.prompting import positions
from nemo_ada.errors import UserError

log = logging.getLogger(__name__)

SAMPLED_BYTES, SAMPLES = 1 << 16, 16


def model_fingerprint(folder: Path) -> str:
    """16 hex digits: configuration and tokenizer as a whole, weights by size and samples all over them (a checkpoint
    of 100 GB is not read)."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        if path.name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            digest.update(path.name.encode() + path.read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            for part in range(SAMPLES):
                file.seek(part * size // SAMPLES)
                digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()[:16]


def room(folder: Path, max_prompt_tokens: int, max_new_tokens: int) -> int:
    """Longest sequence, tokens: prompt and response, or the model's positions where they are fewer.

    Then a long prompt's response ends before max_new_tokens (Qwen2.5-Math has 4096 positions in all), which is logged.
    Raises UserError where the longest prompt leaves no room for a response.
    """
    wanted = max_prompt_tokens + max_new_tokens
    limit = positions(folder)
    if limit is None or wanted <= limit:
        return wanted
    if limit <= max_prompt_tokens:
        raise UserError(
            f"max_prompt_tokens={max_prompt_tokens} leaves no room for a response in the {limit} positions of "
            f"{folder}; lower it"
        )
    log.warning("%s has %d positions: a response ends there, also before %d tokens", folder, limit, max_new_tokens)
    return limit


@dataclass(frozen=True, slots=True)
class Limits:
    """Longest prompt and response, tokens; how they are drawn; how many at once."""

    max_prompt_tokens: int
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    max_num_seqs: int = 256


class FolderProvider:
    """The base of providers. Raises UserError where the longest prompt leaves no room for a response (see `room`)."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self.name, self.fingerprint = folder.name, model_fingerprint(folder)
        self.length = room(folder, limits.max_prompt_tokens, limits.max_new_tokens)

    def new_tokens(self, prompt: Sequence[int]) -> int:
        """Longest response to this prompt."""
        return min(self.limits.max_new_tokens, self.length - len(prompt))
