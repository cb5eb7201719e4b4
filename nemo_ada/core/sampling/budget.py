"""The budget of one batch: samples, tokens and seconds (algorithm.md section 6).

The ledger counts what is reserved and what is spent. A reservation is made before responses are issued and settled
when they end. So `spent + reserved <= cap` holds at every moment. The one exception: with `expected` reservation first
waves are issued even when their tokens exceed the cap, because first waves have priority.
"""

from __future__ import annotations

from dataclasses import dataclass

from nemo_ada.errors import InvariantError


@dataclass(frozen=True, slots=True)
class Caps:
    """Upper bounds for one batch, None = no bound: responses issued, tokens generated, seconds of sampling."""

    max_samples: int | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None


class Ledger:
    """Samples and tokens of one batch."""

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.samples = 0
        self.tokens_used = 0
        self.tokens_reserved = 0

    @property
    def bounded(self) -> bool:
        """True when samples or tokens have a cap."""
        return self.caps.max_samples is not None or self.caps.max_tokens is not None

    def refusal(self, samples: int, tokens: int) -> str | None:
        """The cap that forbids `samples` more responses of `tokens` tokens in all, or None when they fit."""
        caps = self.caps
        if caps.max_samples is not None and self.samples + samples > caps.max_samples:
            return "max_samples"
        if caps.max_tokens is not None and self.tokens_used + self.tokens_reserved + tokens > caps.max_tokens:
            return "max_tokens"
        return None

    def waits(self, samples: int, tokens: int) -> bool:
        """True while others decide whether so many more fit (shared_budget.py)."""
        return False

    def reserve(self, samples: int, tokens: int, *, forced: bool = False) -> None:
        """Take what `refusal` allowed. `forced` (first waves) may pass the token cap, never the sample cap."""
        refused = self.refusal(samples, tokens)
        if refused == "max_samples" or (refused is not None and not forced):
            raise InvariantError(f"reserved {samples} samples and {tokens} tokens against {refused}")
        self.samples += samples
        self.tokens_reserved += tokens

    def settle(self, reserved: int, used: int) -> None:
        """Give back the `reserved` tokens of responses that ended, and book the `used` ones."""
        if reserved > self.tokens_reserved:
            raise InvariantError(f"settled {reserved} tokens of {self.tokens_reserved} reserved")
        self.tokens_reserved -= reserved
        self.tokens_used += used

    @property
    def tokens_overshoot(self) -> int:
        """Tokens spent beyond the cap; possible only with `expected` reservation."""
        return 0 if self.caps.max_tokens is None else max(0, self.tokens_used - self.caps.max_tokens)
