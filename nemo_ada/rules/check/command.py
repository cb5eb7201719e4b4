"""`nemo-ada check` gathers the facts of a configuration, runs every check and reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nemo_ada.config.load import backend_of, split_words
from nemo_ada.config.parsing import parse
from nemo_ada.config.paths import list_family
from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.rules import rulebook
from nemo_ada.rules.bounds import check_bounds
from nemo_ada.rules.check import gpu
from nemo_ada.rules.check.capacity import (
    check_checkpoint_disk,
    check_host_memory,
    check_learner_memory,
    check_rollout_memory,
)
from nemo_ada.rules.check.own_classes import check_own_classes
from nemo_ada.rules.check.site import check_image, check_mounts, check_site
from nemo_ada.rules.check.verifier import check_verifier
from nemo_ada.rules.facts.cards import Card, choose_card
from nemo_ada.rules.facts.config_file import load_config, load_upstream_part
from nemo_ada.rules.facts.nemo_config import NemoConfig
from nemo_ada.rules.finding import Finding, Findings, choose_exit_code, error, ok, skipped, warning
from nemo_ada.rules.layout import LAYOUT
from nemo_ada.tasks.jsonl import JsonlTask
from nemo_ada.tasks.protocol import Task

LAYOUT_KEYS = ("cluster", "policy.megatron_cfg", "policy.generation.vllm_cfg.tensor")  # beginnings of keys
MARKS = {"error": "ERROR  ", "warning": "WARNING", "skipped": "skipped", "ok": "ok     "}
SEVERE = ("error", "warning")


def examine(
    path: Path, overrides: Sequence[str] = (), *, on_gpu: bool = False, verifier: bool = True, site: bool = True
) -> list[Finding]:
    """All findings on a configuration of either back end.

    Args:
        path: the YAML.
        overrides: key=value.
        on_gpu: check the GPUs of this machine, too.
        verifier: start math-verify for its self-test, which takes a few seconds.
        site: check caches, folders and keys as a job needs them, and say what will listen where.
    """
    try:
        config = load_config(path, overrides)
        backend = backend_of(config)
    except UserError as problem:
        return [rulebook.make_finding(problem)]
    of_gpus, gib = gpu.examine_node(Values(config)) if on_gpu else ([], None)
    if backend == "embedded":
        findings = examine_embedded(config)
    else:
        try:
            findings = [
                *(() if gib else (skipped("gpu.memory", describe_assumed_gpus(choose_card(config))),)),
                *examine_nemo_rl(config, load_upstream_part(path, overrides), gpu_gib=gib, site=site),
                *(check_site(Values(config)) if site else ()),
                *(check_mounts(Values(config), _find_yamls(path, overrides)) if site else ()),
            ]
        except UserError as problem:
            findings = [rulebook.make_finding(problem)]
    return [*findings, *(check_verifier() if verifier else ()), *of_gpus]


def _find_yamls(path: Path, overrides: Sequence[str]) -> list[Path]:
    """Return the YAML, its overlays and the files that they build on, but those of NeMo-RL."""
    return [file for yaml in split_words(path, overrides)[0] for file in list_family(Path(yaml).resolve())]


def examine_embedded(config: Mapping[str, Any]) -> list[Finding]:
    """A CPU run: the strict schema, and what its trainer refuses before it starts anything."""
    from nemo_ada.cpu.settings import RunConfig

    try:
        run = parse(RunConfig, config)
        from nemo_ada.cpu.stack import build_run_task
        from nemo_ada.cpu.trainer import check_run, list_warnings

        task = build_run_task(run)
        shape = check_run(run, task)
    except UserError as problem:
        return [rulebook.make_finding(problem)]
    policy = run.policy
    text = f"{shape.num_layers} layers of {shape.hidden_size}, {shape.max_position_embeddings} positions"
    return [
        ok("policy.model", text),
        ok("task", f"{run.task.name}: {len(task.splits().train)} training prompts{_describe_layout(task)}"),
        ok("reinforce_ada.advantage", run.reinforce_ada.describe_objective(run.grpo.num_generations_per_prompt)),
        *(warning(key, text) for key, text in list_warnings(run, task)),
        ok("policy.megatron_cfg", f"TP {policy.megatron_cfg.tensor_model_parallel_size} x PP "
           f"{policy.megatron_cfg.pipeline_model_parallel_size} x DP {policy.data_parallel_size}"),
    ]  # fmt: skip


def _describe_layout(task: Task) -> str:
    """Return where the prompts of a file and their references stand, in words."""
    return f"; {task.layouts.most_common(1)[0][0]}" if isinstance(task, JsonlTask) else ""


def examine_nemo_rl(
    config: Mapping[str, Any],
    upstream: Mapping[str, Any] | None = None,
    *,
    gpu_gib: float | None = None,
    site: bool = False,
) -> list[Finding]:
    """Return a NeMo-RL config: all rules, then what fits into a GPU and onto the disk.

    Args:
        config: the resolved config.
        upstream: the part of it that comes from NeMo-RL's own files; see `rulebook.apply_rules`.
        gpu_gib: measured memory of a GPU in GiB. Without it the config's card decides.
        site: check as for a job, where an unknown model or a full disk is an error.
    """
    values = Values(config)
    findings = rulebook.apply_rules(config, upstream)
    if list(check_bounds(values)):
        return findings
    if site:
        findings = [
            error(finding.key, finding.message) if _concerns_unknown_model(finding) else finding for finding in findings
        ]
        said = {finding.key for finding in findings if finding.level == "error"}
        findings += [finding for finding in check_own_classes(config) if finding.key not in said]
    return [*findings, *check_capacity(values, gpu_gib=gpu_gib, site=site), *check_image()]


def describe_assumed_gpus(card: Card) -> str:
    """Return what `check` says of GPUs that it has not seen."""
    return f"GPUs are assumed to be {card.name} ({card.gib} GiB); --card names another, --gpu on a GPU node measures"


def check_capacity(values: Values, *, gpu_gib: float | None, site: bool) -> Findings:
    """Memory and disk. Nothing is said where the rules have refused what the numbers would come from."""
    if not values.get("policy.megatron_cfg.enabled", False):
        return
    try:
        config, known = NemoConfig.of_megatron(values.config), rulebook.find_model_shape(values)
    except UserError:
        return
    if known is None:
        return
    shape = known[0]
    gpu_gib = config.card.gib if gpu_gib is None else gpu_gib
    layout = [finding for rule in LAYOUT for finding in rule(config, shape)]
    if any(finding.level == "error" and finding.key.startswith(LAYOUT_KEYS) for finding in layout):
        return
    yield from check_learner_memory(config, shape, gpu_gib)
    yield from check_checkpoint_disk(config, shape, site=site)
    try:
        first_wave = config.rollout.first_wave(parse_ada_settings(values.get("reinforce_ada", {})))
    except UserError:  # a rule has said so
        return
    yield from check_rollout_memory(config, shape, first_wave, gpu_gib)
    yield from check_host_memory(config, shape)


def _concerns_unknown_model(finding: Finding) -> bool:
    return finding.key == "policy.model_name" and finding.level == "warning"


def write_report(findings: Sequence[Finding], *, as_json: bool = False, verbose: bool = False) -> str:
    """Return the text that `nemo-ada check` prints: errors, warnings, and the rest as one line, or in full."""
    code = choose_exit_code(findings)
    if as_json:
        return json.dumps({"exit_code": code, "findings": [asdict(finding) for finding in findings]}, indent=1)
    of_level = {level: [finding for finding in findings if finding.level == level] for level in MARKS}
    shown = MARKS if verbose else SEVERE
    lines = [f"{MARKS[level]} {finding.key}: {finding.message}" for level in shown for finding in of_level[level]]
    if not verbose:
        left = ", ".join(dict.fromkeys(finding.key for finding in of_level["skipped"])) or "nothing"
        lines.append(f"right: {len(of_level['ok'])}; not checked here: {left}; --verbose shows them")
    return "\n".join([*lines, ", ".join(_format_count(len(of_level[level]), level) for level in SEVERE)])


def _format_count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
