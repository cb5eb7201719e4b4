"""Pass rates over time: how the prompts spread between never and always solved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_ada.core.metrics import RATE_BINS
from nemo_ada.report.run import Run
from nemo_ada.report.series import Blocks
from nemo_ada.report.spec import NOT_RECORDED, Figure, HeatPanel, Row, Table

METRIC = "ada/pass_rate_histogram"
MAX_COLUMNS = 48
NAMES = (f"exactly {RATE_BINS[0]}", *(f"about {name}" for name in RATE_BINS[1:-1]), f"exactly {RATE_BINS[-1]}")
CAPTION = (
    "Share of the training prompts at each estimated pass rate, a column per step (or block of steps), one panel per "
    "run; the shades mean the same in all of them. The lowest row holds prompts without a correct response, the "
    "highest those without an incorrect one: GRPO learns nothing from either. The estimate is unbiased: the first "
    "wave's share of correct responses, or path counts where prompts stop at the exact response. It comes from few "
    "responses, so the true rates are spread less, and a first wave of 4 fills every other row only."
)


def rates_over_time(runs: Sequence[Run]) -> Figure:
    """One heat map per run that has recorded its histogram."""
    panels, rows = [], []
    for i, run in enumerate(runs):
        count_NB = run.counts(METRIC, len(RATE_BINS))
        total_N = count_NB.sum(axis=1)
        if not (total_N > 0).any():
            continue
        step_N = run.column("step")
        blocks = Blocks.at_most(step_N, MAX_COLUMNS)
        starts = np.arange(0, len(step_N), blocks.size)
        ends = np.minimum(starts + blocks.size, len(step_N)) - 1
        count_CB = np.add.reduceat(count_NB, starts)
        total_C = count_CB.sum(axis=1)
        share_CB = np.divide(count_CB, total_C[:, None], out=np.zeros_like(count_CB), where=total_C[:, None] > 0)
        labels = blocks.labels()
        panels.append(
            HeatPanel(
                run.name,
                "training steps",
                "pass rate",
                i,
                RATE_BINS,
                step_N[starts] - 0.5,
                step_N[ends] + 0.5,
                share_CB.T,
                [f"step {label}: {total:.0f} prompts" for label, total in zip(labels, total_C, strict=True)],
            )
        )
        rows += [_row(i, label, total, shares) for label, total, shares in zip(labels, total_C, share_CB, strict=True)]
    table = Table(("steps", "prompts", *NAMES), rows)
    without = [run.name for i, run in enumerate(runs) if i not in {panel.run for panel in panels}]
    missing = f" Not recorded by: {', '.join(without)}." if without else ""
    caption = CAPTION + missing if panels else NOT_RECORDED
    return Figure("pass-rates", "Pass rates over time", caption, panels, table)


def _row(run: int, label: str, total: float, shares: np.ndarray) -> Row:
    return run, (label, float(total), *(f"{share:.1%}" if total else "–" for share in shares))
