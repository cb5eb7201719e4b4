"""The runs of a rehearsal on GPUs: what each is called, and its config.

On one GPU a config gets the model's real shape, and a share of its prompts (`fit`). At full size it stays as it is.

A run is named by its kind, and by what else differs in it: `balance`, `balance+reinforce_ada.budget.max_seconds=20`. So
`--runs` compares a method with and without any key.
"""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf

from nemo_ada.config.load import apply_overrides, resolve_config
from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.lab.plan.assumptions import choose_lengths, choose_rates
from nemo_ada.rehearsal.fit import ONE_GPU, count_fitting_layers, fit_to_one_gpu
from nemo_ada.rehearsal.model import require_shape
from nemo_ada.rehearsal.shrink import Layout, Shrinker, shorten, shrink
from nemo_ada.rehearsal.standins import FOR_CPU, OF_RUNS, choose_replacements
from nemo_ada.rehearsal.standins.replacing import Replacements
from nemo_ada.rehearsal.standins.responses import Draws
from nemo_ada.rules.facts.cards import KEY, find_card_of_device
from nemo_ada.rules.facts.memory import compute_checkpoint_bytes
from nemo_ada.rules.facts.models import ModelShape, find_shape
from nemo_ada.rules.facts.nemo_config import NemoConfig

STOCK, METHODS, RESUMED = "grpo-sync", "methods", "resumed"
GRPO, BALANCE, OWN = "grpo", "balance", "own"
PRESETS: Mapping[str, str] = {BALANCE: "ada_seq_balance", "single": "ada_single", "lean": "ada_seq_lean"}
"""Run -> preset, in the order of the runs. The first runs of all are NeMo-RL's own loop."""
RUNS = (STOCK, GRPO, *PRESETS, RESUMED)
"""All slices and runs that `--runs` can name on one GPU. All of them take place unless it says otherwise."""
FULL_RUNS = (GRPO, OWN, RESUMED)
"""The same at full size."""
UNREPEATED = (STOCK, GRPO, RESUMED)
"""All but the runs that a resumed one can repeat."""
NAME = re.compile(r"[\w.=+-]{1,150}", re.ASCII)
"""Names of runs, which are names of files, too."""
OF_WORKERS = ("policy.", "cluster.")
"""Keys of the learner and the engine. Runs that differ in one cannot share them."""
RATES = 64  # pass rates that are drawn; each prompt has one of them
OUR_ENGINE = ("scheduler_cls", "max_num_seqs", "max_num_batched_tokens", "compilation_config")
"""Arguments of vLLM that our configs set."""


@dataclass(frozen=True)
class Configs:
    """The configs of a rehearsal's runs.

    Attributes:
        configs: Run -> its config, in the order of the runs.
        changes: What differs from the user's config.
        layout: Processes of a run.
        shape: Shape of the model that runs. None where it is not known, at full size only.
        draws: Lengths and verdicts of responses.
        stand_ins: What is replaced.
        dry_run: Whether everything runs on a CPU.
        real: Whether the model has weights of its own, with which each run starts.
        saved: The run that saves checkpoints, of which the last but one is resumed. None where no run does.
        full: Whether the runs have the config's full size and its GPUs.
    """

    configs: dict[str, dict[str, Any]]
    changes: list[Any]
    layout: Layout
    shape: ModelShape | None
    draws: Draws
    stand_ins: tuple[Replacements, ...]
    dry_run: bool
    real: bool
    saved: str | None
    full: bool = False

    @property
    def typical(self) -> dict[str, Any]:
        """The config of the last run. In what this module reads from it, all runs are alike."""
        return list(self.configs.values())[-1]

    @classmethod
    def of(
        cls, config: Mapping[str, Any], folder: Path, *, steps: int, scale: float, card: str, dry_run: bool,
        runs: Sequence[str] = RUNS, full: bool = False,
    ) -> Configs:  # fmt: skip
        """Make the configs.

        Args:
            config: The user's resolved config.
            folder: Folder of the rehearsal.
            steps: Training steps of each run.
            scale: Share of the config's prompts per step on one GPU.
            card: CUDA's name of the GPU.
            dry_run: Whether everything runs on a CPU.
            runs: The wanted runs.
            full: Whether the runs have the config's full size and its GPUs.

        Raises:
            UserError: The config cannot run there.
        """
        weights = Path(str(Values(config).get("policy.model_name", ""))).expanduser().glob("*.safetensors")
        real, known = not dry_run if full else any(weights), find_card_of_device(card)
        user = {**config, KEY: known.name} if known is not None and not full else dict(config)
        repeatable = [name for name in runs if kind_of(name) not in UNREPEATED]
        saved = repeatable[-1] if RESUMED in runs else None
        configs, changes, layout = {}, [], read_layout(config) if full else ONE_GPU
        model, data = (None, None) if real else (folder / "model", folder / "data")
        for name in (name for name in runs if name != RESUMED):
            made = Shrinker(make_variant(user, name))
            if not full:
                made = fit_to_one_gpu(made.config, model=model, data=data, scale=scale)
            if dry_run:
                small, layout = shrink(made.config, model=model, data=data, out=folder / name, steps=steps)
                made = Shrinker(small.config, [*made.changes, *small.changes])
            short = shorten(made.config, out=folder / name, steps=steps)
            short.config.setdefault("checkpointing", {})["enabled"] = name == saved
            configs[name], changes = short.config, [*made.changes, *short.changes]
        if dry_run and not full:  # one process pretends to be a GPU, as there is one
            layout = ONE_GPU
            for own in configs.values():
                own["cluster"]["gpus_per_node"] = 1
        name = str(config["policy"]["model_name"])
        shape = (find_shape(name) or (None,))[0] if full else require_shape(name)
        if shape is not None and not dry_run and not full:
            own = NemoConfig.of_megatron(next(iter(configs.values())))
            fits = count_fitting_layers(own, shape)
            if real and fits < shape.layers:
                raise UserError(
                    f"policy.model_name={own.model_name}: {fits} of its {shape.layers} layers fit on a "
                    f"{own.card.name} by the estimate of `check`; take a smaller model"
                )
            shape = replace(shape, layers=fits)
            if saved is not None and shutil.disk_usage(folder).free < (steps + 1) * compute_checkpoint_bytes(
                own, shape
            ):
                configs[saved]["checkpointing"]["enabled"] = False
        slices = choose_replacements(gpu=not dry_run, slices=not real) if not full else FOR_CPU if dry_run else ()
        stand_ins = (*slices, *(OF_RUNS if len(configs) > 1 and not full else ()))
        draws = _make_draws(config, next(iter(configs.values())))
        return cls(configs, changes, layout, shape, draws, stand_ins, dry_run, real, saved, full)

    def drivers(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The runs of each driver, by its name, in order.

        At full size each run takes all GPUs and has a driver of its own. On one GPU only those runs have one whose
        engine or learner is another: NeMo-RL's default engine, and runs with a key of OF_WORKERS in their names.
        """
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, config in self.configs.items():
            other = kind_of(name) == STOCK or any(
                word.lstrip("+").startswith(OF_WORKERS) for word in overrides_of(name)
            )
            found.setdefault(name if self.full or other else METHODS, {})[name] = config
        return found

    def count_problems(self, steps: int) -> int:
        """Problems that the longest run needs."""
        return steps * max(int(config["grpo"]["num_prompts_per_step"]) for config in self.configs.values())


def _make_draws(config: Mapping[str, Any], run: Mapping[str, Any]) -> Draws:
    """Return pass rates as the config's data set has them, and lengths of responses of a run."""
    source = str((config.get("data", {}).get("train") or {}).get("data_path", ""))
    rates = choose_rates(source, None, None, 0)[0].draw(RATES, 0)
    longest = int(run["policy"]["generation"]["max_new_tokens"])
    return Draws(tuple(round(float(rate), 4) for rate in rates), choose_lengths(longest, None, None)[0])


def read_layout(config: Mapping[str, Any]) -> Layout:
    """Return the processes of a config at its full size. Raises UserError as `NemoConfig.of` does."""
    own = NemoConfig.of(config)
    learner = own.learner
    kind: Literal["megatron", "dtensor"] = "dtensor" if own.dtensor else "megatron"
    return Layout(kind, learner.tp, learner.pp, learner.cp, learner.ep, learner.replicas)


def choose_runs(runs: Sequence[str] | None, *, full: bool) -> tuple[str, ...]:
    """Return the wanted runs. None means all of one GPU, or the usual ones at full size.

    Raises UserError for a name that is not known, or a resumed run without a first one.
    """
    known, first = (FULL_RUNS, OWN) if full else (RUNS, BALANCE)
    if runs is None:
        return known
    given, kinds = f"--runs {','.join(runs)}", {kind_of(name) for name in runs}
    if kinds - set(known) or not runs:
        raise UserError(f"{given}: take some of {','.join(known)}")
    for name in runs:
        words = overrides_of(name)
        if not NAME.fullmatch(name) or (words and kind_of(name) == RESUMED):
            raise UserError(
                f"{given}: {name[:150]} cannot be run; add keys as in {first}+grpo.num_prompts_per_step=8, of letters, "
                f"digits and ._-, 150 at most, and none to {RESUMED}, which repeats the run before it"
            )
    if not kinds - {RESUMED}:
        raise UserError(f"{given}: add one that trains, such as {GRPO} or {first}")
    if RESUMED in kinds and not kinds - set(UNREPEATED):
        raise UserError(f"{given}: {RESUMED} repeats a step of our loop; add one such as {first}")
    return tuple(dict.fromkeys(runs))


def kind_of(name: str) -> str:
    """Return what a run is called without the keys that differ in it."""
    return name.partition("+")[0]


def overrides_of(name: str) -> list[str]:
    """Return the overrides in the name of a run. One that adds a key, `+key=value`, has a second plus."""
    return re.split(r"(?<!\+)\+", name)[1:]


def make_variant(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the config of a run. Raises UserError for a key in its name that cannot be read."""
    made, words = _make_kind(config, kind_of(name)), overrides_of(name)
    return resolve_config(apply_overrides(OmegaConf.create(made), words)) if words else made


def _make_kind(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    if name in PRESETS:
        return _set_preset(config, PRESETS[name])
    own = copy.deepcopy(dict(config))
    if name in (STOCK, GRPO):  # NeMo-RL's own loop and its GRPO, without our hooks
        own.pop("reinforce_ada", None)
    generation = own["policy"]["generation"]
    if name == STOCK:  # as a user of NeMo-RL has it, without what our presets need and without what makes it faster
        own["optimizer_offload"] = "pageable"
        generation["vllm_cfg"] |= {"async_engine": False}
        for key in OUR_ENGINE:
            generation.get("vllm_kwargs", {}).pop(key, None)
    return own


def _set_preset(config: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """Return the config with another preset. `ada_single` has a response per prompt and as many prompts as rows."""
    own = copy.deepcopy(dict(config))
    budget = own["reinforce_ada"].get("budget")
    own["reinforce_ada"] = {"preset": preset, **({"budget": budget} if budget else {})}
    if preset == "ada_single":
        own["reinforce_ada"].pop("budget", None)
        grpo = own["grpo"]
        grpo["num_prompts_per_step"] *= grpo["num_generations_per_prompt"]
        grpo["num_generations_per_prompt"] = 1
    return own
