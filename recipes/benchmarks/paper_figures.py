"""Figures 5, 7 and 10 of the paper (arXiv 2510.04996, v3), computed, not sampled.

    python recipes/benchmarks/paper_figures.py [--out recipes/results/figures]

Writes fig5.png, fig7.png and fig10.png, and their numbers to paper_figures.json beside the folder. No
training, no GPU, a few seconds.

Figure 10 (appendix D) is the expected number of responses until K correct ones, or K of each label, in waves of
N_max / 8; the paper simulates it, the dynamic programme of `nemo_ada.lab.simulate.exact` gives it exactly. Figure 7
(appendix B) is the best split of N = 4096 responses over B = 512 prompts. Figure 5 is measured during training, so its
curves cannot be computed; its quantities can, for a batch of 512 prompts with given pass rates, which says where on the
paper's curves such a batch would lie.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import measure

from nemo_ada.core.prompts.allocation import allocate
from nemo_ada.core.sampling.exits import BalancedExit, ExitRule, PositiveExit
from nemo_ada.core.sampling.paths import StopRule, find_endings
from nemo_ada.lab.report.draw import COLOURS
from nemo_ada.lab.simulate.exact import summarise_rule

BUDGETS = ((32, 4), (64, 8), (128, 16))  # (N_max, M) of Figure 10
WANTED = (1, 2, 4, 8)  # K of Figure 10
PROMPTS, TOTAL = 512, 4096  # B and N of Figure 7; 512 prompts are also a step of Figure 5
LOWEST, HIGHEST = 0.01, 0.99  # assumed: the paper does not say which pass rates Figure 7 is drawn for
STRENGTH = 2.1  # assumed spread of pass rates in Figure 5: Beta(a, b) with a + b as in `nemo-ada simulate`
GROUP, WAVE, CAP = 4, 8, 32  # the runs behind Figure 5
SEQ_POSITIVE = StopRule(PositiveExit(1), (WAVE,), CAP)
SEQ_BALANCE = StopRule(BalancedExit(2, 2), (WAVE,), CAP)


def figure_10(exit_rule: ExitRule, cap: int, wave: int, rates: np.ndarray) -> np.ndarray:
    """Expected responses per prompt at each pass rate."""
    return np.array([summarise_rule(StopRule(exit_rule, (wave,), cap), float(p)).expected_samples for p in rates])


def figure_7() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(pass rates, responses per prompt of each rule): proportional to 1/sqrt(p), and to sqrt((1-p)/p)."""
    rates = np.linspace(LOWEST, HIGHEST, PROMPTS)
    tie = np.arange(PROMPTS, dtype=float)
    shares = {"without baseline": rates**-0.5, "with baseline": np.sqrt((1 - rates) / rates)}
    return rates, {name: allocate(share, TOTAL, 1, TOTAL, tie) for name, share in shares.items()}


@dataclass(frozen=True, slots=True)
class Step:
    """Expectations of one step of 512 prompts: Figure 5's quantities.

    extra_*: responses beyond GRPO n = 4. The rest is Seq-balance: prompts that have two correct, and two of each label,
    after two waves; prompts that lack correct, and incorrect, responses after all four.
    """

    extra_positive: float
    extra_balance: float
    early_positive: float
    early_both: float
    lack_positive: float
    lack_negative: float


def figure_5(mean: float, strength: float = STRENGTH) -> Step:
    """A step whose prompts have pass rates Beta(mean strength, (1 - mean) strength)."""
    nodes, weights = beta_quadrature(mean * strength, (1.0 - mean) * strength, CAP // 2 + 1)
    per_prompt = weights @ np.array([_prompt(float(p)) for p in nodes])
    extra_positive, extra_balance, *shares = (PROMPTS * per_prompt).tolist()
    return Step(extra_positive, extra_balance, *shares)


def _prompt(p: float) -> tuple[float, ...]:
    """Step's quantities for one prompt."""
    end = find_endings(SEQ_BALANCE)
    neg = end.total_E - end.pos_E
    after_two = find_endings(StopRule(BalancedExit(CAP, CAP), (WAVE,), 2 * WAVE))  # never met: two waves, all outcomes
    two_neg = after_two.total_E - after_two.pos_E
    return (
        summarise_rule(SEQ_POSITIVE, p).expected_samples - GROUP,
        end.mean(end.total_E, p) - GROUP,
        after_two.mean(after_two.pos_E >= 2, p),
        after_two.mean((after_two.pos_E >= 2) & (two_neg >= 2), p),
        end.mean(end.pos_E < 2, p),
        end.mean(neg < 2, p),
    )


def beta_quadrature(a: float, b: float, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Jacobi nodes and weights of Beta(a, b): exact for polynomials in p of a degree below 2 nodes.

    Every quantity here is such a polynomial. By the eigenvalues of the Jacobi matrix (Golub and Welsch, 1969).
    """
    up, down = a - 1.0, b - 1.0  # exponents of p and 1 - p
    k = np.arange(1, nodes)
    both = 2 * k + up + down
    diagonal = np.concatenate([[(up - down) / (up + down + 2)], (up**2 - down**2) / (both * (both + 2))])
    shared = np.where(k == 1, 1.0, (k + up + down) / np.where(k == 1, 1.0, both - 1))  # 0/0 at k = 1, a + b = 1
    beside = 4 * k * (k + up) * (k + down) * shared / (both**2 * (both + 1))
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(np.sqrt(beside), 1) + np.diag(np.sqrt(beside), -1))
    return (1.0 + values) / 2.0, vectors[0] ** 2


def tables() -> dict[str, list[dict[str, Any]]]:
    """Rows of recipes/results/paper_figures.json by figure; of Figure 10 those of the smallest budget."""
    rates = np.array([0.02, 0.1, 0.3, 0.5, 0.7, 0.9])
    tenth = []
    for name in ("positive", "balanced"):
        for k in WANTED:
            found = figure_10(_rule(name, k), *BUDGETS[0], rates)
            row: dict[str, Any] = {"rule": f"{name}, K = {k}"}
            tenth.append(row | {f"p = {p:g}": f"{n:.1f}" for p, n in zip(rates, found, strict=True)})
    pass_rate, split = figure_7()
    shown = [int(np.abs(pass_rate - p).argmin()) for p in (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.99)]
    seventh = [
        {"responses": f"{name}"} | {f"p = {pass_rate[i]:.2f}": str(counts[i]) for i in shown}
        for name, counts in split.items()
    ]
    fifth = []
    for mean in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        step = figure_5(mean)
        fifth.append(
            {
                "mean pass rate": f"{mean:g}",
                "extra, Seq-pos": f"{step.extra_positive:.0f}",
                "extra, Seq-balance": f"{step.extra_balance:.0f}",
                "2 correct in 2 waves": f"{step.early_positive:.0f}",
                "2 of each in 2 waves": f"{step.early_both:.0f}",
                "lack correct": f"{step.lack_positive:.0f}",
                "lack incorrect": f"{step.lack_negative:.0f}",
            }
        )
    return {"fig5": fifth, "fig7": seventh, "fig10": tenth}


def _rule(name: str, k: int) -> ExitRule:
    return PositiveExit(k) if name == "positive" else BalancedExit(k, k)


def draw(out: Path) -> None:
    """The three PNGs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rates = np.linspace(0.005, 0.995, 100)
    figure, grid = plt.subplots(2, 3, figsize=(10, 5.6), layout="constrained")
    for axes_of_rule, name in zip(grid, ("positive", "balanced"), strict=True):
        for axes, (cap, wave) in zip(axes_of_rule, BUDGETS, strict=True):
            for colour, k in zip(COLOURS, WANTED, strict=False):
                axes.plot(rates, figure_10(_rule(name, k), cap, wave, rates), color=colour, label=f"K = {k}")
            axes.axhline(cap / 2, color="#777777", linestyle="--", linewidth=1, label=f"fixed N = {cap // 2}")
            title = f"{name}, N_max = {cap}, M = {wave}"
            _label(axes, title, "pass rate p", "expected responses", legend=name == "positive")
    _save(figure, out / "fig10.png")

    pass_rate, split = figure_7()
    figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    for colour, (name, counts) in zip(COLOURS, split.items(), strict=False):
        axes.plot(pass_rate, counts, color=colour, drawstyle="steps-mid", label=name)
    _label(axes, f"{TOTAL} responses over {PROMPTS} prompts", "pass rate p", "responses")
    _save(figure, out / "fig7.png")

    means = np.linspace(0.05, 0.9, 35)
    steps = [figure_5(float(mean)) for mean in means]
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axes, lines in zip(panels, _PANELS, strict=True):
        for colour, (name, label) in zip(COLOURS, lines.items(), strict=False):
            axes.plot(means, [getattr(step, name) for step in steps], color=colour, label=label)
    for n, style in ((8, "--"), (16, ":")):
        panels[0].axhline(PROMPTS * (n - GROUP), color="#777777", linestyle=style, linewidth=1, label=f"GRPO n = {n}")
    titles = ("responses beyond GRPO n = 4", "Seq-balance: prompts served early", "Seq-balance: prompts not served")
    for axes, title in zip(panels, titles, strict=True):
        _label(axes, title, "mean pass rate of the batch", "per step of 512 prompts")
    _save(figure, out / "fig5.png")


_PANELS = (
    {"extra_positive": "Seq-pos", "extra_balance": "Seq-balance"},
    {"early_positive": "2 correct in 2 waves", "early_both": "2 of each label in 2 waves"},
    {"lack_positive": "lack correct after 4 waves", "lack_negative": "lack incorrect after 4 waves"},
)


def _label(axes: Any, title: str, x: str, y: str, *, legend: bool = True) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if legend:
        axes.legend(fontsize=8)


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=75, metadata={"Software": None}, pil_kwargs={"optimize": True})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "figures")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    draw(out)
    (out.parent / "paper_figures.json").write_text(json.dumps(tables(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    measure(main)
