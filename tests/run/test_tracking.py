"""The run of W&B that belongs to a run folder, recorded by the real package without a server."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from nemo_ada.cpu.settings import RunConfig
from nemo_ada.errors import UserError
from nemo_ada.run.folder import RunDir
from nemo_ada.run.tracking import check_tracking, nemo_rl_names
from tests.patience import PATIENCE

wandb = pytest.importorskip("wandb")

CONFIG = {"task": {"name": "mini_sudoku"}, "reinforce_ada": {"preset": "grpo"}, "logger": {"api_key": "planted-secret"}}
STEP = {"train/loss": 0.5, "ada/pass_rate": 0.25, "time/step": 2.0, "ada/pass_rate_histogram": [1, 2], "note": "text"}
SCORES = {"val/accuracy": 0.75, "val/pass@4": 0.9, "val/response_length": 12.0, "samples": []}


def attempt(folder, steps, *, resume):
    run = RunDir(folder)
    run.open(CONFIG, resume=resume)
    run.track({"project": "p", "name": "my run"}, CONFIG)
    for step in steps:
        run.log("metrics", {"step": step, **STEP}, tensorboard=False)
    run.log("evaluations", {"step": steps[-1], **SCORES}, tensorboard=False)
    run.close()


def blocks(content):
    """The records of W&B's file: LevelDB's log format behind a header of 7 bytes, in blocks of 32 KiB."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the end of one
            yield parts
            parts = b""


def recorded(folder):
    """What each attempt wrote: id, name, project, configuration and the rows of its history."""
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(Path(folder).glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        run, rows = None, []
        until = time.monotonic() + PATIENCE
        while True:  # the package's own process writes the file, and its end may come after `finish`
            records = list(map(Record.FromString, blocks(file.read_bytes())))
            if records and records[-1].HasField("exit"):
                break
            assert time.monotonic() < until, file
            time.sleep(0.1)
        for record in records:
            if record.HasField("run"):
                run = run or record.run
            if record.HasField("history"):
                rows.append({"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item})
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        yield run, config, [{key: json.loads(value) for key, value in row.items()} for row in rows]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_resumed_run_goes_on_in_its_run_under_the_names_of_nemo_rl(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    attempt(tmp_path / "run", [1, 2], resume=False)
    attempt(tmp_path / "run", [2, 3], resume=True)
    first, second = recorded(tmp_path / "run")
    assert first[0].run_id == second[0].run_id == json.loads((tmp_path / "run/tracking.json").read_text())["wandb_id"]
    assert (first[0].display_name, first[0].project) == ("my run", "p")
    assert first[1]["reinforce_ada"] == {"preset": "grpo"}
    assert "planted-secret" not in json.dumps(first[1])
    assert [row["_step"] for row in first[2]] == [1, 2] and [row["_step"] for row in second[2]] == [2, 3]
    last = second[2][-1]
    assert last["train/loss"] == 0.5 and last["train/ada/pass_rate"] == last["train/reward"] == 0.25
    assert last["validation/accuracy"] == 0.75 and last["validation/avg_length"] == 12.0
    assert last["timing/train/total_step_time"] == 2.0


def test_every_name_of_a_cpu_record_has_one_of_nemo_rl():
    names = nemo_rl_names({"step": 3, **STEP, **SCORES, "total/responses": 7, "ada/samples_drawn": 8.0})
    assert {name.partition("/")[0] for name in names} == {"train", "validation", "timing", "total"}
    assert "step" not in names


def test_what_w_and_b_lacks_is_said_before_a_run_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(UserError, match="WANDB_MODE=offline"):
        check_tracking()
    monkeypatch.setenv("WANDB_MODE", "offline")  # the remedy works
    check_tracking()
    (tmp_path / "netrc").write_text("machine wandb.example.org\n  login user\n  password " + "0" * 40 + "\n")
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    check_tracking()


def test_the_section_has_the_keys_of_nemo_rl():
    logger = RunConfig.model_fields["logger"].annotation
    assert {"wandb_enabled", "wandb"} <= set(logger.model_fields)
    assert set(logger.model_fields["wandb"].annotation.model_fields) == {"project", "name", "entity"}
