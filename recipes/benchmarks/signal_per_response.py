"""How much gradient signal a generated response gives, for every way to spend responses, before anything is trained.

    python recipes/benchmarks/signal_per_response.py [--beta 0.3 0.9] [--prompts 20000] [--group 4]

Pass rates come from Beta(a, b). The model: a row's score along its prompt's own direction is 1 - p when it is correct
and -p when it is not (a softmax policy's), plus noise of the same variance in every row. With advantages A of a step's
rows, signal = sum(A * score), noise = sum(A^2), and a method is worth signal^2 / noise per response, here over that
of GRPO n. What it leaves out: what prompts teach each other, and how long responses are.

Rows, advantages and pools come from the code that trains, but for re-sampling by gain, which is this file's own: a
group without signal draws n more where that mixes it with a higher probability than a new prompt's group mixes;
otherwise the next prompt is drawn. `knowing p` gives a method the true pass rates: the limit of any estimator.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from measure import measure
from tables import markdown_table

from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.core.arrays import FloatArray
from nemo_ada.core.learning.factor import count_kept
from nemo_ada.core.prompts.estimators import EmaBeta
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.lab.simulate.engine import DiscreteEventSource, LengthModel, Workload, draw_beta_rates

CERTAIN = 1e6  # mass of a Beta distribution that knows the pass rate
SHRUNK = {"preset": "grpo", "advantage": {"baseline": "shrunk"}}


@dataclass(frozen=True, slots=True)
class Worth:
    """Of one method: responses drawn, sum of A * score, sum of A^2, share of groups with equal labels, prompts."""

    responses: int
    signal: float
    noise: float
    zero_signal: float
    prompts: int

    @property
    def per_response(self) -> float:
        return self.signal**2 / self.noise / self.responses

    @property
    def per_prompt(self) -> float:
        return self.signal**2 / self.noise / self.prompts


class Known(EmaBeta):
    """An estimator that was told the distributions of the prompts p0, p1, ..."""

    def __init__(self, a_P: FloatArray, b_P: FloatArray) -> None:
        super().__init__()
        self._a_P, self._b_P = a_P, b_P

    def predict_beta(
        self, prompt_ids: Sequence[str], features_PF: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        return self._a_P, self._b_P


def trained(
    settings: Mapping[str, object], n: int, rate_P: FloatArray, known: tuple[FloatArray, FloatArray], reserve: int = 0
) -> Worth:
    """A step of these settings on prompts of these pass rates."""
    ada = parse_ada_settings(settings)
    sampler = ada.sampler(n, 16, run_seed=0)
    if sampler.estimator is not None:
        sampler.estimator = Known(*known)
    source = DiscreteEventSource(Workload(rate_P, LengthModel(max_new_tokens=16)).draw)
    sampled = sampler.run_step(0, [f"p{i}" for i in range(len(rate_P))], source, reserve=reserve)
    if sampled is None:
        raise InvariantError("nothing here drops a step")
    result, rows = sampled.result, sampled.rows
    correct_R, p_R = result.positive_N[rows.pool_R], rate_P[rows.prompt_R]
    a_R = rows.weight_R * rows.advantage_R
    score_R = np.where(correct_R, 1.0 - p_R, -p_R)
    return Worth(
        int(result.issued_P.sum()),
        float((a_R * score_R).sum()),
        float((a_R**2).sum()),
        sampled.sampling_metrics["zero_signal_groups"],
        len(rate_P),
    )


def mixed_probability(a_P: FloatArray, b_P: FloatArray, n: int) -> FloatArray:
    """Probability that n responses have both labels, for pass rates from Beta(a, b): 1 - E[p^n] - E[(1 - p)^n]."""
    drawn_N = np.arange(n)
    total_PN = (a_P + b_P)[:, None] + drawn_N
    all_positive_P = np.prod((a_P[:, None] + drawn_N) / total_PN, axis=1)
    all_negative_P = np.prod((b_P[:, None] + drawn_N) / total_PN, axis=1)
    return np.asarray(1.0 - all_positive_P - all_negative_P)


def resampled_by_gain(n: int, rate_P: FloatArray, known: tuple[FloatArray, FloatArray]) -> Worth:
    """GRPO whose groups without signal draw n more where that pays more than the next prompt."""
    rng = np.random.default_rng(1)
    a_P, b_P = known
    pos_P = rng.binomial(n, rate_P)
    alike_P = (pos_P == 0) | (pos_P == n)
    same_P, draws = np.where(pos_P == 0, b_P, a_P) + n, np.arange(n)  # posterior count of the label that all have
    again_P = 1.0 - np.prod((same_P[:, None] + draws) / ((a_P + b_P + n)[:, None] + draws), axis=1)
    more_P = alike_P & (again_P > mixed_probability(a_P, b_P, n).mean())
    pos_P = pos_P + more_P * rng.binomial(n, rate_P)
    size_P = np.where(more_P, 2 * n, n)
    kept_pos_P, kept_neg_P = count_kept(pos_P, size_P - pos_P, n)
    mean_P = pos_P / size_P
    signal_P = kept_pos_P * (1 - mean_P) * (1 - rate_P) + kept_neg_P * mean_P * rate_P
    noise_P = kept_pos_P * (1 - mean_P) ** 2 + kept_neg_P * mean_P**2
    alike = float(((pos_P == 0) | (pos_P == size_P)).mean())
    return Worth(int(size_P.sum()), float(signal_P.sum()), float(noise_P.sum()), alike, len(rate_P))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beta", type=float, nargs=2, default=(0.3, 0.9), help="the default fits `make train`'s base")
    parser.add_argument("--prompts", type=int, default=20_000)
    parser.add_argument("--group", type=int, default=4)
    arguments = parser.parse_args()
    n = arguments.group
    a, b = arguments.beta
    if min(a, b) <= 0.0:
        raise UserError(f"--beta {a:g} {b:g}: both numbers must be positive, such as 0.3 0.9")
    rate_P = draw_beta_rates(arguments.prompts, a, b, seed=0)
    population = np.full(len(rate_P), a), np.full(len(rate_P), b)
    exact = CERTAIN * rate_P, CERTAIN * (1.0 - rate_P)
    order = np.lexsort((rate_P, -mixed_probability(*exact, n)))
    chosen = order[: len(order) // 4]
    half, quarter = rate_P[order[: len(order) // 2]], rate_P[chosen]
    found = {
        f"grpo n={n}": trained({"preset": "grpo"}, n, rate_P, population),
        f"grpo n={2 * n}": trained({"preset": "grpo"}, 2 * n, rate_P, population),
        **{
            name: trained({"preset": name}, n, rate_P, population)
            for name in ("ada_seq_positive", "ada_seq_balance", "ada_seq_lean", "ada_seq_log")
        },
        **{
            f"{name}, weights of the linear objective": trained(
                {"preset": name, "advantage": {"weighting": "objective"}}, n, rate_P, population
            )
            for name in ("ada_seq_balance", "ada_seq_lean")
        },
        f"ada_est_ema n={2 * n}, knowing p": trained({"preset": "ada_est_ema"}, 2 * n, rate_P, exact),
        f"grpo n={n}, reserve prompts": trained({"preset": "grpo"}, n, rate_P, population, reserve=len(rate_P) // 2),
        f"grpo n={n}, re-sampling by gain": resampled_by_gain(n, rate_P, population),
        f"grpo n={n}, re-sampling by gain, knowing p": resampled_by_gain(n, rate_P, exact),
        f"grpo n={n}, shrunk baseline": trained(SHRUNK, n, rate_P, population),
        f"grpo n={n}, shrunk baseline, knowing p": trained(SHRUNK, n, rate_P, exact),
        f"grpo n={n}, best half of candidates, knowing p": trained({"preset": "grpo"}, n, half, population),
        f"grpo n={n}, best quarter of candidates, knowing p": trained({"preset": "grpo"}, n, quarter, population),
        "the same with the shrunk baseline": trained(SHRUNK, n, quarter, (exact[0][chosen], exact[1][chosen])),
        "ada_single n=1": trained(SHRUNK, 1, rate_P, population),
        "ada_single n=1, knowing p": trained(SHRUNK, 1, rate_P, exact),
        "ada_single n=1, best quarter of candidates, knowing p": trained(
            SHRUNK, 1, quarter, (exact[0][chosen], exact[1][chosen])
        ),
    }
    reference = found[f"grpo n={n}"]
    rows = [
        {
            "method": name,
            "signal^2 / noise per response": f"{worth.per_response / reference.per_response:.2f}",
            "signal^2 / noise per prompt": f"{worth.per_prompt / reference.per_prompt:.2f}",
            "signal per response": f"{worth.signal / worth.responses * reference.responses / reference.signal:.2f}",
            "zero-signal groups": f"{worth.zero_signal:.2f}",
        }
        for name, worth in found.items()
    ]
    print(f"pass rates from Beta({a:g}, {b:g}), {arguments.prompts} prompts, relative to GRPO n = {n}\n")
    print(markdown_table(rows))
    return 0


if __name__ == "__main__":
    measure(main)
