"""operations.md lists exit codes with their causes. Each cause has a test that provokes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nemo_ada.run.job_control import EXIT_DONE, EXIT_FAILED, EXIT_LOST, EXIT_STALLED, EXIT_STOPPED, EXIT_USER_ERROR

ROOT = Path(__file__).resolve().parents[1]
LAUNCH, WHOLE, MATRIX = "nemo/test_launch.py", "nemo/test_launch_end_to_end.py", "faults/test_matrix.py"
MAIN, START = "cli/test_main.py", "cpu/processes/test_ray_start.py"
OF_AN_ERROR = f"{LAUNCH}::test_an_error_ends_with_the_code_of_its_cause"
FOLDERS = f"{MAIN}::test_a_folder_that_no_attempt_can_use_is_a_user_error"
TEMPORARY = "run/test_private_folder.py::test_a_temporary_folder_with_a_long_path_is_left_out"
LASTS = f"{START}::test_a_cause_that_stays_has_no_exit_code_that_continues_a_chain"
STRUCK = f"{MATRIX}::test_a_run_survives_one_fault_of_each_kind"
TOLD = f"{WHOLE}::test_exit_codes_and_status_tell_what_happened"
CAUSES = {
    EXIT_DONE: {"the last step": TOLD},
    EXIT_FAILED: {
        "a defect": OF_AN_ERROR,
        "memory ran out": OF_AN_ERROR,
        "too many failed responses": OF_AN_ERROR,
        "a full disk": STRUCK,
        "Ray that cannot start for a lasting cause": LASTS,
        "a stop without checkpoints": f"{LAUNCH}::test_a_stop_without_checkpoints_does_not_continue_a_chain",
    },
    EXIT_USER_ERROR: {
        "a setting": f"{MAIN}::test_bad_input_is_one_line_and_exit_code_2",
        "a path": f"{MAIN}::test_bad_input_is_one_line_and_exit_code_2",
        "a folder of something else": FOLDERS,
        "lost checkpoints": FOLDERS,
        "a `TMPDIR` that cannot be used": TEMPORARY,
    },
    EXIT_STOPPED: {
        "STOP": TOLD,
        "a signal": f"{MAIN}::test_ctrl_c_saves_leaves_no_process_and_resumes",
        "the job's end": TOLD,
    },
    EXIT_STALLED: {"an engine": STRUCK, "a collective or Ray gave no answer in time": STRUCK},
    EXIT_LOST: {"killed": STRUCK, "out of the node's memory": OF_AN_ERROR, "a lost node": OF_AN_ERROR},
}


def on_the_page() -> dict[int, list[str]]:
    """Exit code -> the causes of its row."""
    page = (ROOT / "recipes/guide/operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \| [^|]+ \|$", page, re.M)
    return {int(code): causes.strip().split(", ") for code, causes in rows}


def test_the_page_lists_the_causes_that_are_tested_and_no_others():
    assert on_the_page() == {code: list(causes) for code, causes in CAUSES.items()}


@pytest.mark.parametrize("test", sorted({test for causes in CAUSES.values() for test in causes.values()}))
def test_the_test_of_a_cause_exists(test):
    path, name = test.split("::")
    assert f"def {name}(" in (ROOT / "tests" / path).read_text(encoding="utf-8")
