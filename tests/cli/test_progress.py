"""What a command shows of its progress."""

from nemo_ada.cli import progress
from nemo_ada.cli.progress import format_step

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
    line = format_step(RECORD | {"ada/zero_signal_groups": 0.25, "ada/zero_signal_groups_if_grpo": 0.5})
    assert "0.25 (GRPO 0.50)" in line
    assert "n/a" in format_step(RECORD), "groups that all teach have no share"


def test_a_log_gets_a_line_at_the_start_at_most_once_a_minute_and_at_the_end(monkeypatch, capfd):
    for seconds, lines in (
        (60.0, ["[a]: 0 of 100", "[a]: 100 of 100"]),
        (0.0, ["[a]: 0 of 100", "[a]: 50 of 100", "100"]),
    ):
        monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
        with progress.count_on_terminal() as watch:
            for done in (0, 50, 100):
                watch("[a]", done, 100)
        said = capfd.readouterr().err.splitlines()
        assert len(said) == len(lines) and all(line in shown for line, shown in zip(lines, said, strict=True))
