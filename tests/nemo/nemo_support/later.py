"""What NeMo-RL v0.8.0 has and main of 22 August 2026 has not, emulated: a copy of main with one edit per difference.

v0.8.0's whole tree is not at hand. Its pull requests, tests and API pages say what it does. Each edit repeats one such
behaviour, so the hooks meet it in NeMo-RL's own loop.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

GROUP_IDS = "_prompt_group_ids"


@dataclass(frozen=True, slots=True)
class Edit:
    """One difference.

    Attributes:
        pull_request: its number upstream.
        what: what differs, in one sentence.
        file: path below the checkout.
        edit: the new text of the file.
    """

    pull_request: int
    what: str
    file: str
    edit: Callable[[str], str]


def substituted(pattern: str, replacement: str, count: int) -> Callable[[str], str]:
    """An edit by regular expression that must match `count` times."""

    def edit(text: str) -> str:
        text, found = re.subn(pattern, replacement, text)
        if found != count:
            raise AssertionError(f"{pattern} matches {found} times instead of {count}: main has changed")
        return text

    return edit


BASELINES = "calculate_baseline_and_std_per_prompt"
TRIVIAL = "calculate_trivial_reward_distributions"
TRIVIAL_FUNCTION = f"""

def {TRIVIAL}(prompts, rewards, valid_mask):
    return {BASELINES}(prompts, rewards, valid_mask)[2]
"""
NUMBERS = (
    "torch.arange(repeated_batch.size // master_config.grpo.num_generations_per_prompt)"
    ".repeat_interleave(master_config.grpo.num_generations_per_prompt).unsqueeze(1)"
)
EDITS = (
    Edit(4158, "the baselines come with a third tensor", "nemo_rl/algorithms/utils.py",
         substituted(r"return baseline, std\n", "return baseline, std, std == 0\n", 1)),
    Edit(4158, "a function of its own finds groups with one reward value", "nemo_rl/algorithms/utils.py",
         lambda text: text + TRIVIAL_FUNCTION),
    Edit(4158, "the loop takes three values", "nemo_rl/algorithms/grpo.py",
         substituted(rf"baseline, std = {BASELINES}\(", rf"baseline, std, _ = {BASELINES}(", 2)),
    Edit(4158, "the stock estimators take three values", "nemo_rl/algorithms/advantage_estimator.py",
         substituted(rf"(baseline, std|base, std_k|mean, _) = {BASELINES}\(", rf"\1, _ = {BASELINES}(", 3)),
    Edit(4158, "the loop imports that function", "nemo_rl/algorithms/grpo.py",
         substituted(rf"    {BASELINES},\n", rf"    {BASELINES},\n    {TRIVIAL},\n", 1)),
    Edit(4158, "that function decides dynamic sampling, not the standard deviation", "nemo_rl/algorithms/grpo.py",
         substituted(r"( +)(repeated_batch, is_batch_complete, batch_cache, ds_metrics = \(\n)",
                     rf"\1std = 1.0 - {TRIVIAL}(input_ids, rewards, torch.ones_like(rewards)).float()\n\1\2", 1)),
    Edit(4158, "the driver gives every prompt a number before the rollout", "nemo_rl/algorithms/grpo.py",
         substituted(r"( +)(dynamic_sampling_num_gen_batches \+= 1\n)",
                     rf'\1\2\1repeated_batch["{GROUP_IDS}"] = {NUMBERS}\n', 1)),
    Edit(4158, "the driver finds that number in the batch that comes back", "nemo_rl/algorithms/grpo.py",
         substituted(r'( +)(print\("▶ Computing advantages\.\.\.", flush=True\)\n +# For DAPO)',
                     rf'\1input_ids = repeated_batch["{GROUP_IDS}"]\n\1\2', 1)),
)  # fmt: skip


def later(main: Path, folder: Path) -> Path:
    """A copy of main's package with every edit."""
    shutil.copytree(main / "nemo_rl", folder / "nemo_rl")
    shutil.copytree(main / "examples" / "configs", folder / "examples" / "configs")
    for one in EDITS:
        path = folder / one.file
        path.write_text(one.edit(path.read_text(encoding="utf-8")), encoding="utf-8")
    return folder
