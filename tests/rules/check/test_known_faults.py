"""Settings that meet a known fault of NeMo-RL or vLLM are warned of, in the versions that have it and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_ada.config.values import Values
from nemo_ada.rules.facts import version
from nemo_ada.rules.known_faults import IN_FLIGHT, KNOWN_FAULTS, NLL, OFFLOADED, RELEASE, SAVES, SYNCHRONIZED

APART = {"policy.generation.colocated.enabled": False}
STALE = {**APART, f"{SAVES}.async_save": True, f"{SAVES}.ckpt_assume_constant_structure": True,
         "checkpointing.enabled": True}  # fmt: skip
RANDOM = {"policy.megatron_cfg.enabled": True, OFFLOADED: True}
VLLM, SPECULATIVE = "policy.generation.vllm_cfg", "policy.generation.vllm_kwargs.speculative_config"
TORN = {"grpo.async_grpo.enabled": True, IN_FLIGHT: True, f"{VLLM}.pipeline_parallel_size": 2}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """checkout(vllm, {name: body}): NEMO_RL_HOME names a folder that pins this vLLM and has these functions."""

    def make(vllm: str, functions: dict[str, str]) -> None:
        (tmp_path / "nemo_rl").mkdir(exist_ok=True)
        (tmp_path / "pyproject.toml").write_text(f'vllm = ["vllm=={vllm}.0"]\n')
        for name, body in functions.items():
            module, _, function = name.rpartition(".")
            head, indent = "", "    "
            if module.rpartition(".")[2][0].isupper():
                module, _, owner = module.rpartition(".")
                head, indent = f"class {owner}:\n    ", "        "
            path = tmp_path / f"{module.replace('.', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{head}def {function}(self):\n{indent}return {body}\n")
        monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
        version.read_version.cache_clear()
        version._checkout.cache_clear()

    return make


def keys(changes: dict[str, Any]) -> list[str]:
    """Keys of the warnings."""
    config = OmegaConf.create({})
    for dotted, value in changes.items():
        OmegaConf.update(config, dotted, value, force_add=True)
    values = Values(OmegaConf.to_container(config))  # type: ignore[arg-type]
    found = [finding for rule in KNOWN_FAULTS for finding in rule(values)]
    assert all(finding.level == "warning" for finding in found)
    return [finding.key for finding in found]


@pytest.mark.parametrize(
    ("vllm", "functions", "changes", "key"),
    [
        ("0.25", {RELEASE: "colocated"}, STALE, f"{SAVES}.ckpt_assume_constant_structure"),
        ("0.25", {RELEASE: "colocated or moves_optimizer"}, STALE, None),
        ("0.25", {RELEASE: "colocated"}, {**STALE, "policy.generation.colocated.enabled": True}, None),
        ("0.25", {RELEASE: "colocated"}, {**STALE, f"{SAVES}.async_save": False}, None),
        ("0.20", {}, RANDOM, OFFLOADED),
        ("0.25", {SYNCHRONIZED: "None"}, RANDOM, None),
        ("0.20", {}, TORN, IN_FLIGHT),
        ("0.25", {}, TORN, None),
        ("0.20", {}, {**TORN, f"{VLLM}.pipeline_parallel_size": 1}, None),
        ("0.20", {}, {SPECULATIVE: {"method": "eagle3"}}, SPECULATIVE),
        ("0.20", {}, {SPECULATIVE: {"method": "ngram"}}, None),
        ("0.25", {}, {SPECULATIVE: {"method": "mtp"}, f"{VLLM}.tensor_parallel_size": 2}, SPECULATIVE),
        ("0.20", {}, {SPECULATIVE: {"method": "mtp"}, f"{VLLM}.tensor_parallel_size": 2}, None),
        ("0.20", {}, {NLL: 0.1}, NLL),
        ("0.20", {}, {NLL: 0.0}, None),
    ],
)
def test_a_fault_is_named_where_the_version_has_it(
    checkout: Callable[..., None], vllm: str, functions: dict[str, str], changes: dict[str, Any], key: str | None
) -> None:
    checkout(vllm, functions)
    assert keys(changes) == ([] if key is None else [key])
