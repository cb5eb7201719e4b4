r"""Whether a response is right: the one judge of training, evaluation, data preparation, `check`, NeMo-RL and TRL.

`make_judge` is the one place that chooses a kind of judge and starts its processes. A judge takes a reference as the
data have it (`reference.py` reads it), so nobody else reads references or builds a verifier.

Another kind of verifier is one class here. It has a `kind`, which every setting and option that names a verifier then
takes. Its `compare` decides in this process, or its `scorer` decides in the verifier's processes, where an answer can
neither hang nor harm anything:

    class Letter(Judge):
        kind = "letter"

        def compare(self, text: str, wanted: str, prompt: str) -> float:
            return float(text.strip().rstrip(".") == wanted)

Its `read` may refuse a reference, for example one that is no letter.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields
from importlib.metadata import version
from typing import Any, ClassVar, Literal, NamedTuple

from nemo_ada import __version__
from nemo_ada.by_name import file_of, find, load
from nemo_ada.errors import UserError
from nemo_ada.run.files import MAX_TEXT, read_bounded
from nemo_ada.verify.audit import count_kinds, kind_of
from nemo_ada.verify.boxed import last_boxed
from nemo_ada.verify.pool import MathVerifier, VerifierLimits
from nemo_ada.verify.reference import Reader, Reading, as_text
from nemo_ada.verify.trial import try_reward
from nemo_ada.verify.verdict import INVALID, Verdict
from nemo_ada.verify.worker import DEFAULT_SCORER

log = logging.getLogger(__name__)
Unfinished = Literal["wrong", "judged"]
KINDS: dict[str, type[Judge]] = {}
"""Kind of verifier, as settings name it -> its class."""

MOST_SAID = 10  # reasons that reach the log
_MARKS = 30  # accents on one letter that are read; Unicode's own limit for text in a stream


def normalise_text(answer: str) -> str:
    """Return an answer as `exact` compares it: Unicode NFKC, case folded, single spaces, trimmed.

    Python orders the accents on one letter in quadratic time. No letter keeps more than 30 here.
    """
    if not answer.isascii():
        answer = _limit_marks(answer)
    return " ".join(unicodedata.normalize("NFKC", answer).casefold().split())


def _limit_marks(text: str) -> str:
    kept, run = [], 0
    for char in text:
        run = run + 1 if unicodedata.combining(unicodedata.normalize("NFKD", char)[0]) else 0
        if run <= _MARKS:
            kept.append(char)
    return "".join(kept)


class Response(NamedTuple):
    """A response and what it is judged against.

    Attributes:
        text: The whole response.
        reference: The reference as the data have it.
        finished: Whether the response ended by itself, and not at the token limit.
        prompt: What the model read, where it is known.
    """

    text: str
    reference: Any
    finished: bool = True
    prompt: str = ""


class Judge(Reader):
    """Labels responses. A kind of verifier is a subclass; `make_judge` makes one.

    A reference that cannot be read gives no label, whatever the response says. Processes start with the first answer
    that needs them, and again with the first after `close`.
    """

    kind: ClassVar[str] = ""
    """The name of this verifier in settings and options."""
    scorer: str | None = None
    """`package.module:function`, (response, reference) -> score in [0, 1], which decides in the verifier's processes.
    None: `compare` decides, in this process."""
    whole = True
    """Whether the scorer gets the whole response. Otherwise it gets the last box, and nothing else is right."""

    def __init_subclass__(cls) -> None:
        """Make the kind known to all settings."""
        if "kind" in vars(cls):
            KINDS[cls.kind] = cls

    def __init__(
        self, unfinished: Unfinished = "wrong", limits: VerifierLimits | None = None, *, points: bool = True
    ) -> None:
        self.unfinished, self.limits, self.points = unfinished, limits, points
        self._pool: MathVerifier | None = None
        self._refused: set[str] = set()
        self._lock = threading.Lock()  # NeMo-RL asks from many threads

    @property
    def version(self) -> str:
        """Name and version, for cards."""
        return f"{self.kind} (nemo-ada {__version__})"

    @property
    def counts(self) -> dict[str, int]:
        """Number of verdicts of the processes so far, by cause."""
        return {} if self._pool is None else self._pool.counts

    def write_right(self, raw: Any) -> str:
        """Return a response that is right."""
        return self.read(raw).text

    def try_on(self, raw: Any) -> None:
        """Try a function of the user's on a reference. Raises UserError where it fails. Other kinds need no trial."""

    def compare(self, text: str, wanted: str, prompt: str) -> float:
        """Return the score of a response, from 0 to 1, where no scorer decides.

        Args:
            text: The whole response.
            wanted: The text of the reference.
            prompt: What the model read, where it is known.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither a scorer nor compare()")

    def find_doubt(self, raw: Any) -> str | None:
        """Return the kind of `audit.KINDS` of a reference that this judge can hardly compare; None for no doubt."""
        kind = kind_of(self.read(raw).text)
        return kind if kind == "control" else None

    def audit(self, references: Iterable[tuple[int, Any]]) -> dict[str, dict[str, int]]:
        """Count the doubtful ones of (line, reference) pairs by their kind, each kind with its first line."""
        return count_kinds((line, self.find_doubt(raw)) for line, raw in references)

    def submit(self, text: str, raw: Any, finished: bool = True, prompt: str = "") -> Verdict | Future[Verdict]:
        """Start to judge one response (see `Response`). Returns its verdict where that takes no time, else a future."""
        try:
            wanted = self.read(raw)
        except ValueError as problem:
            self._say_refused(str(problem))
            return Verdict(None, INVALID)
        if not (finished or self.unfinished == "judged"):
            return Verdict(0.0)
        if self.scorer is None:
            return Verdict(self.compare(text, wanted.text, prompt))
        return self._start_pool().submit(text, wanted.value, prompt)

    def verdicts(self, responses: Sequence[tuple[Any, ...]]) -> list[Verdict]:
        """Return the verdicts of responses, in order. Each is a `Response`, or a tuple of its first parts."""
        started = [self.submit(*response) for response in responses]
        verdicts = [verdict.result() if isinstance(verdict, Future) else verdict for verdict in started]
        if self.points:
            return verdicts
        return [verdict if verdict.label is None else Verdict(float(verdict.label >= 1.0)) for verdict in verdicts]

    def self_test(self) -> None:
        """Start the processes and judge known pairs, where there are some. Raises VerifierSelfTestError."""
        if self.scorer is not None:
            self._start_pool()

    def close(self) -> None:
        """End the verifier's processes. A later verdict starts them again."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _start_pool(self) -> MathVerifier:
        with self._lock:
            if self._pool is not None:
                return self._pool
            known = self.scorer == DEFAULT_SCORER
            self._pool = MathVerifier(self.limits, scorer=str(self.scorer), whole=self.whole, self_test=known)
            return self._pool

    def _say_refused(self, reason: str) -> None:
        if reason not in self._refused and len(self._refused) < MOST_SAID:
            self._refused.add(reason)
            log.warning("a reference %s; its responses get no label", reason)


class ByValue(Judge):
    r"""Compares the last \boxed{} by value, with math-verify in processes that can be killed."""

    kind, scorer, whole = "math", DEFAULT_SCORER, False

    @property
    def version(self) -> str:
        """Name and version, for cards."""
        return f"math-verify {version('math-verify')}"

    def write_right(self, raw: Any) -> str:
        """Return the reference in a box."""
        text = self.read(raw).text
        return f"\\boxed{{{text}}}" if last_boxed(text) is None else text

    def find_doubt(self, raw: Any) -> str | None:
        """Return any kind: a value needs more than a text does."""
        return kind_of(self.read(raw).text)


class ByText(Judge):
    """Compares normalised text."""

    kind = "exact"

    def compare(self, text: str, wanted: str, prompt: str) -> float:
        """Return 1 for the same text."""
        return float(normalise_text(text) == normalise_text(wanted))


class ByReward(Judge):
    """Asks a function of the user's for a score in [0, 1], in the verifier's confined processes.

    The function gets the whole response and the reference as the data have it, on every back end. So it may hang or
    crash, and it cannot read files or use the network.
    """

    own = True

    def __init__(self, reward: str, key: str, *arguments: Any, **named: Any) -> None:
        """Raises UserError where there is no such function."""
        super().__init__(*arguments, **named)
        self.scorer, self.key = find(key, reward), key
        load(key, self.scorer)
        self._boxed: bool | None = None

    def read(self, raw: Any) -> Reading:
        """Return the reference as it is. Its text is JSON where it is none."""
        if raw is None:
            raise ValueError("is null")
        return Reading(as_text(raw), " as it is", raw)

    @property
    def version(self) -> str:
        """The name of the function and 16 hex digits of a hash of its file."""
        file = file_of(str(self.scorer))
        digest = hashlib.sha256(read_bounded(file, MAX_TEXT)).hexdigest()[:16] if file else "no file"
        return f"{os.path.basename(str(self.scorer))} {digest}"

    def write_right(self, raw: Any) -> str:
        """Return the reference, in a box where the function takes only that for right."""
        if self._boxed is None:
            self.try_on(raw)
        text = self.read(raw).text
        return f"\\boxed{{{text}}}" if self._boxed else text

    def try_on(self, raw: Any) -> None:
        """Call the function on answers that a reference makes, where it will run, and find whether it wants a box.

        Raises:
            UserError: The function failed. The message has the user's file and line.
        """
        try:
            self._boxed = try_reward(self.key, str(self.scorer), raw, self._start_pool())
        finally:
            self.close()


def make_judge(
    verifier: str = "math",
    reward: str | None = None,
    unfinished: Unfinished = "wrong",
    limits: VerifierLimits | None = None,
    *,
    points: bool = True,
    key: str = "reward",
) -> Judge:
    """Return the judge of these settings. Nothing starts before its first answer.

    Args:
        verifier: A kind of `KINDS`.
        reward: `package.module:function` of the user's, which takes the place of the verifier.
        unfinished: How responses count that were cut off at the token limit. `wrong` is the rule of training. `judged`
            treats them like any other response, as the published evaluations do. (A box may stand before the cut.)
        limits: What one answer may cost.
        points: Whether a part of a point counts. An evaluation wants right or wrong.
        key: How the user named the reward, for messages.

    Raises:
        UserError: There is no such kind, or no such module.
    """
    if reward is not None:
        return ByReward(reward, key, unfinished, limits, points=points)
    try:
        return KINDS[check_verifier(verifier)](unfinished, limits, points=points)
    except ValueError as problem:
        raise UserError(f"verifier={verifier!r} {problem}") from None


def judge_of_section(section: Mapping[str, Any], key: str) -> Judge:
    """Return the judge of an environment's section: `verifier`, `reward`, and fields of VerifierLimits.

    Raises:
        UserError: It has another key, names no kind of verifier or no function, or a limit makes no sense.
    """
    given = {name: value for name, value in section.items() if name != "class"}
    verifier, reward = str(given.pop("verifier", None) or ByValue.kind), given.pop("reward", None)
    limits = [field.name for field in fields(VerifierLimits)]
    if unknown := sorted(given.keys() - set(limits)):
        raise UserError(f"{key}.{unknown[0]}: no such setting; it has verifier, reward, {', '.join(limits)}")
    if verifier not in KINDS:
        raise UserError(f"{key}.verifier={verifier} must be {' or '.join(KINDS)}")
    named = None if reward is None else str(reward)
    return make_judge(verifier, named, limits=VerifierLimits(**given), key=f"{key}.reward")


def check_verifier(kind: str) -> str:
    """Return the name of a kind of verifier, as a field of settings is checked. Raises ValueError for another one."""
    if kind not in KINDS:
        raise ValueError(f"must be {' or '.join(KINDS)}")
    return kind
