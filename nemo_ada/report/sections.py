"""The figures that are quantities over the steps: what is drawn and what it means (metrics of core/metrics.py)."""

from __future__ import annotations

from nemo_ada.report.series import OverSteps, Quantity, live_share, metric, share

SAMPLING = OverSteps(
    "sampling",
    "Sampling dynamics",
    "Shares of the prompts that responses were drawn for. A prompt is resolved when its pool meets the exit condition; "
    "otherwise it lacks correct or incorrect responses (for a positive or fixed exit one of the two cannot occur). A "
    "group without signal has equal labels throughout and teaches nothing; the last panel is the share that GRPO would "
    "have had on the same prompts.",
    (
        Quantity("responses drawn per prompt", share("ada/samples_drawn")),
        Quantity("resolved in the first wave (share)", share("ada/resolved_in_first_wave")),
        Quantity("unresolved: lacks correct (share)", share("ada/missing_positive"), scale="missing"),
        Quantity("unresolved: lacks incorrect (share)", share("ada/missing_negative"), scale="missing"),
        Quantity("groups without signal (share)", metric("ada/zero_signal_groups"), scale="signal"),
        Quantity("... if the first n were the group", metric("ada/zero_signal_groups_if_grpo"), scale="signal"),
    ),
)

POOLS = OverSteps(
    "pools",
    "Pools over time",
    "Sizes and rewards of the pools. Where kept rows are balanced between correct and incorrect ones, their mean "
    "reward is drawn towards one half and says little about the policy.",
    (
        Quantity("pool size, mean (responses)", metric("ada/pool_size_mean"), scale="size"),
        Quantity("pool size, p95 (responses)", metric("ada/pool_size_p95"), scale="size"),
        Quantity("pass rate, mean over prompts", metric("ada/pass_rate"), scale="rate"),
        Quantity("mean reward of kept rows", metric("ada/batch_reward"), scale="rate"),
        Quantity("tokens per response in pools", metric("ada/response_length_pools"), scale="length"),
        Quantity("tokens per kept response", metric("ada/response_length_kept"), scale="length"),
    ),
)

CAPS = (
    Quantity("used share of max_samples", metric("ada/budget_used_samples"), scale="used"),
    Quantity("used share of max_tokens", metric("ada/budget_used_tokens"), scale="used"),
    Quantity("used share of max_seconds", metric("ada/budget_used_seconds"), scale="used"),
)

BUDGET = OverSteps(
    "budget",
    "Budget",
    "Use of each cap that a run has set, what a step costs, and the share of steps that each cap bound (refused a "
    "prompt another response).",
    (
        *CAPS,
        Quantity("responses drawn per step", metric("ada/samples_drawn")),
        Quantity("generated tokens per step", metric("ada/tokens_drawn")),
        Quantity("sampling seconds per step", metric("ada/sampling_seconds")),
        Quantity("engine utilisation (of peak)", metric("ada/engine_utilisation")),
        Quantity("refused another response (share)", share("ada/prompts_cut")),
    ),
)
UNCAPPED = "None of these runs has set a cap: what a step costs, without a budget to compare with."

WEIGHTS = OverSteps(
    "weights",
    "Weights and live rows",
    "The explicit weight of each prompt's advantages (1 for the linear objective) and the share of kept rows that have "
    "a gradient at all.",
    (
        Quantity("gradient weight per prompt, mean", metric("ada/weight_mean")),
        Quantity("gradient weight per prompt, maximum", metric("ada/weight_max")),
        Quantity("rows with non-zero advantage (share)", live_share),
    ),
)

OPTIMISER = OverSteps(
    "optimiser",
    "Optimiser",
    "Health of the update.",
    (
        Quantity("gradient norm before clipping", metric("train/grad_norm")),
        Quantity("clipped tokens (share)", metric("train/clip_fraction")),
        Quantity("learning rate", metric("train/lr")),
    ),
)
