"""The line that a step prints."""

from nemo_ada.cli.progress import step_line

RECORD = {
    "step": 3,
    "ada/pass_rate": 0.25,
    "ada/samples_drawn": 64,
    "ada/live_rows": 40,
    "train/grad_norm": 0.5,
    "time/step": 2.0,
    "time/sampling": 1.0,
}


def test_a_step_shows_its_groups_without_signal_beside_those_of_grpo():
    line = step_line(RECORD | {"ada/zero_signal_groups": 0.25, "ada/zero_signal_groups_if_grpo": 0.5})
    assert "0.25 (GRPO 0.50)" in line


def test_a_step_whose_groups_all_teach_shows_no_share():
    assert "n/a" in step_line(RECORD)
