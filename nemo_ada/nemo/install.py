"""`with reinforce_ada(master_config, checkpointer=checkpointer): grpo_train(...)`, async_grpo_train or grpo_train_sync.

NeMo-RL's loop stays as it is. While the block lasts, names of its module are our functions (rules/facts/upstream.py).
The alternatives are worse. A loop of our own would copy a thousand lines that change with every release, and NeMo-RL
has no class that we could subclass.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.core.sampling.schedulers import StopCheck
from nemo_ada.errors import UserError
from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo import trivial_groups
from nemo_ada.nemo.hooks import PERFORMANCE, Hooks
from nemo_ada.nemo.launch.checkpoint import restore_state, save_state_with_checkpoints
from nemo_ada.nemo.launch.stop_and_save import raise_errors
from nemo_ada.nemo.loop_log import correct_logger, writes_no_batches
from nemo_ada.nemo.patch_points import check_returns, replace_names
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.facts.upstream import (
    DATA_PLANE_POINTS,
    GYM_ROLLOUT,
    LOOP,
    PATCH_POINTS,
    ROLLOUTS,
    SAMPLE_ROLLOUT,
    SYNC_LOOP,
    choose_gym_point,
)
from nemo_ada.rules.method import uses_reinforce_ada

DATA_PLANE_DRIVER = "nemo_ada.nemo.data_plane.driver"
PLUG_IN = "nemo_ada.nemo.single_controller"


@contextmanager
def reinforce_ada(
    master_config: Any, *, checkpointer: Any, stop_check: StopCheck | None = None
) -> Iterator[Hooks | None]:
    """Train with Reinforce-Ada inside NeMo-RL's own grpo_train.

    Without the section `reinforce_ada:` nothing is checked, read or changed. All names are restored in any case.

    Args:
        master_config: NeMo-RL's MasterConfig with our section `reinforce_ada:`.
        checkpointer: the CheckpointManager that grpo_train gets. The sampler's state is written into its checkpoints
            and restored from its newest one.
        stop_check: called before each decision of the sampler. It returns "drain" to issue nothing more, or "drop" to
            give the step up. Then grpo_train ends with StepDroppedError.

    Yields:
        The hooks. None without the section.

    Raises:
        UserError: for settings that cannot work together, and for a NeMo-RL that is not as expected. It is raised
            before anything is changed.
    """
    if not uses_reinforce_ada(Values(master_config)):
        yield None
        return
    loop, rollouts = importlib.import_module(LOOP), importlib.import_module(ROLLOUTS)
    if Loop.of(Values(master_config)) is Loop.DATA_PLANE:
        settings, _ = _check_hooks(master_config, loop, rollouts)
        driver = importlib.import_module(DATA_PLANE_DRIVER)
        with driver.install_hooks(master_config, checkpointer, settings, stop_check) as hooks:
            yield hooks
        return
    with install_hooks(master_config, checkpointer, loop, rollouts, stop_check) as hooks:
        yield hooks


@contextmanager
def install_hooks(
    master_config: Any, checkpointer: Any, loop: Any, rollouts: Any, stop_check: StopCheck | None = None
) -> Iterator[Hooks]:
    """The same as `reinforce_ada`, for given modules."""
    settings, marks_trivial_groups = _check_hooks(master_config, loop, rollouts)
    originals = {target.name: getattr(loop, target.name) for target in PATCH_POINTS}
    originals[SAMPLE_ROLLOUT.name] = getattr(rollouts, SAMPLE_ROLLOUT.name)
    originals |= {name: getattr(loop, name) for name in (PERFORMANCE, trivial_groups.NAME) if hasattr(loop, name)}
    if settings.gym:
        originals |= {GYM_ROLLOUT.name: getattr(rollouts, GYM_ROLLOUT.name)}
        originals |= {choose_gym_point(loop).name: getattr(loop, choose_gym_point(loop).name)}
    hooks = Hooks(master_config, settings, originals, stop_check, marks_trivial_groups=marks_trivial_groups)
    state = restore_state(checkpointer)
    if state is not None:
        hooks.load_state_dict(state)
    with ExitStack() as stack:
        stack.enter_context(save_state_with_checkpoints(checkpointer, hooks.state_dict))
        if settings.loop.draws_ahead:
            from nemo_ada.nemo.asynchronous.actors import replace_actors

            stack.enter_context(replace_actors(master_config, checkpointer))
            stack.enter_context(raise_errors(loop))
        if hasattr(loop, "Logger"):  # a stand-in of the loop has none
            stack.enter_context(
                correct_logger(
                    loop.Logger, batches=not (settings.loop.draws_ahead and writes_no_batches(master_config))
                )
            )
        stack.enter_context(replace_names(loop, hooks.replacements()))
        yield hooks


def check_config(master_config: Any) -> None:
    """Raise UserError for everything that `reinforce_ada` would refuse.

    Call it before NeMo-RL's set-up, which loads engine and learner for minutes.
    """
    if uses_reinforce_ada(Values(master_config)):
        if Loop.of(Values(master_config)) is Loop.CONTROLLER:
            nemo_settings.read(master_config)
            return
        settings, _ = _check_hooks(master_config, importlib.import_module(LOOP), importlib.import_module(ROLLOUTS))
        if settings.loop.draws_ahead:
            from nemo_ada.nemo.asynchronous.actors import check_actors

            check_actors()


def check_data_plane() -> None:
    """Raise UserError when the imported trainer with a data plane is not as our hooks need it, or is not there."""
    try:
        loop = importlib.import_module(SYNC_LOOP)
    except ImportError as error:
        raise UserError(
            f"data_plane.enabled=true: {SYNC_LOOP} cannot be imported ({error}); set it to false",
            key="data_plane.enabled",
        ) from None
    for target in DATA_PLANE_POINTS:
        target.check(loop)


def _check_hooks(master_config: Any, loop: Any, rollouts: Any) -> tuple[NemoSettings, bool]:
    """Return the settings, and whether NeMo-RL marks trivial groups. Raises UserError, before anything changes."""
    settings = nemo_settings.read(master_config)
    if Loop.of(Values(master_config)) is Loop.CONTROLLER:
        raise UserError(
            "async_rl: this is a config for the single controller, and grpo_train is another loop; give NeMo-RL's "
            f"actor the arguments that {PLUG_IN}.plug_in(config, actor_args) returns, or remove async_rl",
            key="async_rl",
        )
    for target in PATCH_POINTS:
        target.check(loop)
    if settings.loop is Loop.DATA_PLANE:
        check_data_plane()
    SAMPLE_ROLLOUT.check(rollouts)
    if settings.gym:
        choose_gym_point(loop).check(loop)
        GYM_ROLLOUT.check(rollouts)
    return settings, check_returns(loop, master_config)
