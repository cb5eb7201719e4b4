"""vLLM: the CPU build takes the place of the CUDA build."""

from __future__ import annotations

import functools
import os
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("vLLM's CUDA back end", "vLLM's CPU back end")


@REPLACEMENTS.after(
    "vllm.platforms.interface",
    "Platform.is_sleep_mode_available",
    why="NeMo-RL asks for sleep mode, which the CPU build refuses.",
)
def _allow_sleep(names: Names) -> None:
    names.put("Platform.is_sleep_mode_available", lambda self: True)


@REPLACEMENTS.after(
    "vllm.v1.worker.cpu_worker",
    "CPUWorker.sleep",
    "CPUWorker.wake_up",
    why="Sleep gives GPU memory back to the learner; a CPU's memory is shared anyway.",
)
def _skip_sleep(names: Names) -> None:
    names.answer(("CPUWorker.sleep", "CPUWorker.wake_up"), None)


@REPLACEMENTS.after(
    "vllm.model_executor.layers.utils",
    "dispatch_cpu_unquantized_gemm",
    why="The CPU build repacks weights once; a refit must find them where it loads them.",
)
def _keep_weights_in_place(names: Names) -> None:
    import torch

    def dispatch(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, layer.weight, bias)

    names.put("dispatch_cpu_unquantized_gemm", dispatch)


@REPLACEMENTS.after(
    "vllm.model_executor.layers.fused_moe.experts.cpu_moe",
    "CPUUnquantizedExperts.process_weights_after_loading",
    "CPUUnquantizedExperts.apply",
    why="The same for experts: they are repacked for each call, from where a refit has loaded them.",
)
def _keep_experts_in_place(names: Names) -> None:
    repack, compute = names.module.cpu_prepack_moe_weight, names.get("CPUUnquantizedExperts.apply")

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        self._use_zentorch = False

    @functools.wraps(compute)
    def apply(self: Any, output: Any, hidden_states: Any, w1: Any, w2: Any, *args: Any, **kwargs: Any) -> None:
        compute(self, output, hidden_states, repack(w1, self.isa), repack(w2, self.isa), *args, **kwargs)

    names.put("CPUUnquantizedExperts.process_weights_after_loading", process_weights_after_loading)
    names.put("CPUUnquantizedExperts.apply", apply)


@REPLACEMENTS.after(
    "vllm.utils.system_utils",
    "_maybe_force_spawn",
    why="Inside Ray it starts the engine's process from nothing, which imports vLLM a second time for half a minute.",
)
def _fork_engine(names: Names) -> None:
    def choose_fork() -> None:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # the CPU platform has set it to spawn

    names.put("_maybe_force_spawn", choose_fork)


@REPLACEMENTS.after(
    "vllm.model_executor.layers.fused_moe.layer",
    why="NeMo-RL's FP8 module imports a name that this release of vLLM no longer has; it is unused without FP8.",
)
def _add_moe_name(names: Names) -> None:
    if not hasattr(names.module, "FusedMoE"):
        names.module.FusedMoE = type("FusedMoE", (), {})  # type: ignore[attr-defined]
