"""Checks that need a GPU node: the driver, the memory, FP8 in Transformer Engine, apex.

Only this module of the room uses torch. slurm/health.py tries the links between GPUs and nodes before each job.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.rules.facts.site import find_worker_python
from nemo_ada.rules.finding import Finding, Findings, error, ok, skipped, warning
from nemo_ada.run.start import TimeoutExpired, make_python_command, run

CUDA_FOR_FP8 = (12, 9)
HOPPER = (9, 0)
FUSED, FUSED_KERNEL = "policy.megatron_cfg.gradient_accumulation_fusion", "fused_weight_gradient_mlp_cuda"
SECONDS = 300
PROBE_ENGINE = """
from transformer_engine.pytorch import fp8
print(*fp8.FP8GlobalStateManager.is_fp8_block_scaling_available())
"""


def examine_node(values: Values) -> tuple[list[Finding], float | None]:
    """Return the findings of this node, and the memory of its smallest GPU in GiB.

    They come from a separate process, so that CUDA is not started in this one.
    """
    names = ("gpu.driver", "gpu.memory", "gpu.fp8")
    if importlib.util.find_spec("torch") is None:
        return [skipped(name, "skipped: torch is not installed here") for name in names], None
    try:
        probe = make_python_command(sys.executable, "-m", "nemo_ada.rules.check.gpu")
        done = run(probe, capture_output=True, text=True, timeout=SECONDS)
    except TimeoutExpired:
        return [error("gpu.driver", f"no answer in {SECONDS} s: the driver hangs; look at nvidia-smi and dmesg")], None
    if done.returncode or not done.stdout.strip():
        return [error("gpu.driver", f"the GPU probe failed: {done.stderr.strip()[-500:]}")], None
    answer = json.loads(done.stdout.splitlines()[-1])
    return weigh_findings([Finding(**finding) for finding in answer["findings"]], answer["count"], values), answer[
        "gib"
    ]


def weigh_findings(findings: Iterable[Finding], count: int, values: Values) -> list[Finding]:
    """Return the findings with the levels that they have for a config.

    What FP8 lacks is an error where the config uses FP8. Too few GPUs are an error, too, and apex where it is used.
    """
    wanted = values.integer("cluster.gpus_per_node", count or 1)
    learner = values.get("policy.megatron_cfg.fp8_cfg.enabled", False)
    fp8 = learner or values.get("policy.generation.vllm_cfg.precision") == "fp8"
    weighed = [
        error(finding.key, f"{finding.message}; use the config without -fp8 here")
        if fp8 and finding.key == "gpu.fp8" and finding.level == "warning"
        else finding
        for finding in findings
    ]
    if values.get(FUSED, False) and _run_in_worker(f"import torch, {FUSED_KERNEL}").returncode:
        weighed.append(error(FUSED, f"{FUSED_KERNEL} of apex cannot be imported here; false would work"))
    if 0 < count < wanted:
        weighed.append(error("cluster.gpus_per_node", f"{wanted}, and this node has {count}; {count} would work"))
    return weighed


def _probe_gpus() -> tuple[list[Finding], int, float | None]:
    import torch

    if not torch.cuda.is_available():
        names = ("gpu.driver", "gpu.memory", "gpu.fp8")
        return [skipped(name, "skipped: no GPU") for name in names], 0, None
    gib = min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())) / 2**30
    findings = [
        ok("gpu.driver", f"CUDA {torch.version.cuda}, {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"),
        ok("gpu.memory", f"{gib:.1f} GiB, used in the estimates"),
        *_check_fp8(torch),
    ]
    return findings, torch.cuda.device_count(), gib


def _check_fp8(torch) -> Findings:  # type: ignore[no-untyped-def]
    version = tuple(int(part) for part in str(torch.version.cuda or "0.0").split(".")[:2])
    if torch.cuda.get_device_capability(0) < HOPPER:
        yield warning(
            "gpu.fp8", f"compute capability {torch.cuda.get_device_capability(0)}: FP8 recipes need Hopper (9, 0)"
        )
    elif version < CUDA_FOR_FP8:
        yield warning("gpu.fp8", f"CUDA {torch.version.cuda}: block scaling needs 12.9 or newer")
    else:
        yield from _check_transformer_engine()


def _run_in_worker(code: str) -> Any:
    """Run code in the interpreter that trains, and return the finished process.

    In NeMo-RL's image Megatron's workers have an interpreter of their own.
    """
    command = make_python_command(find_worker_python("megatron") or sys.executable, "-c", code)
    return run(command, capture_output=True, text=True, timeout=SECONDS)


def _check_transformer_engine() -> Findings:
    """Whether the interpreter that trains has block scaling."""
    probe, worker = _run_in_worker(PROBE_ENGINE), find_worker_python("megatron")
    place = worker.parts[-3] if worker else "this environment"
    available, _, why = (probe.stdout.splitlines() or [""])[-1].partition(" ")
    if probe.returncode:
        yield warning("gpu.fp8", f"Transformer Engine cannot be imported in {place}; FP8 configs need it")
    elif available == "True":
        yield ok("gpu.fp8", f"Transformer Engine offers block scaling in {place}")
    else:
        yield warning("gpu.fp8", why)


if __name__ == "__main__":
    node_findings, gpus, smallest = _probe_gpus()
    sys.stdout.write(
        json.dumps({"findings": [asdict(finding) for finding in node_findings], "count": gpus, "gib": smallest}) + "\n"
    )
