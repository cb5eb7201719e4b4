"""The table of contradictions: all that apply are named, every one can occur, and the page shows the table."""

from pathlib import Path

import pytest

from nemo_ada.config.conflicts import CONFLICTS, Facts, find_conflicts, write_page
from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.errors import UserError

SPREAD = {"kind": "spread"}
EST = {"preset": "ada_est_ema"}
SINGLE = {"preset": "ada_single"}
DECLARED = {"weighting": "objective"}
CASES = [
    ({"preset": "ada_seq_lean", "sampling": {"wave_size": 16}}, 4),
    ({"preset": "ada_seq_balance", "sampling": {"max_responses": 2}}, 4),
    ({"sampling": {"kind": "sequential", "exit": {"kind": "positive"}, "wave_size": 2}}, 4),
    ({"preset": "grpo", "sampling": {"exit": SPREAD}, "reserve_prompts": 2, "advantage": DECLARED}, 4),
    ({"preset": "grpo", "budget": {"max_seconds": 9.0}}, 4),
    ({**EST, "reserve_prompts": 1}, 2),
    ({**EST, "advantage": {**DECLARED, "objective": {"kind": "log"}}}, 8),
    ({**EST, "sampling": {"min_responses": 1}, "advantage": DECLARED}, 8),
    ({**EST, "sampling": {"min_responses": 4}}, 4),
    ({**SINGLE, "advantage": {"normalize": "std"}}, 1),
    ({"preset": "grpo", "advantage": {**DECLARED, "normalize": "std"}}, 1),
    ({"preset": "ada_seq_log", "advantage": {"max_weight": 8.0}}, 4),
    ({"preset": "ada_seq_log", "advantage": {"baseline": "leave_one_out"}}, 4),
    ({"preset": "ada_seq_lean", "advantage": {**DECLARED, "objective": {"kind": "log"}}}, 4),
    ({**EST, "estimator": {"kind": "ema", "per_prompt": False}}, 8),
    ({"preset": "ada_seq_balance", "advantage": {"baseline": "shrunk", "objective": {"kind": "log"}},
      "reserve_prompts": 2}, 4),
    ({"preset": "ada_seq_positive"}, 1),
]  # fmt: skip


@pytest.mark.parametrize(("section", "group"), CASES)
def test_a_run_is_refused_with_all_that_apply(section, group):
    ada = parse_ada_settings(section)
    found = find_conflicts(ada, group, rows=True)
    with pytest.raises(UserError) as error:
        ada.check_rows(group)
    assert found and all(message in str(error.value) for message in found)
    assert "\n" not in str(error.value) and "{" not in str(error.value)


def test_every_conflict_can_occur():
    missing = [
        one.write_message(Facts(parse_ada_settings({"preset": "grpo"}), 4)) if "{" not in one.what else one.what
        for one in CONFLICTS
        if not any(one.when(Facts(parse_ada_settings(section), group)) for section, group in CASES)
    ]
    assert missing == []


def test_no_preset_contradicts_itself():
    groups = {"ada_est_ema": 8, "ada_est_value": 8, "ada_single": 1}
    for name in ("grpo", "nemo_rl_grpo", "ada_seq_positive", "ada_seq_balance", "ada_seq_lean", "ada_seq_log", *groups):
        assert find_conflicts(parse_ada_settings({"preset": name}), groups.get(name, 4), rows=True) == []


def test_the_page_is_the_table():
    shown = Path(__file__).resolve().parents[2] / "recipes" / "results" / "conflicts.md"
    assert shown.read_text(encoding="utf-8") == write_page()
