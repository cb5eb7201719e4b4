"""apex's kernel behind gradient_accumulation_fusion, which must be importable where the learner runs."""

from __future__ import annotations

import importlib.util

from nemo_ada.config.values import Values
from nemo_ada.rules.finding import Findings, error, ok

FUSED_KERNEL = "fused_weight_gradient_mlp_cuda"


def fused_weight_gradient(values: Values) -> Findings:
    """The kernel can be imported here. Nothing is said of a config that does not use it."""
    key = "policy.megatron_cfg.gradient_accumulation_fusion"
    if not values.get(key, False):
        return
    if importlib.util.find_spec(FUSED_KERNEL) is None:
        yield error(
            key,
            f"{FUSED_KERNEL} (apex) cannot be imported here; run this check and the job in an environment with apex, "
            "or set it to false",
        )
    else:
        yield ok(key, f"{FUSED_KERNEL} is there")
