"""Which features tell the value estimator a prompt's pass rate: hidden states of the policy, or the prompt's tokens.

    python recipes/benchmarks/value_features.py [--task mini_sudoku] [--decays 0.9 0.97 0.99] [--orders 20]
                                               [--steps 8] [--prompts 32]

Takes the task's base model (trained when it is not cached) with the pass rates that were measured on it, shuffles its
prompts, and lets the estimator go through them as a training run does: predict a step's prompts, then learn from
`--group` labels of each. Reports the correlation of predictions with pass rates over the last three quarters, mean and
standard deviation over the orders. Training itself uses the mean (nemo_ada.cpu.learner.rank).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from compare_cpu import LEARNING_RATES, ROOT
from measure import measure
from tables import markdown_table
from transformers import AutoModelForCausalLM

from nemo_ada.core.arrays import FloatArray
from nemo_ada.core.prompts.estimators import ValueRegressor, ValueSettings
from nemo_ada.cpu.base import REPORT, choose_base_folder, prepare_base
from nemo_ada.cpu.settings import load_run
from nemo_ada.cpu.stack import Stack
from nemo_ada.errors import UserError
from nemo_ada.nemo.features import compute_prompt_features
from nemo_ada.run.files import read_json
from nemo_ada.tasks.registry import build_task


def hidden_states(folder: Path, prompts: list[list[int]]) -> dict[str, FloatArray]:
    """Features by name, [P, H] or [P, 2 H], of token lists under the Hugging Face model in `folder`."""
    model = AutoModelForCausalLM.from_pretrained(folder)  # in evaluation mode, as loaded
    last, mean = [], []
    with torch.no_grad():
        for tokens in prompts:
            hidden_TH = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0].double()
            last.append(hidden_TH[-1].numpy())
            mean.append(hidden_TH.mean(dim=0).numpy())
    last_PH, mean_PH = np.array(last), np.array(mean)
    return {"the prompt's end": last_PH, "mean over the prompt": mean_PH, "both": np.hstack([last_PH, mean_PH])}


def online_correlation(
    features_PF: FloatArray, rate_P: FloatArray, decay: float, steps: int, prompts: int, group: int, seed: int
) -> float:
    """Correlation of predictions, each made before its prompt was drawn, with `rate_P`; first quarter left out."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rate_P))[: steps * prompts]
    estimator, predicted_P = ValueRegressor(features_PF.shape[1], ValueSettings(decay=decay)), np.zeros(len(rate_P))
    for chosen in np.split(order, steps):
        ids = [str(position) for position in chosen]
        a_P, b_P = estimator.predict_beta(ids, features_PF[chosen])
        predicted_P[chosen] = a_P / (a_P + b_P)
        labels = rng.binomial(group, rate_P[chosen])
        estimator.update(ids, labels, np.full(prompts, group), features_PF[chosen])
    judged = order[len(order) // 4 :]
    return float(np.corrcoef(predicted_P[judged], rate_P[judged])[0, 1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(LEARNING_RATES), default="mini_sudoku")
    parser.add_argument(
        "--decays", type=float, nargs="+", default=[0.9, 0.97, 0.99], help="of what the estimator knows, per step"
    )
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=32, help="prompts per step")
    parser.add_argument("--group", type=int, default=4, help="responses per prompt")
    arguments = parser.parse_args()
    config = load_run(ROOT / "configs" / "cpu" / f"{arguments.task}.yaml")
    task = build_task(config.task, Path(config.base.cache_dir))
    folder = choose_base_folder(config, task)
    if not folder.exists():
        with Stack(config) as stack:
            prepare_base(config, task, stack)
    rate_P = np.array(read_json(folder / REPORT)["rates"])
    if arguments.steps * arguments.prompts > len(rate_P):
        raise UserError(
            f"--steps {arguments.steps} of --prompts {arguments.prompts} need {arguments.steps * arguments.prompts} "
            f"prompts, and {len(rate_P)} have measured pass rates"
        )
    prompts = [task.tokenizer.encode(prompt.text) for prompt in task.splits().train[: len(rate_P)]]
    schedule = arguments.steps, arguments.prompts, arguments.group
    rows = []
    logs = [[{"token_ids": torch.tensor(tokens)}] for tokens in prompts]
    kinds = {**hidden_states(folder, prompts), "hashed counts of the tokens (NeMo-RL)": compute_prompt_features(logs)}
    for name, features_PF in kinds.items():
        for decay in arguments.decays:
            found = [
                online_correlation(features_PF, rate_P, decay, *schedule, seed) for seed in range(arguments.orders)
            ]
            rows.append(
                {
                    "features": name,
                    "decay": f"{decay:g}",
                    "correlation": f"{np.mean(found):.2f}",
                    "deviation": f"{np.std(found):.2f}",
                }
            )
    print(markdown_table(rows))
    return 0


if __name__ == "__main__":
    measure(main)
