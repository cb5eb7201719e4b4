"""The judge of a preparation or an evaluation: by value, by text, or a function of the user's."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_ada.errors import UserError
from nemo_ada.run.files import MAX_TEXT, read_bounded
from nemo_ada.verify.judge import Judge, Unfinished, Verifier, whole_point
from nemo_ada.verify.pool import MathVerifier
from nemo_ada.verify.verdict import Verdict


def judge_of(verifier: Verifier, unfinished: Unfinished, scorer: str | None) -> Judge:
    """Return the judge of these settings. A scorer takes the place of the verifier."""
    return Judge(verifier, unfinished) if scorer is None else ScorerJudge(scorer, unfinished)


class ScorerJudge(Judge):
    r"""Asks a function of the user for a score in [0, 1]. A score of 1 is right.

    The function gets the answer, which is the last \boxed{} of the response, and the reference. A response without
    a box is wrong. The function runs in the verifier's confined processes. So it may hang or crash, and it
    cannot read files or use the network.
    """

    def __init__(self, scorer: str, unfinished: Unfinished = "wrong") -> None:
        """Raises UserError where there is no such module."""
        super().__init__("math", unfinished)
        self._scorer, self._digest = scorer, _source_digest(scorer)
        self._pool: MathVerifier | None = None

    @property
    def version(self) -> str:
        """The name of the function and 16 hex digits of a hash of its file."""
        return f"{self._scorer} {self._digest}"

    def _judge(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        self._pool = self._pool or MathVerifier(scorer=self._scorer, self_test=False)
        return [whole_point(verdict) for verdict in self._pool.verify_many(pairs)]

    def close(self) -> None:
        """End the processes. A later verdict starts them again."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _source_digest(scorer: str) -> str:
    module, colon, function = scorer.partition(":")
    form = f"--scorer={scorer}: use package.module:function"
    if not colon or not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UserError(form)
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # where the user stands; the console script does not look there
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise UserError(f"{form}; there is no module {module} here or on PYTHONPATH")
    return hashlib.sha256(read_bounded(Path(spec.origin), MAX_TEXT)).hexdigest()[:16]
