"""Every known form of rollouts is read, and a hostile file ends with one sentence that names file and line."""

from __future__ import annotations

import gzip
import json
import math
import os

import numpy as np
import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.answer import read_log

# One record of each form, with the fields that the frameworks write (read in their sources on 25 November 2026).
NEMO_RL = {
    "content": [["2 + 2", "4"]],
    "rewards": [1.0],
    "input_lengths": [5],
    "token_ids": [[7, 8, 9, 10, 3, 0, 0]],
    "token_loss_mask": [[0, 0, 0, 1, 1, 0, 0]],
    "sample_loss_mask": [1.0],
    "advantages": [[0.0] * 7],
    "idx": 0,
}
GYM = {
    "responses_create_params": {"input": [{"role": "user", "content": "2 + 2"}], "temperature": 1.0},
    "response": {"id": "r", "output": [], "usage": {"input_tokens": 45, "output_tokens": 91, "total_tokens": 136}},
    "reward": 1.0,
    "_ng_task_index": 3,
    "_ng_rollout_index": 0,
    "agent_ref": {"type": "responses_api_agents", "name": "simple_agent"},
}
VERL = {"input": "user\n2 + 2", "output": "it is 4 ", "gts": "4", "score": 1.0, "step": 12, "acc": True}
OPEN_INSTRUCT = {
    "step": 2, "sample_idx": 0, "prompt_idx": 0, "prompt_tokens": [1, 2], "response_tokens": [3, 4, 5], "reward": 10.0,
    "advantage": 0.5, "finish_reason": "stop", "dataset": "math",
}  # fmt: skip
ROLLOUT_OUTPUT = {  # verifiers before 1.0
    "example_id": 4, "prompt": [{"role": "user", "content": "2 + 2"}], "completion": [], "reward": 0.0, "metrics": {},
    "token_usage": {"input_tokens": 12.0, "output_tokens": 33.0},
}  # fmt: skip
OURS = {"id": "p1", "line": 3, "index": 0, "seed": 9, "tokens": 8, "finished": True, "reward": 1.0, "text": "4"}
FORMS = {
    "train_data_step7.jsonl": (NEMO_RL, 1.0, 2, 1),
    "rollouts.jsonl": (GYM, 1.0, 91, 2),
    "12.jsonl": (VERL, 1.0, None, 2),
    "run_rollouts_000000.jsonl": (OPEN_INSTRUCT, 10.0, 3, 1),
    "train_rollouts.jsonl": (ROLLOUT_OUTPUT, 0.0, 33, 2),
    "responses.jsonl": (OURS, 1.0, 8, 1),
}
"""File -> a record, its reward and tokens, and the prompts of it and of its copy with another text."""


def write(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def rewards(log):
    return log.frame["reward"].tolist()


@pytest.mark.parametrize("name", FORMS)
def test_a_record_of_each_framework_is_a_response(name, tmp_path):
    record, reward, tokens, prompts = FORMS[name]
    other = json.loads(json.dumps(record).replace("2 + 2", "3 + 3"))
    found = read_log([write(tmp_path / name, record, other)])
    assert rewards(found) == [reward, reward]
    assert found.frame["tokens"].isna().all() if tokens is None else found.frame["tokens"].tolist() == [tokens] * 2
    assert found.frame["prompt"].nunique() == prompts


def test_the_prompt_of_nemo_rl_is_what_stands_before_the_first_generated_token(tmp_path):
    same = NEMO_RL | {
        "token_ids": [[7, 8, 9, 4, 4, 4, 3]],
        "token_loss_mask": [[0, 0, 0, 1, 1, 0, 1]],
        "rewards": [0.0],
    }
    other = NEMO_RL | {"token_ids": [[7, 8, 1, 10, 3, 0, 0]]}
    found = read_log([write(tmp_path / "train_data_step1.jsonl", NEMO_RL, same, other)])
    assert found.frame["group"].tolist() == [0, 0, 1]
    assert found.frame["tokens"].tolist() == [2, 3, 2]


def test_a_placeholder_row_of_an_adaptive_run_has_no_label(tmp_path):
    row = NEMO_RL | {"token_loss_mask": [[0, 0, 0, 1, 0, 0, 0]], "sample_loss_mask": [0.0]}
    assert math.isnan(rewards(read_log([write(tmp_path / "train_data_step1.jsonl", row)]))[0])


def test_steps_come_from_the_record_or_from_the_name_of_the_file_and_ten_follows_nine(tmp_path):
    for step in (10, 9):
        write(tmp_path / "logs" / f"train_data_step{step}.jsonl", NEMO_RL | {"rewards": [float(step)]})
    write(tmp_path / "logs" / "val_data_step9.jsonl", {"content": "no rollout"})
    found = read_log([tmp_path / "logs"])
    assert (found.frame["step"].tolist(), rewards(found), found.frame["prompt"].nunique()) == ([0, 1], [9.0, 10.0], 1)
    found = read_log([write(tmp_path / "dump.jsonl", VERL, VERL | {"step": 13}, VERL | {"step": 12})])
    assert found.frame["group"].tolist() == [0, 1, 0]


def test_the_tables_of_trl_have_a_column_per_reward_and_a_repeated_batch_counts_once(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    batch = {
        "prompt": ["2 + 2", "2 + 2"], "completion": ["4" * 8, "5" * 40], "accuracy": [1.0, 0.0], "format": [0.5, None],
        "advantage": [0.7, -0.7],
    }  # fmt: skip
    for step in (1, 2):  # logged twice, drawn once
        pandas.DataFrame({"step": [step] * 2, **batch}).to_parquet(tmp_path / f"completions_{step:05d}.parquet")
    found = read_log([tmp_path])
    assert rewards(found) == [1.5, 0.0]
    assert any("repeats the batch" in note for note in found.notes)
    assert any("accuracy + format" in note for note in found.notes)
    assert rewards(read_log([tmp_path], {"reward": "accuracy"})) == [1.0, 0.0]


def test_a_log_may_be_compressed(tmp_path):
    lines = b"".join(json.dumps(VERL | {"step": step}).encode() + b"\n" for step in range(40))
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "metrics.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    assert read_log([tmp_path]).frame["step"].nunique() == 40
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(lines)[:-30])
    with pytest.raises(UserError):
        read_log([tmp_path / "cut.jsonl.gz"])


def test_own_fields_are_named_also_inside_objects(tmp_path):
    record = {"question": {"id": 4}, "scores": {"exact": True}, "n": 17}
    names = {"prompt": "question.id", "reward": "scores.exact", "tokens": "n"}
    found = read_log([write(tmp_path / "own.jsonl", record)], names)
    assert found.frame[["reward", "tokens"]].to_numpy().tolist() == [[1.0, 17.0]]


def test_responses_whose_prompt_nobody_named_are_no_steps(tmp_path):
    file = write(tmp_path / "own.jsonl", *({"task_text": f"a{i // 4}", "exact": i % 2} for i in range(40)))
    with pytest.raises(UserError, match="--column prompt=task_text"):
        read_log([file], {"reward": "exact"})


def test_a_line_that_a_killed_run_left_is_passed_over_and_damage_before_the_end_is_an_error(tmp_path):
    path = write(tmp_path / "a.jsonl", OURS, OURS)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": "p2", "rew')
    assert len(read_log([path]).frame) == 2
    path.write_bytes(whole + b'{"id": "p2", "rew\n' + whole)
    with pytest.raises(UserError, match=r"a\.jsonl, line 3"):
        read_log([path])


@pytest.mark.parametrize(
    "line",
    [
        b"[1, 2]", b"nope", b"\xff\xfe{", b'{"a": 1}', b'{"prompt": "x"}', b'{"prompt": "x", "reward": "good"}',
        b'{"prompt": "x", "reward": 1, "tokens": -4}', b'{"prompt": "x", "reward": 1, "tokens": 1e300}',
        b'{"prompt": null, "reward": 1}', b'{"prompt": "x", "reward": []}', b'{"prompt": "x", "reward": Infinity}',
        b'{"token_loss_mask": 3, "rewards": [1]}', b'{"token_loss_mask": [[1]], "rewards": [1], "token_ids": [[]]}',
        b'{"token_loss_mask": [[1]], "rewards": [], "token_ids": [[3]], "sample_loss_mask": [1]}',
        b"[" * 100_000, b'{"prompt": ' + b"[" * 100_000, b'{"prompt": "x", "reward": ' + b"9" * 400 + b"}", b"\0\0",
    ],
)  # fmt: skip
def test_a_hostile_line_is_named(line, tmp_path):
    path = tmp_path / "a.jsonl"
    for content, number in ((line + b"\n", 1), (json.dumps(OURS).encode() + b"\n" + line + b"\n\n{}\n", 2)):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"a\.jsonl, line {number}"):
            read_log([path])


def test_places_without_rollouts_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "empty.jsonl").write_bytes(b"\n\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    for name in ("pipe.jsonl", "empty.jsonl", "folder", "bad.parquet", "missing"):
        with pytest.raises(UserError, match=name):
            read_log([tmp_path / name])


def test_numbers_that_are_nan_are_missing(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "x", "reward": NaN, "tokens": NaN}\n{"prompt": "x", "reward": 1}\n')
    found = read_log([tmp_path / "a.jsonl"]).frame
    assert found["reward"].isna().tolist() == [True, False] and found["tokens"].isna().all()


def test_two_logs_and_two_folders_keep_their_steps_apart(tmp_path):
    """Two folders hold two runs. Their groups were joined, where files named the same step and prompt."""
    one, two = (write(tmp_path / name / "train.jsonl", VERL, VERL) for name in ("one", "two"))
    for paths in ([one, two], [tmp_path]):
        found = read_log(paths).frame
        assert found["group"].tolist() == found["step"].tolist() == [0, 0, 1, 1] and found["prompt"].nunique() == 1


def test_responses_in_a_csv_file_are_no_curve(tmp_path):
    """A table of responses was taken for averages of steps, and gave an answer about groups that nobody had."""
    rows = [f'p{i // 4},"a text, of {i}",{1.0 if i % 3 else 0},{i + 1}' for i in range(40)]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(["question,response,my_score,tokens", *rows]))
    log = read_log([file], {"reward": "my_score"})
    assert log.frame["group"].nunique() == 10 and rewards(log) == [float(i % 3 > 0) for i in range(40)]
    assert log.frame["tokens"].tolist() == list(range(1, 41))
    with pytest.raises(UserError, match=r"rows.csv, line 1: has no reward.*--column reward=my_score"):
        read_log([file])


def test_the_csv_files_of_a_folder_are_read_where_it_has_no_other_rollouts(tmp_path):
    for step in (9, 10):
        rows = "".join(f"problem {step},answer,{bool(i % 2)}\n" for i in range(4))
        (tmp_path / f"step_{step}.csv").write_text(f"prompt,response,reward\n{rows}")
    log = read_log([tmp_path])
    assert log.frame["step"].tolist() == [0] * 4 + [1] * 4 and rewards(log) == [0.0, 1.0] * 4
    write(tmp_path / "train.jsonl", VERL)
    assert len(read_log([tmp_path]).frame) == 1


def test_metrics_beside_rollouts_are_passed_over(tmp_path):
    write(tmp_path / "logging.jsonl", *({"step": step, "reward": 0.5, "loss": 0.1} for step in range(9)))
    write(tmp_path / "rollouts.jsonl", *({"prompt": i // 4, "reward": i % 2} for i in range(40)))
    assert np.isfinite(read_log([tmp_path]).frame["reward"]).sum() == 40


def test_problems_beside_rollouts_are_passed_over_and_said(tmp_path):
    """The folder of a run of the CPU back end holds its problems, whose name no list knew."""
    write(tmp_path / "heldout.jsonl", {"problem": "1+1", "answer": "2"}, {"problem": "2+2", "answer": "4"})
    with pytest.raises(UserError, match=r"heldout\.jsonl, line 1: has no reward.*--column reward="):
        read_log([tmp_path])
    write(tmp_path / "metrics.jsonl", *({"step": step, "train/reward": 0.5} for step in range(9)))
    log = read_log([tmp_path])
    assert log.mean_T.size == 9 and any("not read: heldout.jsonl;" in note for note in log.notes)
    write(tmp_path / "rollouts.jsonl", *({"prompt": i // 4, "reward": i % 2} for i in range(40)))
    assert len(read_log([tmp_path]).frame) == 40
