"""A run of TRL's GRPOTrainer with the settings of a run config; peers.py starts it, in TRL's interpreter.

    .cache/peers/trl/bin/python peers_trl.py [--save-every K] [--rows FILE] [--rows-at-once N] [--completions]
                                             BASE CONFIG [KEY=VALUE ...]

BASE is the Hugging Face folder to start from. Writes metrics.jsonl with the names of our own runs into run_dir, and a
model folder checkpoint-STEP every K steps. With --rows it draws no responses: it takes those of our run. With
--completions TRL also writes its own table of responses, which `nemo-ada whatif RUN_DIR` reads.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from measure import measure
from process_tree import processor_seconds
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from nemo_ada.core.prompts.order import PromptOrder
from nemo_ada.cpu.settings import RunConfig, load_run
from nemo_ada.tasks.prompting import ModelTokenizer, PromptFormat
from nemo_ada.tasks.protocol import Prompt, score_many
from nemo_ada.tasks.registry import build_task


class Clock:
    """Seconds, and processor seconds of this process and its children, since it was made."""

    def __init__(self) -> None:
        self._began, self._processor_began = time.perf_counter(), processor_seconds(os.getpid())

    def spent(self, phase: str) -> dict[str, float]:
        """Both, as metrics of a phase."""
        processor = processor_seconds(os.getpid()) - self._processor_began
        return {f"time/{phase}": time.perf_counter() - self._began, f"cpu/{phase}": processor}


class TimedTrainer(GRPOTrainer):
    """GRPOTrainer that notes in `record` what the sampling of the current step took and drew."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.record: dict[str, float] = {}
        super().__init__(*args, **options)

    def _generate_single_turn(self, *args: Any, **options: Any) -> Any:
        clock = Clock()
        completion_ids, logprobs = super()._generate_single_turn(*args, **options)
        self.record |= {**clock.spent("generate"), "ada/tokens_drawn": sum(map(len, completion_ids))}
        return completion_ids, logprobs

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        clock = Clock()
        batch = super()._generate_and_score_completions(inputs)
        self.record |= clock.spent("sampling")
        return batch


class Recorder(TrainerCallback):
    """Appends the trainer's record and the step's time to metrics.jsonl after every step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trainer: TimedTrainer | None = None
        self._clock = Clock()

    def on_train_begin(self, *_args: Any, **_options: Any) -> None:
        self._clock = Clock()

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_options: Any) -> None:
        of_trainer = {} if self.trainer is None else self.trainer.record
        record = {"step": state.global_step, **of_trainer, **self._clock.spent("step")}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._clock = Clock()

    def on_save(self, *_args: Any, **_options: Any) -> None:
        self._clock = Clock()


def grpo_config(config: RunConfig, max_new_tokens: int, save_every: int, at_once: int, completions: bool) -> GRPOConfig:
    """TRL's settings for a run config: one update per step on all rows, token mean, no KL, no standard deviation."""
    rows = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    return GRPOConfig(
        output_dir=str(config.folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=at_once or rows,
        gradient_accumulation_steps=rows // (at_once or rows),
        num_generations=config.grpo.num_generations_per_prompt,
        max_completion_length=max_new_tokens,
        max_steps=config.grpo.max_num_steps,
        shuffle_dataset=False,
        temperature=config.policy.generation.temperature,
        loss_type="dapo",
        scale_rewards="none",
        beta=0.0,
        epsilon=config.loss_fn.ratio_clip_min,
        epsilon_high=config.loss_fn.ratio_clip_max,
        max_grad_norm=config.policy.max_grad_norm,
        seed=config.grpo.seed,
        save_strategy="steps" if save_every else "no",
        save_steps=save_every or 1,
        save_only_model=True,
        logging_strategy="steps" if completions else "no",
        logging_steps=1,
        log_completions=completions,
        report_to="none",
        disable_tqdm=True,
    )


def optimizers(model: torch.nn.Module, config: RunConfig) -> tuple[torch.optim.Optimizer, Any]:
    """Adam, and the rate of our learner: a linear warm-up over lr_warmup_iters steps, then constant.

    TRL's own warm-up gives the first update the rate 0. Weight decay, 0 by default, would also reach biases and norms.
    """
    settings = config.policy.megatron_cfg.optimizer
    warmup = max(1, config.policy.megatron_cfg.scheduler.lr_warmup_iters * config.updates_per_step)
    betas = (settings.adam_beta1, settings.adam_beta2)
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.lr, betas, settings.adam_eps, weight_decay=settings.weight_decay
    )
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))


def replay(path: Path) -> Any:
    """A rollout function that gives the responses of our run, step after step, in place of new ones."""
    saved = np.load(path)
    steps = iter(range(1, len(saved.files) + 1))

    def rollout(prompts: list[str], trainer: TimedTrainer) -> dict[str, Any]:
        step = next(steps)
        tokens_RT, (length_R, start_R) = saved[f"tokens_{step}"], saved[f"lengths_{step}"]
        rows = [row[:length].tolist() for row, length in zip(tokens_RT, length_R, strict=True)]
        prompt_ids = [row[:start] for row, start in zip(rows, start_R, strict=True)]
        if prompt_ids != trainer.processing_class(text=prompts)["input_ids"]:
            raise ValueError(f"step {step}: TRL's prompts are not those of the recorded rows")
        completion_ids = [row[start:] for row, start in zip(rows, start_R, strict=True)]
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}

    return rollout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--rows-at-once", type=int, default=0, help="of a forward pass; 0: all of a step")
    parser.add_argument("--completions", action="store_true", help="also write TRL's own table of responses")
    parser.add_argument("base", type=Path)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    config = load_run(arguments.config, arguments.overrides)
    policy = config.policy
    own = ModelTokenizer(policy.model_name, PromptFormat(policy.tokenizer.template)) if policy.model_name else None
    task = build_task(config.task, Path(config.base.cache_dir), own)
    train, prompts = task.splits().train, config.grpo.num_prompts_per_step
    order = PromptOrder(len(train), config.grpo.seed).at(0, prompts * config.grpo.max_num_steps).tolist()
    config.folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(config.folder / "metrics.jsonl")
    tokenizer = AutoTokenizer.from_pretrained(arguments.base)
    ends = [tokenizer.eos_token_id]
    if own is not None and policy.generation.stop_at_line_end:
        ends.extend(own.line_ends())

    def reward(completions: list[str], completion_ids: list[list[int]], index: list[int], **_more: Any) -> list[float]:
        asked: list[Prompt] = [train[i] for i in index]
        ended = [ids[-1] in ends for ids in completion_ids]
        verdicts = score_many(task, list(zip(asked, completions, ended, strict=True)))
        rewards = [float(verdict.label or 0.0) for verdict in verdicts]
        trainer.record["ada/pass_rate"] = float(np.mean(rewards))
        return rewards

    model = AutoModelForCausalLM.from_pretrained(arguments.base, dtype=torch.float32)
    model.generation_config.eos_token_id = ends
    trainer = TimedTrainer(
        model,
        reward,
        grpo_config(
            config,
            policy.generation.max_new_tokens or task.max_new_tokens,
            arguments.save_every,
            arguments.rows_at_once,
            arguments.completions,
        ),
        train_dataset=Dataset.from_list([{"prompt": train[i].text, "index": i} for i in order]),
        processing_class=tokenizer,
        callbacks=[recorder],
        optimizers=optimizers(model, config),
        rollout_func=None if arguments.rows is None else replay(arguments.rows),
    )
    recorder.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    measure(main)
