"""Every known form of log is read, and a hostile file ends with one sentence that names file and line."""

from __future__ import annotations

import gzip
import json
import math
import os

import numpy as np
import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.averages import read_averages
from nemo_ada.lab.whatif.logs import read_logs

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
TRACE = {
    "version": 1, "id": "t1", "agent": {"name": "solver", "trainable": True}, "nodes": [],
    "calls": [{"usage": {"prompt_tokens": 9, "completion_tokens": 30}}, {"usage": {"completion_tokens": 12}}],
    "rewards": {"correct": {"score": 1.0, "weight": 1.0}, "format": {"score": 0.5, "weight": 0.2}},
    "timing": {"agent": {"start": 100.0, "end": 102.5}}, "ok": True,
}  # fmt: skip
EPISODE = {
    "id": "e1", "env": {"id": "gsm8k"}, "task": {"type": "Row", "data": {"question": "2 + 2"}, "key": "k1"},
    "group": {"id": "g7"}, "run": {"type": "train", "id": "r", "work": {"type": "train", "step": 5}}, "ok": True,
    "traces": [TRACE],
}  # fmt: skip
ROLLOUT_OUTPUT = {  # verifiers before 1.0
    "example_id": 4, "prompt": [{"role": "user", "content": "2 + 2"}], "completion": [], "reward": 0.0, "metrics": {},
    "token_usage": {"input_tokens": 12.0, "output_tokens": 33.0},
}  # fmt: skip
OURS = {"id": "p1", "line": 3, "index": 0, "seed": 9, "tokens": 8, "finished": True, "reward": 1.0, "text": "4"}
FORMS = {
    "train_data_step7.jsonl": (NEMO_RL, 1.0, 2),
    "rollouts.jsonl": (GYM, 1.0, 91),
    "12.jsonl": (VERL, 1.0, 2),
    "run_rollouts_000000.jsonl": (OPEN_INSTRUCT, 10.0, 3),
    "step_5/train/all/traces.jsonl": (EPISODE, 1.1, 42),
    "traces.jsonl": (TRACE | {"task": EPISODE["task"]}, 1.1, 42),
    "train_rollouts.jsonl": (ROLLOUT_OUTPUT, 0.0, 33),
    "responses.jsonl": (OURS, 1.0, 8),
}


def write(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("name", FORMS)
def test_a_record_of_each_framework_is_a_response(name, tmp_path):
    record, reward, tokens = FORMS[name]
    other = json.loads(json.dumps(record).replace("2 + 2", "3 + 3").replace('"k1"', '"k2"').replace('"t1"', '"t2"'))
    found = read_logs([write(tmp_path / name, record, other)])
    assert found.reward_N.tolist() == pytest.approx([reward, reward])
    assert found.tokens_N.tolist() == [tokens, tokens]
    same = name in ("12.jsonl", "run_rollouts_000000.jsonl", "responses.jsonl", "train_data_step7.jsonl")
    assert len(found.names_U) == (1 if same and "12" not in name else 2)


def test_the_prompt_of_nemo_rl_is_what_stands_before_the_first_generated_token(tmp_path):
    same = NEMO_RL | {
        "token_ids": [[7, 8, 9, 4, 4, 4, 3]],
        "token_loss_mask": [[0, 0, 0, 1, 1, 0, 1]],
        "rewards": [0.0],
    }
    other = NEMO_RL | {"token_ids": [[7, 8, 1, 10, 3, 0, 0]]}
    found = read_logs([write(tmp_path / "train_data_step1.jsonl", NEMO_RL, same, other)])
    assert found.group_N.tolist() == [0, 0, 1]
    assert found.tokens_N.tolist() == [2, 3, 2]


def test_a_placeholder_row_of_an_adaptive_run_has_no_label(tmp_path):
    row = NEMO_RL | {"token_loss_mask": [[0, 0, 0, 1, 0, 0, 0]], "sample_loss_mask": [0.0]}
    assert math.isnan(read_logs([write(tmp_path / "train_data_step1.jsonl", row)]).reward_N[0])


def test_steps_come_from_the_record_or_from_the_name_of_the_file_and_ten_follows_nine(tmp_path):
    for step in (10, 9):
        write(tmp_path / "logs" / f"train_data_step{step}.jsonl", NEMO_RL, NEMO_RL)
    write(tmp_path / "logs" / "val_data_step9.jsonl", {"content": "no rollout"})
    found = read_logs([tmp_path / "logs"])
    assert (found.steps, found.step_G.tolist(), len(found.names_U)) == (2, [0, 1], 1)
    found = read_logs([write(tmp_path / "dump.jsonl", VERL, VERL | {"step": 13}, VERL | {"step": 12})])
    assert found.group_N.tolist() == [0, 1, 0]


def test_the_copies_of_prime_rl_count_once_and_its_evaluations_do_not_count(tmp_path):
    evaluation = EPISODE | {"run": {"type": "train", "id": "r", "work": {"type": "eval", "step": 5}}}
    write(tmp_path / "step_5" / "train" / "all" / "traces.jsonl", EPISODE)
    write(tmp_path / "step_5" / "train" / "effective" / "traces.jsonl", EPISODE)
    write(tmp_path / "step_5" / "eval" / "all" / "traces.jsonl", evaluation)
    found = read_logs([tmp_path])
    assert len(found.reward_N) == 1
    assert "count once" in " ".join(found.notes)


def test_a_failed_episode_is_a_response_without_a_label(tmp_path):
    failed = EPISODE | {"traces": [], "ok": False, "id": "e2"}
    unscored = EPISODE | {"traces": [TRACE | {"rewards": {"correct": None}, "id": "t9"}]}
    found = read_logs([write(tmp_path / "a.jsonl", EPISODE, failed, unscored)])
    assert np.isnan(found.reward_N).tolist() == [False, True, True]


def test_the_tables_of_trl_have_a_column_per_reward_and_a_repeated_batch_counts_once(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    batch = {
        "prompt": ["2 + 2", "2 + 2"], "completion": ["4" * 8, "5" * 40], "accuracy": [1.0, 0.0], "format": [0.5, None],
        "advantage": [0.7, -0.7],
    }  # fmt: skip
    for step in (1, 2):  # logged twice, drawn once
        pandas.DataFrame({"step": [step] * 2, **batch}).to_parquet(tmp_path / f"completions_{step:05d}.parquet")
    found = read_logs([tmp_path])
    assert found.reward_N.tolist() == [1.5, 0.0]
    assert found.tokens_N.tolist() == [2, 10]
    assert not found.counted
    assert any("repeats the batch" in note for note in found.notes)
    chosen = read_logs([tmp_path], {"reward": "accuracy"})
    assert chosen.reward_N.tolist() == [1.0, 0.0]


def test_a_log_may_be_compressed(tmp_path):
    lines = b"".join(json.dumps(VERL | {"step": step}).encode() + b"\n" for step in range(40))
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "metrics.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    assert read_logs([tmp_path]).steps == 40
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(lines)[:-30])
    with pytest.raises(UserError):
        read_logs([tmp_path / "cut.jsonl.gz"])


def test_own_fields_are_named_also_inside_objects(tmp_path):
    record = {"question": {"id": 4}, "scores": {"exact": True}, "n": 17}
    names = {"prompt": "question.id", "reward": "scores.exact", "tokens": "n"}
    found = read_logs([write(tmp_path / "own.jsonl", record)], names)
    assert (found.reward_N[0], found.tokens_N[0]) == (1.0, 17.0)


def test_a_line_that_a_killed_run_left_is_a_note_and_damage_before_the_end_an_error(tmp_path):
    path = write(tmp_path / "a.jsonl", OURS, OURS)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": "p2", "rew')
    found = read_logs([path])
    assert len(found.reward_N) == 2
    assert found.notes
    path.write_bytes(whole + b'{"id": "p2", "rew\n' + whole)
    with pytest.raises(UserError, match=r"a\.jsonl, line 3"):
        read_logs([path])


@pytest.mark.parametrize(
    "line",
    [
        b"[1, 2]", b"nope", b"\xff\xfe{", b'{"a": 1}', b'{"prompt": "x"}', b'{"prompt": "x", "reward": "good"}',
        b'{"prompt": "x", "reward": 1, "tokens": -4}', b'{"prompt": "x", "reward": 1, "tokens": 1e300}',
        b'{"prompt": null, "reward": 1}', b'{"prompt": "x", "reward": 1, "step": 1.5}',
        b'{"prompt": "x", "reward": []}', b'{"prompt": "x", "reward": Infinity}',
        b'{"token_loss_mask": 3, "rewards": [1]}', b'{"token_loss_mask": [[1]], "rewards": [1], "token_ids": [[]]}',
        b'{"token_loss_mask": [[1]], "rewards": [], "token_ids": [[3]]}', b'{"task": {}, "traces": [4]}',
        b'{"task": {}, "traces": [{"rewards": {"a": 3}}]}',
        b'{"task": {}, "run": {"work": {"step": -1}}, "traces": []}',
        b"[" * 100_000, b'{"prompt": ' + b"[" * 100_000, b'{"prompt": "x", "completion": "y", "advantage": "z"}',
        b'{"prompt": "x", "reward": ' + b"9" * 400 + b"}", b"\0\0",
    ],
)  # fmt: skip
def test_a_hostile_line_is_named(line, tmp_path):
    path = tmp_path / "a.jsonl"
    for content, number in ((line + b"\n", 1), (json.dumps(OURS).encode() + b"\n" + line + b"\n\n{}\n", 2)):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"a\.jsonl, line {number}"):
            read_logs([path])


def test_places_without_rollouts_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "empty.jsonl").write_bytes(b"\n\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    for name in ("pipe.jsonl", "empty.jsonl", "folder", "bad.parquet", "missing"):
        with pytest.raises(UserError, match=name):
            read_logs([tmp_path / name])
    with pytest.raises(UserError):
        read_logs([tmp_path / "nul\0"])


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_ada.run.json_lines.MAX_LINE", 1000)
    (tmp_path / "a.jsonl").write_bytes(b"x" * 5000)
    with pytest.raises(UserError, match="line 1: longer than 1,000 bytes"):
        read_logs([tmp_path / "a.jsonl"])


def test_numbers_that_are_nan_are_missing(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "x", "reward": NaN, "tokens": NaN}\n{"prompt": "x", "reward": 1}\n')
    found = read_logs([tmp_path / "a.jsonl"])
    assert math.isnan(found.reward_N[0])
    assert np.isnan(found.tokens_N).all()


def test_two_logs_keep_their_steps_apart(tmp_path):
    one, two = (write(tmp_path / name, VERL, VERL) for name in ("one.jsonl", "two.jsonl"))
    found = read_logs([one, two])
    assert (len(found.prompt_G), found.steps, len(found.names_U)) == (2, 2, 1)


def test_a_group_that_two_files_of_a_folder_share_is_noted(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "train.jsonl", VERL, VERL)
    assert len(read_logs([tmp_path]).notes) == 1
    assert not read_logs([tmp_path / "a", tmp_path / "b"]).notes


@pytest.mark.parametrize(("between", "point"), [(",", "."), (";", ",")])
def test_responses_in_a_csv_file_are_no_curve(between, point, tmp_path):
    """A table of responses was taken for averages of steps, and gave an answer about groups that nobody had."""
    heads, rows = ["question", "response", "my_score", "tokens"], []
    for i in range(40):
        rows.append(
            [f"p{i // 4}", f'"a text{between} of {i}"', "1.0".replace(".", point) if i % 3 else "0", str(i + 1)]
        )
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(between.join(row) for row in [heads, *rows]), encoding="utf-8")
    names = {"reward": "my_score"}
    assert read_averages([file], names) is None
    log = read_logs([file], names)
    assert len(log.prompt_G) == 10 and log.reward_N.tolist() == [float(i % 3 > 0) for i in range(40)]
    assert log.tokens_N.tolist() == list(range(1, 41)) and log.counted
    with pytest.raises(UserError, match=r"rows.csv, row 1: has no reward.*--column reward=FIELD"):
        read_logs([file])


def test_the_csv_files_of_a_folder_are_read_where_it_has_no_other_rollouts(tmp_path):
    for step in (9, 10):
        rows = "".join(f"problem {step},answer,{i % 2}\n" for i in range(4))
        (tmp_path / f"step_{step}.csv").write_text(f"prompt,response,reward\n{rows}")
    log = read_logs([tmp_path])
    assert log.names_U == ("problem 9", "problem 10") and log.step_G.tolist() == [0, 1]
    write(tmp_path / "train.jsonl", VERL)
    assert len(read_logs([tmp_path]).reward_N) == 1
