"""`with reinforce_ada(master_config, checkpointer=checkpointer): grpo_train(...)`, or async_grpo_train.

The stock loop stays as it is: seven names of its module stand for ours while the block lasts (targets.py). The
alternatives are worse: a loop of our own would copy a thousand lines that change with every release, and there is no
class to subclass.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from nemo_ada.core.sampling.schedulers import StopCheck
from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.async_actors import adaptive_actors
from nemo_ada.nemo.checkpoint import restore, saved_with
from nemo_ada.nemo.hooks import Hooks
from nemo_ada.nemo.targets import LOOP, ROLLOUTS, SAMPLE_ROLLOUT, TARGETS, check_returns, replaced


@contextmanager
def reinforce_ada(
    master_config: Any, *, checkpointer: Any, stop_check: StopCheck | None = None
) -> Iterator[Hooks | None]:
    """Train with Reinforce-Ada inside NeMo-RL's own grpo_train.

    master_config: NeMo-RL's MasterConfig with our section `reinforce_ada:`. With another grpo.adv_estimator.name than
    `reinforce_ada` nothing is checked, read or changed, and None is yielded. checkpointer: the CheckpointManager that
    grpo_train gets; the sampler's state is written into its checkpoints and restored from its newest one.
    stop_check: called before each decision of the sampler; "drain" = issue nothing more, "drop" = give the step up,
    upon which grpo_train ends with StepDroppedError.

    Raises UserError for settings that cannot work together and for a NeMo-RL that is not as expected, before anything
    is touched. All names are restored in any case.
    """
    if not nemo_settings.chosen(master_config):
        yield None
        return
    with installed(
        master_config, checkpointer, importlib.import_module(LOOP), importlib.import_module(ROLLOUTS), stop_check
    ) as hooks:
        yield hooks


@contextmanager
def installed(
    master_config: Any, checkpointer: Any, loop: Any, rollouts: Any, stop_check: StopCheck | None = None
) -> Iterator[Hooks]:
    """`reinforce_ada` on given modules."""
    settings = nemo_settings.read(master_config)
    for target in TARGETS:
        target.check(loop)
    SAMPLE_ROLLOUT.check(rollouts)
    check_returns(loop, master_config)
    originals = {target.name: getattr(loop, target.name) for target in TARGETS}
    originals[SAMPLE_ROLLOUT.name] = getattr(rollouts, SAMPLE_ROLLOUT.name)
    hooks = Hooks(master_config, settings, originals, stop_check)
    state = restore(checkpointer)
    if state is not None:
        hooks.load_state_dict(state)
    ahead = adaptive_actors(master_config, checkpointer) if settings.ahead else nullcontext()
    with saved_with(checkpointer, hooks.state_dict), ahead, replaced(loop, hooks.replacements()):
        yield hooks
