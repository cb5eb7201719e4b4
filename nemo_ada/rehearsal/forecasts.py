"""What `plan` and `check` say of a rehearsal on GPUs, before its first slice."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.core.sampling.budget import SECONDS
from nemo_ada.errors import UserError
from nemo_ada.lab.plan.command import Plan, PlanOptions, make_plan
from nemo_ada.lab.plan.forecast import Time
from nemo_ada.rehearsal.runs import CAPPED, GRPO, Configs
from nemo_ada.rehearsal.shrink import Shrinker
from nemo_ada.rules.facts.memory import learner_phase, logprob_phase, refit_phase
from nemo_ada.rules.facts.nemo_config import NemoConfig
from nemo_ada.run import start
from nemo_ada.run.files import write_atomically

SLOT = "04:00:00"
LARGEST_RATE = 1e-3  # `plan` takes no larger learning rate, and a dry run has one
CAP_SHARE = 1.1  # seconds of sampling of the capped run, over the forecast of GRPO's


@dataclass
class Forecasts:
    """What `plan` and `check` say before the first slice.

    Attributes:
        plans: Run -> its plan.
        memory: Phase of `check` -> GiB.
        warnings: What could not be forecast.
    """

    plans: dict[str, Plan] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, made: Configs, folder: Path) -> Forecasts:
        """Make the forecast, with the pass rates and the lengths that are drawn."""
        own = cls()
        rates = folder / "pass_rates.txt"
        write_atomically(rates, "".join(f"{rate}\n" for rate in made.draws.rates))
        paths = {}
        for name, config in made.configs.items():
            paths[name] = folder / f"{name}.yaml"
            env = {key: _without_reward(one) for key, one in config.get("env", {}).items()}
            known = Shrinker({**copy.deepcopy(config), "env": env})
            for key in ("lr", "min_lr"):
                known.at_most("update", f"policy.megatron_cfg.optimizer.{key}", LARGEST_RATE)
            write_atomically(paths[name], json.dumps(known.config, default=str))  # JSON is YAML
        spawned = start.listed(**start.SAFE)
        with spawned, ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as beside:
            plans = {name: beside.submit(_plan, path, rates) for name, path in paths.items()}
            for name, plan in plans.items():
                try:
                    own.plans[name] = plan.result()
                except UserError as problem:
                    own.warnings.append(f"nemo-ada plan, {name}: {problem}")
        if CAPPED in made.configs and GRPO in own.plans:
            seconds = round(CAP_SHARE * own.plans[GRPO].forecast.phases["sampling"].p50, 1)
            ours = made.configs[CAPPED]["reinforce_ada"]
            if Values(made.configs[CAPPED]).get(SECONDS.key) is None:  # a user's cap stays
                ours["budget"] = {**(ours.get("budget") or {}), SECONDS.name: seconds}
        try:
            typical = NemoConfig.of_megatron(made.typical)
            if made.shape is not None:
                phases = [phase(typical, made.shape) for phase in (learner_phase, logprob_phase, refit_phase)]
                own.memory |= {estimate.name: estimate.gib for estimate in phases}
            own.memory["vLLM"] = typical.engine.memory_share * typical.card.gib
        except UserError as problem:
            own.warnings.append(f"nemo-ada check: {problem}")
        return own

    def as_dict(self) -> Mapping[str, Any]:
        """Return the content of forecast.json."""
        phases = {name: {phase: time.p50 for phase, time in planned(plan).items()} for name, plan in self.plans.items()}
        return {"seconds": phases, "memory_gib": self.memory, "warnings": self.warnings}


def _without_reward(environment: Any) -> Any:
    """Leave out the user's reward, which only a YAML in its own folder may name, and which `plan` does not ask."""
    if not isinstance(environment, Mapping):
        return environment
    return {key: value for key, value in environment.items() if key != "reward"}


def _plan(path: Path, rates: Path) -> Plan:
    return make_plan(path, [], PlanOptions(SLOT, pass_rates=rates, compare=False))


def planned(plan: Plan | None) -> Mapping[str, Time]:
    """Phase of a step -> its time, and that of the whole step."""
    return {} if plan is None else {**plan.forecast.phases, "step": plan.forecast.step}
