"""What the fuzzers share: the command line in this process with a CPU limit per case, nasty values, a count of cases.

NEMO_ADA_FUZZ_CASES=N makes N random cases of every test; without it there are few, always the same.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from nemo_ada.errors import UserError

CASES = int(os.environ.get("NEMO_ADA_FUZZ_CASES", "0"))
CPU_SECONDS = 60.0  # of one case, which takes a fraction of a second; time that others take does not count
COUNTED: Counter[str] = Counter()


def cases(short):
    """The number of cases of a test: `short` in `make test`, CASES where it is set."""
    return settings(
        max_examples=CASES or short,
        derandomize=not CASES,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


class TooSlow(BaseException):
    """A case passed its deadline; no handler of the code under test catches it."""


@contextmanager
def deadline():
    def late(_number, _frame):
        raise TooSlow(f"more than {CPU_SECONDS:g} CPU seconds")

    previous = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def command(arguments, kind):
    """`nemo-ada ARGUMENTS` in this process, with the streams of a real one: stdout refuses what is not UTF-8."""
    from nemo_ada.cli.main import app, run_guarded

    COUNTED[kind] += 1
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    with pytest.MonkeyPatch.context() as patch, deadline():
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setattr(sys, "argv", ["nemo-ada", *arguments])
        try:
            code: Any = run_guarded(lambda: app(list(arguments), prog_name="nemo-ada"))
        except SystemExit as ended:
            code = ended.code or 0
    texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]
    return Ended(code if isinstance(code, int) else 1, *texts)


def check(ended, *, codes=(0, 2), said=()):
    """No traceback; one of the exit codes; a user error says something of bounded length that names one of `said`."""
    shown = f"exit code {ended.code}\n{ended.err[-3000:]}\n{ended.out[-1000:]}"
    assert "Traceback" not in ended.err + ended.out, shown
    assert ended.code in codes, shown
    if ended.code == 2:
        told = ended.err.strip() or ended.out.strip()
        assert 10 < len(told) < 20_000, shown
        assert not said or any(word in told for word in said), shown
    return ended


def attempt(call):
    """(result, None), or (None, message) where a UserError refuses."""
    try:
        return call(), None
    except UserError as refusal:
        return None, str(refusal)


TEXTS = st.one_of(
    st.sampled_from(["", " ", "x", "null", "true", "nan", "-inf", "1e999", "0x10", "1_000", "${", "${nope}", "???", "~",
                     "${oc.env:X}", "\u202e\u0007", "'", '"', "{", "[", "a.b.c", "../..", "/", "%s%n", "[bold]", "[/]",
                     "\U0001f642" * 9, "x" * 5000]),
    st.text(max_size=12),
)  # fmt: skip
NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 2, 3, 7, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.0, 1e308, 1e-320]),
    st.floats(),
    st.integers(),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
NASTY_JSON = st.one_of(
    VALUES,
    st.integers(min_value=10**300, max_value=10**320),
    st.sampled_from([1e30, -1e30, 5e-324, 10**9, 10**9 + 1, "\ud800", "\x00", "\u2028", "</script>", "1" * 5000,
                     "[/red]", "running", "\\boxed{1}", "<|im_end|>"]),
)  # fmt: skip
