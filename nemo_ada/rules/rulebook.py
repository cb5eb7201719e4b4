"""The rules for a NeMo-RL config: one list, which `nemo-ada check` prints and `nemo-ada train` obeys.

A rule is a function from a resolved config to findings. `apply_rules` runs them all. `refuse` raises the errors among
them, and the launcher calls it before anything starts. So `check` never passes a config that `train` refuses.

A rule reads the config and the files that it names. It does not import NeMo-RL, torch or Ray. What depends on this
machine (memory of a GPU, free disk, caches, the network) is checked in nemo_ada/rules/check and does not stop `train`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.rules.bounds import check_bounds
from nemo_ada.rules.choices import NAMES
from nemo_ada.rules.data import check_datasets, check_loading, check_prompt_files
from nemo_ada.rules.engine import ENGINE
from nemo_ada.rules.facts.models import ModelShape, find_shape
from nemo_ada.rules.facts.nemo_config import NemoConfig, name_other_learner
from nemo_ada.rules.finding import Finding, Findings, error, ok, warning
from nemo_ada.rules.gym import GYM_RULES
from nemo_ada.rules.known_faults import KNOWN_FAULTS
from nemo_ada.rules.layout import LAYOUT
from nemo_ada.rules.learners import LORA, check_idle_keys
from nemo_ada.rules.method import METHOD
from nemo_ada.rules.names import check_key_names
from nemo_ada.rules.precision import PRECISION
from nemo_ada.rules.setup import SETUP
from nemo_ada.rules.single_controller import check_controller_needs, check_controller_sizes, check_ignored_settings
from nemo_ada.rules.value_types import check_value_types

Rule = Callable[[Values], Findings]
RULES: tuple[Rule, ...] = (
    *NAMES, *SETUP, *ENGINE, *KNOWN_FAULTS, *LORA, *GYM_RULES, *METHOD,
    check_controller_needs, check_controller_sizes, check_ignored_settings, check_datasets,
    check_loading, check_prompt_files,
)  # fmt: skip
"""Every rule that needs neither a model's shape nor NeMo-RL's own key names, which `apply_rules` asks for by itself."""


def apply_rules(config: Mapping[str, Any], upstream: Mapping[str, Any] | None = None) -> list[Finding]:
    """Everything that the rules say of a config.

    Where a number is outside its bound, only such numbers are reported: nothing that follows from them would mean
    anything.

    Args:
        config: a resolved NeMo-RL config.
        upstream: the part of it that comes from NeMo-RL's own files, whose key names are right. Without it key names
            are not checked.
    """
    values = Values(config)
    broken = list(check_bounds(values))
    if broken:
        return broken
    names = [] if upstream is None else [
        *check_key_names(config, upstream), *check_value_types(config), *check_idle_keys(values, upstream)
    ]  # fmt: skip
    return [*apply_model_rules(values), *(finding for rule in RULES for finding in _apply(rule, values)), *names]


def refuse(config: Mapping[str, Any], upstream: Mapping[str, Any] | None = None) -> None:
    """Raise UserError with every finding of level error, one per line. The arguments are those of `apply_rules`."""
    raise_errors(apply_rules(config, upstream))


def refuse_out_of_bounds(values: Values) -> None:
    """Raise UserError with every number that is outside its bound, one per line."""
    raise_errors(check_bounds(values))


def raise_errors(findings: Iterable[Finding]) -> None:
    """Raise UserError with the findings of level error, if there are any."""
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise UserError("\n".join(_write_line(finding) for finding in errors), key=errors[0].key)


def make_finding(problem: UserError, key: str = "configuration") -> Finding:
    """Return a finding with the message of an error. `key` is used where the error names none."""
    return error(problem.key or key, str(problem))


def find_model_shape(values: Values) -> tuple[ModelShape, str] | None:
    """Return the shape of the config's model and its origin. None for an unknown model. Raises UserError."""
    return find_shape(str(values.get("policy.model_name", "")))


def apply_model_rules(values: Values) -> list[Finding]:
    """Return what the layout and precision rules say, which need the shape of the model and a learner of Megatron."""
    section = name_other_learner(values)
    if values.get(f"{section}.enabled", False) and not values.get("policy.megatron_cfg.enabled", False):
        return [
            warning(
                f"{section}.enabled",
                "the learner is DTensor: layout, memory and precision were not checked, because these checks know "
                "Megatron",
            )
        ]
    try:
        config = NemoConfig.of_megatron(values.config)
        known = find_model_shape(values)
    except UserError as problem:
        return [make_finding(problem)]
    if known is None:
        return [
            warning(
                "policy.model_name",
                f"{config.model_name}: no config.json in a folder or the cache, and not in the table, so shapes and "
                "memory were not checked; `nemo-ada prepare CONFIG` fetches it",
            )
        ]
    shape, origin = known
    name = ok(
        "policy.model_name", f"{config.model_name} ({origin}): {shape.parameters / 1e9:.2f} B parameters, {shape}"
    )
    return [name, *(finding for rule in (*LAYOUT, *PRECISION) for finding in _apply(rule, config, shape))]


def _apply(rule: Callable[..., Findings], *facts: Any) -> Sequence[Finding]:
    """Return the findings of one rule. A value that the rule cannot read is a finding, too."""
    collected: list[Finding] = []
    try:
        collected.extend(rule(*facts))
    except UserError as problem:
        collected.append(make_finding(problem))
    return collected


def _write_line(finding: Finding) -> str:
    """Return the finding as one line of an error, which begins with its key."""
    return finding.message if finding.message.startswith(finding.key) else f"{finding.key}: {finding.message}"
