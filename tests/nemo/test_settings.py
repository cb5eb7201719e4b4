"""What the hooks read of a configuration and of a checkpoint, without NeMo-RL."""

from __future__ import annotations

import pytest
import torch
from standin import config

from nemo_ada.errors import UserError
from nemo_ada.nemo import settings
from nemo_ada.nemo.groups.prompt_queue import LOADER_FILE, Delivered, read_saved_queue


def test_dynamic_sampling_draws_batch_multiplier_times_the_prompts_of_a_step():
    dynamic = {"grpo__use_dynamic_sampling": True, "grpo__batch_multiplier": 3}
    assert settings.read(config(4, 8, {"preset": "grpo"}, **dynamic)).prompts == 24
    assert settings.read(config(4, 8, {"preset": "grpo"}, grpo__batch_multiplier=3)).prompts == 8


def test_first_waves_smaller_than_a_group_need_no_budget_for_the_group():
    small = {"preset": "grpo", "sampling": {"wave_size": [4, 12]}, "budget": {"max_samples": 100}}
    first = settings.read(config(16, 8, small)).ada.plan(16, 64).stop.first_wave
    assert first < 16 and 8 * first <= 100 < 8 * 16
    with pytest.raises(UserError, match="max_samples"):
        settings.read(config(16, 8, small | {"budget": {"max_samples": 8 * first - 1}}))


def test_the_queue_goes_on_from_the_newest_checkpoint_and_from_no_other_loops(tmp_path):
    assert read_saved_queue(None) is None
    assert read_saved_queue(str(tmp_path)) is None, "a checkpoint without the file"
    state = {"low": 3, "above": [5], "started": [4]}
    torch.save(state, tmp_path / LOADER_FILE)
    assert read_saved_queue(tmp_path) == state
    torch.save({"_index": 3}, tmp_path / LOADER_FILE)
    with pytest.raises(UserError, match="not made by asynchronous Reinforce-Ada"):
        read_saved_queue(tmp_path)


def test_a_buffers_tickets_are_plain_numbers():
    tickets = Delivered(3, {5})
    assert Delivered.of(tickets.as_dict()) == tickets and Delivered.of(None) == Delivered()


@pytest.mark.parametrize("name", ["normalize_rewards", "use_leave_one_out_baseline"])
def test_settings_of_nemo_rls_own_estimator_are_refused_with_what_replaces_them(name):
    """NeMo-RL's example configs set both to true."""
    assert settings.read(config(4, 8, {"preset": "grpo"}, **{f"grpo__{name}": False}))
    with pytest.raises(UserError, match=rf"grpo\.{name}=true belongs to NeMo-RL's own estimator"):
        settings.read(config(4, 8, {"preset": "grpo"}, **{f"grpo__{name}": True}))
