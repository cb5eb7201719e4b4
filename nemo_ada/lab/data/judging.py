"""The judge of a preparation or an evaluation: by value, by text, or a reward of the user's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_ada.by_name import file_of, find, load
from nemo_ada.run.files import MAX_TEXT, read_bounded
from nemo_ada.tasks.reward import as_text, try_reward
from nemo_ada.verify.judge import Judge, Unfinished, Verifier
from nemo_ada.verify.pool import MathVerifier
from nemo_ada.verify.verdict import Verdict


def judge_of(verifier: Verifier, unfinished: Unfinished, reward: str | None) -> Judge:
    """Return the judge of these settings. A reward takes the place of the verifier."""
    return Judge(verifier, unfinished) if reward is None else RewardJudge(reward, unfinished)


class RewardJudge(Judge):
    """Asks a function of the user for a score in [0, 1]. A score of 1 is right.

    The function gets the whole response, and the reference as the data has it, as in training. It runs in the
    verifier's confined processes. So it may hang or crash, and it cannot read files or use the network.
    """

    as_it_is = True

    def __init__(self, reward: str, unfinished: Unfinished = "wrong") -> None:
        """Raises UserError where there is no such module."""
        super().__init__("exact", unfinished)
        self._reward = find("--reward", reward)
        self._digest = _source_digest(self._reward)
        self._boxed = self._tried = False

    def shown(self, answer: Any) -> str:
        """Return a correct response: the reference, in a box where the function takes only that for right."""
        if not self._tried:
            self.try_on(answer)
        text = as_text(answer)
        return f"\\boxed{{{text}}}" if self._boxed else text

    @property
    def version(self) -> str:
        """The name of the function and 16 hex digits of a hash of its file."""
        return f"{Path(self._reward).name} {self._digest}"

    def try_on(self, reference: Any) -> None:
        """Call the function once in this process, and find whether it wants a reference in a box.

        Raises:
            UserError: The function failed. The message has the user's file and line.
        """
        function, key = load("--reward", self._reward), f"--reward={self._reward}"
        self._boxed = try_reward(function, key, reference) < 1.0 <= try_reward(function, key, reference, boxed=True)
        self._tried = True

    def submit(self, text: str, answer: Any, finished: bool) -> Verdict:
        """Judge one response."""
        return self.verdicts([(text, answer, finished)])[0]

    def _judge(self, pairs: Sequence[tuple[str, Any]]) -> list[Verdict]:
        verdicts = self._started().verify_many(pairs)
        return [one if one.label is None else Verdict(float(one.label >= 1.0)) for one in verdicts]

    def _started(self) -> MathVerifier:
        self._math = self._math or MathVerifier(scorer=self._reward, whole=True, self_test=False)
        return self._math


def _source_digest(reward: str) -> str:
    file = file_of(reward)
    return "" if file is None else hashlib.sha256(read_bounded(file, MAX_TEXT)).hexdigest()[:16]
