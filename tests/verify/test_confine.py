"""A worker that judges answers may compute, read code and answer: nothing else works, and the pool survives the try.

The attacks run as a scorer, which is more than model output can do: it would have to find a way to run code first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_ada.verify import MathVerifier, Verdict, VerifierLimits
from nemo_ada.verify.confine import limits_of
from tests.patience import PATIENCE
from tests.verify.scorers import ATTACKS


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("victim") / "file"
    path.write_text("untouched")
    return path


@pytest.fixture(scope="module")
def verifier(victim: Path) -> Iterator[MathVerifier]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", "hostile-secret-1")
        patch.setenv("HF_TOKEN", "hostile-secret-2")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hostile-secret-3")
        patch.setenv("NEMO_ADA_TEST_LOG", str(victim))
        limits = VerifierLimits(deadline_s=PATIENCE, workers=1)
        with MathVerifier(limits, scorer="tests.verify.scorers:attack", self_test=False) as started:
            yield started


@pytest.mark.parametrize("attack", [*ATTACKS, "secrets", "inherited"])
def test_an_attack_is_refused_and_leaves_nothing(verifier: MathVerifier, victim: Path, attack: str) -> None:
    assert verifier.verify_many([(rf"\boxed{{{attack}}}", str(victim))]) == [Verdict(0.0)]
    assert [path.name for path in victim.parent.iterdir()] == ["file"]
    assert victim.read_text() == "untouched"


def test_the_same_attacks_work_where_nothing_confines_them(tmp_path: Path) -> None:
    """The oracle of the test above: what it calls refused is not merely impossible."""
    target = tmp_path / "file"
    for name in ("socket", "write", "mkdir", "chmod", "read", "list", "subprocess", "shell", "read system file"):
        target.write_text("x")
        ATTACKS[name](str(target))


def test_a_worker_has_the_limits() -> None:
    limits = VerifierLimits(deadline_s=PATIENCE, workers=1, memory_bytes=512 << 20)
    with MathVerifier(limits, scorer="tests.verify.scorers:limit", self_test=False) as started:
        for kind, value in limits_of(512 << 20).items():
            (verdict,) = started.verify_many([(rf"\boxed{{{kind}}}", str(value))])
            assert verdict == Verdict(1.0), kind
