"""What the verifier of a run can judge: the references of its training set, and the known pairs of its self-test."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.rules.finding import Findings, error, ok, warning
from nemo_ada.run.data_files import records
from nemo_ada.tasks.lines import pair_of
from nemo_ada.verify.audit import count_kinds, describe_kinds
from nemo_ada.verify.judge import Judge, make_judge
from nemo_ada.verify.pool import VerifierLimits
from nemo_ada.verify.selftest import VerifierSelfTestError

AUDITED = 2000  # references of a training set


def check_references(path: str, prompt: Sequence[str], answer: Sequence[str], key: str, judge: Judge) -> Findings:
    """Warn of references in a local training set that only an answer in the same words equals, once per kind of them.

    Args:
        path: the file. One that cannot be read is the matter of another rule.
        prompt: columns of the prompt.
        answer: columns of the reference.
        key: the setting that names the file.
        judge: what compares them in the run.
    """
    read: list[tuple[int, Any]] = []
    try:
        for number, record in islice(records(Path(path).expanduser(), lambda _number, _reason: None), AUDITED):
            with suppress(ValueError):
                read.append((number, pair_of(record, prompt, answer, judge).reference))
    except UserError:
        return
    kinds = judge.audit([raw for _, raw in read])
    found = count_kinds((number, kind) for (number, _), kind in zip(read, kinds, strict=True))
    for sentence in describe_kinds(found):
        yield warning(key, f"{path}: {sentence}; of the first {len(read)} lines")
    if read and not found:
        yield ok(key, f"{path}: the verifier can compare the references of its first {len(read)} lines")


def check_verifier() -> Findings:
    """math-verify judges known pairs and survives a hanging input."""
    try:
        with closing(make_judge(limits=VerifierLimits(workers=1))) as judge:
            judge.self_test()
    except VerifierSelfTestError as problem:
        yield error("verifier", str(problem))
        return
    except (ImportError, OSError, RuntimeError) as problem:
        yield error("verifier", f"math-verify could not be started: {problem}; install this project's dependencies")
        return
    yield ok("verifier", "the self-test's known pairs and its hanging answer were judged rightly")
