"""`nemo-ada check`: gather the facts of a configuration, run every check, report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nemo_ada.check import data, gpu
from nemo_ada.check.bounds import bounds
from nemo_ada.check.capacity import checkpoint_disk, learner_memory, rollout_memory
from nemo_ada.check.finding import Finding, error, exit_code, ok, skipped, warning
from nemo_ada.check.layout import LAYOUT
from nemo_ada.check.names import key_names
from nemo_ada.check.precision import PRECISION
from nemo_ada.check.setup import setup
from nemo_ada.check.site import site as site_findings
from nemo_ada.cluster.config import ClusterConfig, Values, load_config, rollout_sizes, upstream_part, usable_values
from nemo_ada.cluster.memory import H100_GIB
from nemo_ada.cluster.shapes import find_shape
from nemo_ada.config.load import backend_of
from nemo_ada.config.presets import ada_settings
from nemo_ada.config.run import RunConfig
from nemo_ada.config.strict import parse
from nemo_ada.errors import UserError

ASSUMED = f"GPUs are assumed to be H100-80GB ({H100_GIB} GiB); --gpu on a GPU node measures"
PARALLEL = ("cluster", "policy.megatron_cfg", "policy.generation.vllm_cfg.tensor")  # keys of the layout
MARKS = {"ok": "ok     ", "skipped": "skipped", "warning": "WARNING", "error": "ERROR  "}


def examine(
    path: Path, overrides: Sequence[str] = (), *, on_gpu: bool = False, verifier: bool = True, site: bool = True
) -> list[Finding]:
    """All findings on a configuration. verifier: start math-verify for its self-test (a few seconds). site: look at
    caches, folders and keys, as for a job."""
    try:
        config = load_config(path, overrides)
        backend = backend_of(config)
    except UserError as problem:
        return [error(_key_in(str(problem)), str(problem))]
    found, gib = gpu.node(Values(config)) if on_gpu else ([], None)
    if backend == "embedded":
        findings = embedded(config)
    else:
        try:
            with usable_values():
                assumed = () if gib else (skipped("gpu.memory", ASSUMED),)
                findings = [
                    *assumed, *recipe(config, gpu_gib=gib or H100_GIB, site=site),
                    *(site_findings(Values(config)) if site else ()), *key_names(config, upstream_part(path)),
                ]  # fmt: skip
        except UserError as problem:
            findings = [error(_key_in(str(problem)), str(problem))]
    return [*findings, *(data.verifier() if verifier else ()), *found]


def embedded(config: dict[str, Any]) -> list[Finding]:
    """A CPU run: the strict schema, and what its trainer refuses before it starts anything."""
    try:
        run = parse(RunConfig, config)
        from nemo_ada.embedded.stack import run_task
        from nemo_ada.embedded.trainer import check_run

        task = run_task(run)
        shape = check_run(run, task)
    except UserError as problem:
        return [error(_key_in(str(problem)), str(problem))]
    policy = run.policy
    text = f"{shape.num_layers} layers of {shape.hidden_size}, {shape.max_position_embeddings} positions"
    return [
        ok("policy.model", text),
        ok("task", f"{run.task.name}: {len(task.splits().train)} training prompts"),
        ok("policy.megatron_cfg", f"TP {policy.megatron_cfg.tensor_model_parallel_size} x PP "
           f"{policy.megatron_cfg.pipeline_model_parallel_size} x DP {policy.data_parallel_size}"),
    ]  # fmt: skip


def _key_in(message: str) -> str:
    """The dotted key that a message begins with."""
    first = message.removeprefix("unknown key ").split("=")[0].split(":")[0].split(" ")[0].rstrip(";,")
    return first if "." in first else "configuration"


def recipe(config: dict[str, Any], *, gpu_gib: float = H100_GIB, site: bool = False) -> list[Finding]:
    """A NeMo-RL config. site: as for a job, where an unknown model or a full disk is an error."""
    tell = error if site else warning
    values = Values(config)
    out_of_bounds = list(bounds(values))
    if out_of_bounds:  # nothing that follows from such numbers would be information
        return out_of_bounds
    findings = [
        *setup(values), *data.method(config), *data.datasets(values), *data.prompt_files(values), *data.image(),
    ]  # fmt: skip
    if values.get("policy.dtensor_cfg.enabled", False) and not values.get("policy.megatron_cfg.enabled", False):
        known = warning(
            "policy.dtensor_cfg.enabled",
            "the learner is DTensor: layout, memory and precision were not checked, because these checks know Megatron",
        )
        return [known, *findings]
    try:
        facts = ClusterConfig.of(config)
        found = find_shape(facts.model_name)
    except UserError as problem:
        return [error(_key_in(str(problem)), str(problem)), *findings]
    if found is None:
        unknown = tell(
            "policy.model_name",
            f"{facts.model_name}: no config.json in a folder or the cache, and not in the table, so shapes and memory "
            "were not checked; `nemo-ada prepare CONFIG` fetches it",
        )
        return [unknown, *findings]
    shape, source = found
    said = ok("policy.model_name", f"{facts.model_name} ({source}): {shape.parameters / 1e9:.2f} B parameters, {shape}")
    split = [finding for check in LAYOUT for finding in check(facts, shape)]
    layout = [said, *split, *(finding for check in PRECISION for finding in check(facts, shape))]
    if any(f.level == "error" and f.key.startswith(PARALLEL) for f in split):
        return [*layout, *findings]  # memory per GPU of a layout that cannot be is no information
    capacity = [*learner_memory(facts, shape, gpu_gib), *checkpoint_disk(facts, shape, tell)]
    wave = first_wave(config, facts)
    if wave is not None:
        capacity.extend(rollout_memory(facts, shape, wave, gpu_gib))
    return [*layout, *capacity, *findings]


def first_wave(config: dict[str, Any], facts: ClusterConfig) -> int | None:
    """Responses issued before anything is known; None where `reinforce_ada` is wrong (a finding already)."""
    try:
        settings = ada_settings(config.get("reinforce_ada", {}))
        plan = settings.plan(facts.group, facts.max_new)
    except UserError:
        return None
    drawn = rollout_sizes(facts.values.get).prompts  # under dynamic sampling more than a step has
    return drawn * (facts.group if settings.sampling.kind == "estimation" else plan.first_issue)


def report(findings: Sequence[Finding], *, as_json: bool) -> str:
    """What is printed."""
    code = exit_code(findings)
    if as_json:
        return json.dumps({"exit_code": code, "findings": [asdict(finding) for finding in findings]}, indent=1)
    lines = [f"{MARKS[finding.level]} {finding.key}: {finding.message}" for finding in findings]
    count = {level: sum(finding.level == level for finding in findings) for level in ("error", "warning")}
    return "\n".join([*lines, f"{count['error']} errors, {count['warning']} warnings"])
