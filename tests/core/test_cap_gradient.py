"""Under a cap on samples that binds, the mean update is the gradient that the linear objective declares.

A softmax bandit of four arms, two of them correct. Lengths depend on the arm, so correct answers and some arms end
early. The session, selection and advantages are those of training (objective weighting), but for the mass of a group,
which is replaced by v, an estimate of p (1-p) without bias. `contrast` counts its paths in plain Python. Then the mean
update must be grad p, whatever the scheduler and the stopping rule.
"""

from functools import cache

import numpy as np
import pytest

from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.lab.simulate.engine import DiscreteEventSource

PROMPTS, STEPS, KEPT, CAP, PER_PROMPT, SIGMAS = 48, 50, 4, 32, 12, 4.5
LENGTHS = np.array([10, 40, 25, 90])  # tokens of each arm; arms 0 and 1 are correct


def policy(p):
    return np.array([0.6 * p, 0.4 * p, 0.7 * (1 - p), 0.3 * (1 - p)])


@cache
def contrast(wave, floor):
    """(n_pos, N) -> paths that begin with a correct and an incorrect response / all paths, for balanced(2, 2)."""
    counts = []
    for start in ((0, 0), (1, 1)):
        ways, layer = {}, {start: 1}
        for total in range(sum(start), CAP + 1):
            ways |= {(pos, total): number for (pos, _), number in layer.items()}
            judged = total >= floor and total % wave == 0
            following = {}
            for (pos, neg), number in layer.items():
                if judged and pos >= 2 and neg >= 2:
                    continue
                for step in ((pos + 1, neg), (pos, neg + 1)):
                    following[step] = following.get(step, 0) + number
            layer = following
        counts.append(ways)
    return {end: counts[1].get(end, 0) / number for end, number in counts[0].items()}


def updates(sampling, wave, p):
    """sum_r A_r grad log pi(arm_r) / rows of each step, [steps, arms], with the baseline's factor undone."""
    section = {
        "preset": "ada_seq_balance",
        "sampling": sampling,
        "advantage": {"weighting": "objective"},
        "budget": {"max_samples": PER_PROMPT * PROMPTS},
    }
    sampler = parse_ada_settings(section).sampler(KEPT, 100, run_seed=3)
    moved = []
    for step in range(STEPS):
        arm_PI = np.random.default_rng([step, int(100 * p), wave]).choice(4, size=(PROMPTS, 2 * CAP), p=policy(p))

        def draw(prompt_N, index_N, arm_PI=arm_PI):
            arm_N = arm_PI[prompt_N, index_N]
            return (arm_N < 2).astype(np.float64), LENGTHS[arm_N]

        sampled = sampler.run_step(step, [str(i) for i in range(PROMPTS)], DiscreteEventSource(draw))
        assert sampled is not None
        result, rows = sampled.result, sampled.rows
        assert sampled.sampling_metrics["budget_used_samples"] > 0.95
        assert result.cut_P.any()
        v_P = np.array([contrast(wave, 4)[int(k), int(n)] for k, n in zip(result.pos_P, result.size_P, strict=True)])
        advantage_R = rows.advantage_R.copy()
        mass_P = np.bincount(rows.prompt_R, np.abs(advantage_R) / 2, PROMPTS)  # n' c
        live_R = mass_P[rows.prompt_R] > 0
        advantage_R[live_R] *= (KEPT * v_P / np.where(mass_P > 0, mass_P, 1))[rows.prompt_R[live_R]]
        arm_R = arm_PI[result.prompt_N[rows.pool_R], result.index_N[rows.pool_R]]
        per_arm = np.bincount(arm_R, advantage_R, 4)
        moved.append((per_arm - per_arm.sum() * policy(p)) / (KEPT * PROMPTS))
    return np.array(moved)


@pytest.mark.parametrize("p", [0.1, 0.9])
@pytest.mark.parametrize(
    ("sampling", "wave"),
    [
        ({"wave_size": 4}, 4),
        ({"wave_size": 4, "scheduler": "rounds"}, 4),
    ],
    ids=["waves", "rounds"],
)
def test_the_mean_update_under_a_binding_cap_is_the_gradient(sampling, wave, p):
    moved = updates(sampling, wave, p)
    slope = policy(p) * ((np.arange(4) < 2) - p)
    error = moved.std(axis=0, ddof=1) / np.sqrt(STEPS)
    print(moved.mean(axis=0) @ slope / (slope @ slope))
    assert (np.abs(moved.mean(axis=0) - slope) < SIGMAS * error).all()
    assert (error < 0.12 * np.abs(slope).max()).all()  # a bias of one half would show
