"""What NeMo-RL v0.8.0 has and no tree at hand has, emulated: a copy of a checkout with one edit per difference.

v0.8.0's whole tree is not at hand. recipes/upstream/release_tree.py makes one of main and of the pull requests that
merge cleanly, and these edits are the rest: pull requests that conflict or that came later, and files that are public
at NVIDIA-NeMo/RL 7b235d3e. Each edit repeats one such behaviour, so the hooks meet it in NeMo-RL's own loop. The
text of the edits is ours.
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
        source: number of its pull request upstream, or the file at 7b235d3e that was read.
        what: what differs, in one sentence.
        file: path below the checkout.
        edit: the new text of the file.
    """

    source: int | str
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
SIZES = 'torch.tensor([len(one["batch"]["total_reward"]) for one in trajectories])'
POSITIONS = f"torch.arange(len(trajectories)).repeat_interleave({SIZES}).unsqueeze(1)"
PROMPT_IDS = r'prompt_ids_for_adv = prompt_batched_flat\["token_ids"\]\n'
LOOP = "nemo_rl/algorithms/grpo.py"
COLLECTOR = "nemo_rl/algorithms/async_utils/trajectory_collector.py"
ENDLESS = '__import__("nemo_rl.data.dataloader", fromlist=["dataloader"]).CyclingDataLoader'
CHECKPOINT_STATE = '''\
    def get_checkpoint_dataloader_state(self, frontier_ordinal):
        """A state that no longer holds, where a subclass does not answer."""
        return {"dataloader_state": {}, "base_ordinal": frontier_ordinal, "frontier_aligned": True}

    def get_checkpoint_state(self, frontier_ordinal):
        return {"dataloader": self.get_checkpoint_dataloader_state(frontier_ordinal), "rollouts": {}}

'''
GYM_ROLLOUTS, GYM_ACTOR = "nemo_rl/experience/rollouts.py", "nemo_rl/environments/nemo_gym.py"
SHARD_SET = '''

class NemoGymShardSet:
    """The names of v0.8.0's class that a rollout uses."""

    def __init__(self, handles):
        self.handles = handles

    @property
    def all_handles(self):
        return [handle for replicas in self.handles.values() for handle in replicas]

    def pick_handle(self, route_name):
        assert isinstance(route_name, str)
        return self.all_handles[0]


def as_nemo_gym_shard_set(environment):
    return environment if isinstance(environment, NemoGymShardSet) else NemoGymShardSet({"": [environment]})


def get_nemo_gym_route_name(row):
    return row["agent_ref"]["name"]
'''
PICK = """\
        from nemo_rl.environments.nemo_gym import as_nemo_gym_shard_set, get_nemo_gym_route_name

        shards = as_nemo_gym_shard_set(task_to_env["nemo_gym"])
        await shards.all_handles[0].rollout_config.remote()
        nemo_gym_environment = shards.pick_handle(get_nemo_gym_route_name(nemo_gym_rows[0]))
"""
EDITS = (
    Edit(3773, "an estimator has one of four names", "nemo_rl/algorithms/advantage_estimator.py",
         substituted(r"(import torch\nfrom pydantic import BaseModel\n(?:.*\n)*?)    name: str = \"grpo\".*\n",
                     r"from typing import Literal\n\n\1"
                     r'    name: Literal["grpo", "gdpo", "opd", "reinforce_plus_plus"] = "grpo"\n', 1)),
    Edit(4158, "the baselines come with a third tensor", "nemo_rl/algorithms/utils.py",
         substituted(r"return baseline, std\n", "return baseline, std, std == 0\n", 1)),
    Edit(4158, "a function of its own finds groups with one reward value", "nemo_rl/algorithms/utils.py",
         lambda text: text + TRIVIAL_FUNCTION),
    Edit(4158, "the loop takes three values", LOOP,
         substituted(rf"baseline, std = {BASELINES}\(", rf"baseline, std, _ = {BASELINES}(", 2)),
    Edit(4158, "the stock estimators take three values", "nemo_rl/algorithms/advantage_estimator.py",
         substituted(rf"(baseline, std|base, std_k|mean, _) = {BASELINES}\(", rf"\1, _ = {BASELINES}(", 3)),
    Edit(4158, "the loop imports that function", LOOP,
         substituted(rf"    {BASELINES},\n", rf"    {BASELINES},\n    {TRIVIAL},\n", 1)),
    Edit(4158, "that function decides dynamic sampling, not the standard deviation", LOOP,
         substituted(r"( +)(repeated_batch, is_batch_complete, batch_cache, ds_metrics = \(\n)",
                     rf"\1std = 1.0 - {TRIVIAL}(input_ids, rewards, torch.ones_like(rewards)).float()\n\1\2", 1)),
    Edit("grpo.py", "the driver numbers the prompts before the rollout", LOOP,
         substituted(r"( +)(dynamic_sampling_num_gen_batches \+= 1\n)", rf"\1\2\1numbers = {NUMBERS}\n", 1)),
    Edit("grpo.py", "it wants as many rows back, and gives them these numbers", LOOP,
         substituted(r'( +)(print\("▶ Computing advantages\.\.\.", flush=True\)\n +# For DAPO)',
                     r"\1assert len(numbers) == repeated_batch.size\n"
                     rf'\1input_ids = repeated_batch["{GROUP_IDS}"] = numbers\n\1\2', 1)),
    Edit(3882, "the estimator is given that number", LOOP,
         substituted(rf"{PROMPT_IDS}((?: +del \w+\n){{5}})",
                     rf'prompt_ids_for_adv = repeated_batch["{GROUP_IDS}"]\n\1', 1)),
    Edit(3882, "the asynchronous loop knows a group by its place among those that it sampled", LOOP,
         substituted(rf"{PROMPT_IDS}((?: +del \w+\n){{2}}\n)", rf"prompt_ids_for_adv = {POSITIONS}\n\1", 1)),
    Edit(3248, "the asynchronous loop's data loader has no end", LOOP,
         substituted(r"start_collection\.remote\(dataloader\)", f"start_collection.remote({ENDLESS}(dataloader))", 1)),
    Edit(3599, "a checkpoint has an older state of the loader, as of the prompts that were trained on",
         LOOP,
         substituted(r"( +)(trajectory_collector)\.get_dataloader_state\.remote\(\)\n( +)\)\n",
                     r"\1\2.get_checkpoint_state.remote(consumed_samples)\n"
                     r'\3)["dataloader"]["dataloader_state"]\n', 1)),
    Edit(3599, "the collector saves that state, and the prompts that it holds back", COLLECTOR,
         substituted(r"(    def get_dataloader_state\()", rf"{CHECKPOINT_STATE}\1", 1)),
    Edit(3599, "the collector slices the prompts that it does not start", COLLECTOR,
         substituted(r"( +)(rollout_batch = batch\.slice\(0, num_prompts_to_generate\)\n)",
                     r"\1batch.slice(num_prompts_to_generate, num_prompts_in_batch)\n\1\2", 1)),
    Edit(3599, "a worker is given the numbers of its prompts", COLLECTOR,
         substituted(r"( +)(use_nemo_gym=use_nemo_gym,\n)( +\)\n +\)\n\n +worker = )",
                     r"\1\2\1dispatched_task_indices=None,\n\3", 1)),
    Edit(3599, "a worker takes the numbers of its prompts", COLLECTOR,
         substituted(r"(    async def _run_rollout_batch_worker\((?:\n +\w.*,)+\n)( +\) -> None:)",
                     r"\1        dispatched_task_indices=None,\n\2", 1)),
    Edit("rollouts.py", "Gym's synchronous rollout wants the rows per prompt", GYM_ROLLOUTS,
         substituted(r"(def run_nemo_gym_rollout_sync\((?:\n    \w.*,)*?\n    log_full_result_tables: bool,\n)",
                     r"\1    *,\n    num_generations_per_prompt: int,\n", 1)),
    Edit("grpo.py", "the loop says the rows per prompt", LOOP,
         substituted(r"(nemo_gym_rollout_result = run_nemo_gym_rollout_sync\(\n)( +)",
                     r"\1\2num_generations_per_prompt=master_config.grpo.num_generations_per_prompt,\n\2", 2)),
    Edit("rollouts.py", "Gym's environment may be a set of shards, whose actors know the rollout's keys", GYM_ROLLOUTS,
         substituted(r'        nemo_gym_environment = task_to_env\["nemo_gym"\]\n', PICK, 1)),
    Edit("rollouts.py", "an actor's row has its agent, too", GYM_ROLLOUTS,
         substituted(r"rowidx, (result, timing_metrics = await future)", r"rowidx, _, \1", 1)),
    Edit("rollout_manager.py", "an actor returns the row's agent, too", GYM_ACTOR,
         substituted(r'(yield nemo_gym_row\["_rowidx"\], )(nemo_rl_result, timing_metrics\n)',
                     r'\1nemo_gym_row["agent_ref"], \2', 1)),
    Edit("rollouts.py", "an actor says the keys that the rollout reads", GYM_ACTOR,
         substituted(r"(    async def run_rollouts\()", r"    def rollout_config(self):\n        return {}\n\n\1", 1)),
    Edit("environments/nemo_gym.py at another commit", "the set of shards", GYM_ACTOR, lambda text: text + SHARD_SET),
)  # fmt: skip


def later(checkout: Path, folder: Path) -> Path:
    """A copy of a checkout's package with every edit."""
    shutil.copytree(checkout / "nemo_rl", folder / "nemo_rl")
    shutil.copytree(checkout / "examples" / "configs", folder / "examples" / "configs")
    for one in EDITS:
        path = folder / one.file
        path.write_text(one.edit(path.read_text(encoding="utf-8")), encoding="utf-8")
    return folder
