"""Layouts of public data sets: the pair is found, and where it stood is said."""

from __future__ import annotations

import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from nemo_ada.errors import UserError
from nemo_ada.lab.data.source import open_source
from nemo_ada.run.data_files import is_lines_or_objects, read_records
from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS, pair_of
from nemo_ada.verify.audit import kind_of
from nemo_ada.verify.reference import Reader

ASKED = [{"role": "user", "content": "What is 20+7?"}]
SYSTEM = {"role": "system", "content": "Think."}
LAYOUTS = {
    "ours": {"problem": "What is 20+7?", "answer": "27"},
    "verl": {"prompt": [SYSTEM, *ASKED], "reward_model": {"style": "rule", "ground_truth": "27"}, "ability": "math"},
    "verl, a list of one": {"prompt": ASKED, "reward_model": {"ground_truth": ["27"]}},
    "TRL": {"prompt": ASKED, "solution": r"<think>\boxed{3}</think> so \boxed{27}"},
    "R1-style tags": {"problem": "What is 20+7?", "solution": "<answer> 27 </answer>"},
    "OpenRLHF": {"input": ASKED, "label": "27"},
    "NeMo-Gym": {"responses_create_params": {"input": ASKED}, "expected_answer": "27", "agent_ref": {"name": "math"}},
    "parts": {"prompt": [{"role": "user", "content": [{"type": "text", "text": "What is 20+7?"}]}], "answer": "27"},
    "ShareGPT": {
        "conversations": [{"from": "human", "value": "What is 20+7?"}, {"from": "gpt", "value": r"Add: \boxed{27}"}]
    },
    "Skywork": {"prompt": ASKED, "reward_model": {"ground_truth": '["27"]'}},
    "JSON text": {"prompt": json.dumps(ASKED), "answer": "27"},
    "gsm8k": {"question": "What is 20+7?", "answer": "20+7=<<20+7=27>>27\n#### 27"},
    "nulls": {"problem": None, "prompt": " ", "question": "What is 20+7?", "answer": None, "gt": 27},
    "a column with a null": {"problem": "What is 20+7?", "answer": 27.0},
    "one element": {"problem": "What is 20+7?", "answer": ["27"]},
    "capitals": {"ID": 3, "Problem": "What is 20+7?", "Answer": 27},
    "capitals, nested": {"Prompt": ASKED, "Reward_Model": {"Ground_Truth": "27"}},
    "Alpaca without input": {"instruction": "What is 20+7?", "input": "", "output": "27"},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_question_and_its_answer_are_found(name):
    pair = pair_of(LAYOUTS[name], PROMPT_FIELDS, ANSWER_FIELDS)
    assert (pair.prompt, pair.answer) == ("What is 20+7?", "27")
    assert pair.system == ("Think." if name == "verl" else "")


def test_the_layout_is_said():
    said = {name: pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS).layout for name, record in LAYOUTS.items()}
    assert said["verl"] == "prompt 'prompt' (messages), reference 'reward_model.ground_truth'"
    assert said["ShareGPT"] == "prompt 'conversations' (messages), reference 'conversations' (its box)"
    assert said["gsm8k"] == "prompt 'question', reference 'answer' (after ####)"


def test_alpacas_instruction_and_its_input_are_one_prompt():
    record = {"instruction": "Add the numbers.", "input": "20, 7", "output": "27"}
    pair = pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS)
    assert (pair.prompt, pair.answer) == ("Add the numbers.\n\n20, 7", "27")


@pytest.mark.parametrize(
    "answer", ["proof", "Proof.", "notfound", "N/A", "null", "QED", "unknown", "?", r"\boxed{proof}"]
)
def test_a_reference_that_is_no_answer_is_refused(answer):
    with pytest.raises(ValueError, match="which is no answer"):
        pair_of({"problem": "Prove it.", "answer": answer}, PROMPT_FIELDS, ANSWER_FIELDS)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [(r"So \boxed{3} and \boxed{5}.", "35"), (r"First \boxed{3}. Wait: it is \boxed{5}.", "5")],
)
def test_several_boxes_are_one_reference_by_the_rule_of_the_judge(solution, answer):
    """The last box alone was taken, so "3 and 5" had the reference 5, and a right answer was wrong."""
    pair = pair_of({"problem": "Solve.", "solution": solution}, PROMPT_FIELDS, ANSWER_FIELDS)
    assert "".join(filter(str.isdigit, pair.answer)) == answer


def test_a_lost_backslash_reaches_the_audit():
    """JSON's "\frac{1}{2}" is a form feed and "rac{1}{2}", which strip() made a plain text of."""
    pair = pair_of(json.loads('{"problem": "p", "answer": "\\frac{1}{2}"}'), PROMPT_FIELDS, ANSWER_FIELDS)
    assert pair.answer.startswith("\x0c") and kind_of(pair.answer) == "control"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": [*ASKED, {"role": "assistant", "content": "?"}, *ASKED], "answer": "1"}, "user, assistant, user"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "1"}, "a part of type 'image'"),
        ({"problem": "p", "answer": ["1", "2"]}, "holds 2 answers"),
        ({"problem": "p", "reward_model": {"style": "rule"}}, "no answer field"),
        ({"problem": "p", "answer": None}, "its 'answer' is null"),
        ({"problem": "p", "answer": True}, "is bool"),
        ({"prompt": {"text": "p"}, "answer": "1"}, "is dict"),
    ],
)
def test_a_record_without_one_question_and_one_answer_is_refused_with_the_reason(record, reason):
    with pytest.raises(ValueError, match=reason):
        pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS)


MEDIA = {
    "geometry3k": {"images": [{"bytes": b"PNG", "path": None}], "problem": "<image>Find x"},
    "a path": {"image": "figures/12.png"},
    "numbered": {"image_1": {"bytes": b"PNG", "path": "a.png"}, "image_2": None},
    "MathVista": {"image": "images/1.jpg", "decoded_image": object()},
    "videos": {"videos": ["a.mp4"]},
    "sound": {"audio": {"array": [0.1], "sampling_rate": 16000}},
    "stored under another name": {"scan": {"bytes": b"PNG", "path": "a.png"}},
    "a path under a name that may be text": {"figure": "fig-3.PNG"},
    "in an object": {"extra_info": {"index": 3, "images": ["a.png"]}},
    "an index into a store": {"image_id": 17},
    "a flag": {"has_image": True},
    "literal": {"problem": "<image>Find x"},
    "literal, MMMU": {"problem": "In <image 1>, find x"},
    "literal, of a template": {"problem": "<|vision_start|><|image_pad|><|vision_end|>Find x"},
    "Markdown": {"problem": "![](https://cdn.example/x.jpg) Find x"},
    "parts of a table": {
        "problem": [{"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "Find x"}]}]
    },
    "NeMo-Gym": {
        "problem": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"},
                                                 {"type": "input_text", "text": "Find x"}]}]
    },
    "in a message": {"problem": [{"role": "user", "content": "Find x", "images": ["a.png"]}]},
}  # fmt: skip


class Own(Reader):
    """Reads for a reward of the user's."""

    own = True


@pytest.mark.parametrize("name", MEDIA)
@pytest.mark.parametrize("as_it_is", [False, True])
def test_a_record_with_an_image_is_refused_because_the_model_would_not_see_it(name, as_it_is):
    with pytest.raises(ValueError, match=r"an image|of type '(input_)?image'"):
        pair_of(
            {"problem": "Find x", "answer": "3"} | MEDIA[name],
            PROMPT_FIELDS,
            ANSWER_FIELDS,
            Own() if as_it_is else Reader(),
        )


@pytest.mark.parametrize(
    "record",
    [{"images": []}, {"image": None}, {"image": " "}, {"images": [None]}, {"images": "[]"}, {"audio": float("nan")},
     {"image": {"bytes": None, "path": None}}, {"has_image": False}, {"num_images": 0}, {"image_caption": "a cube"},
     {"figure": "[asy] draw((0,0)--(1,1)); [/asy]"}, {"source": "page-3.png"}, {"media": "newspaper"},
     {"extra_info": {"image": None, "index": 1}}, {"problem": "Is the image of f below 3? |img| < image > 2"},
     {"problem": [{"role": "user", "content": [{"type": "text", "text": "Find "}, {"type": "text", "text": "x"}]}]}],
)  # fmt: skip
def test_a_column_for_media_that_holds_nothing_is_no_reason(record):
    assert pair_of({"problem": "Find x", "answer": "3"} | record, PROMPT_FIELDS, ANSWER_FIELDS).answer == "3"


def test_json_text_in_a_column_is_read_as_the_object_that_it_is():
    asked = json.dumps({"input": ASKED})
    record = {"responses_create_params": asked, "verification_info": '{"ground_truth": "27", "language": null}'}
    pair = pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS)
    assert (pair.prompt, pair.answer) == ("What is 20+7?", "27")
    assert pair.columns == ("responses_create_params", "verification_info")
    own = pair_of({"problem": "p", "meta": '{"a": {"b": "{\\"c\\": 3}"}}'}, PROMPT_FIELDS, ["meta.a.b.c"])
    assert own.answer == "3"
    with pytest.raises(ValueError, match="no answer field"):
        pair_of({"problem": "p", "meta": "{damaged"}, PROMPT_FIELDS, ["meta.a"])


def test_what_nemo_gym_sends_to_the_model_is_the_prompt_whatever_other_columns_say():
    record = LAYOUTS["NeMo-Gym"] | {"question": "another", "problem": "a third"}
    assert pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS).prompt == "What is 20+7?"


OPTIONS = ["3", "4", "5", "7"]
CHOICES = {
    "MMLU": {"choices": OPTIONS, "answer": 1},
    "ARC": {"choices": {"text": OPTIONS, "label": ["A", "B", "C", "D"]}, "answer": "B"},
    "MedMCQA": {"opa": "3", "opb": "4", "opc": "5", "opd": "7", "answer": "1"},
    "AQuA": {"options": ["A)3", "B)4", "C)5", "D)7"], "answer": "B"},
    "CMMLU": {"A": "3", "B": "4", "C": "5", "D": "7", "answer": "B"},
    "JSON text": {"choices": '["3", "4", "5", "7"]', "answer": 1.0},
}


@pytest.mark.parametrize("name", CHOICES)
def test_options_in_columns_are_refused_because_nobody_could_choose(name):
    with pytest.raises(ValueError, match="write them into the prompt"):
        pair_of({"question": "Which is even?"} | CHOICES[name], PROMPT_FIELDS, ANSWER_FIELDS)


@pytest.mark.parametrize("record", [{"options": []}, {"options": None}, {"a": 1, "b": 2}, {"choices": ["3", "4"]}])
def test_a_question_that_has_its_options_or_none_is_read(record):
    pair = pair_of(record | {"problem": "3 or 4?", "answer": "4"}, PROMPT_FIELDS, ANSWER_FIELDS)
    assert (pair.prompt, pair.answer) == ("3 or 4?", "4")


@pytest.mark.parametrize(
    ("record", "answer"),
    [({"choices": ["5", "7"], "answer": "12"}, "12"), ({"choices": ["Rome", "Paris"], "answer": "Paris"}, "Paris"),
     ({"choices": {"text": ["3", "4"], "label": ["A", "B"]}, "answer": "B"}, "B"),
     ({"options": ["A)3", "B)4"], "answer": "B"}, "B"), ({"options": {"level": 3}, "answer": "x+1"}, "x+1")],
)  # fmt: skip
def test_a_record_whose_reference_names_no_option_or_whose_prompt_has_them_is_read(record, answer):
    assert pair_of(record | {"problem": "(A) 3 or (B) 4?"}, PROMPT_FIELDS, ANSWER_FIELDS).answer == answer


def test_a_field_may_be_a_dotted_path_and_a_column_with_that_name_comes_first():
    record = {"a": {"b": "nested", "c": "1"}, "a.b": "flat"}
    pair = pair_of(record, ["a.b"], ["a.c"])
    assert (pair.prompt, pair.answer, pair.columns) == ("flat", "1", ("a.b", "a"))


def test_interval_like_text_stays_text():
    assert pair_of({"problem": "p", "answer": "[5]"}, PROMPT_FIELDS, ANSWER_FIELDS).answer == "[5]"


def test_arrays_and_packed_files_are_read_as_lines_are(tmp_path):
    rows = [{"problem": f"p{n}", "answer": n} for n in range(3)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "lines.jsonl").write_text(lines)
    (tmp_path / "array.json").write_text(json.dumps(rows, indent=1))
    with gzip.open(tmp_path / "packed.jsonl.gz", "wt") as file:
        file.write(lines)
    for name in ("lines.jsonl", "array.json", "packed.jsonl.gz"):
        assert list(read_records(tmp_path / name, pytest.fail)) == list(enumerate(rows, start=1)), name
    damaged: dict[int, str] = {}
    (tmp_path / "lines.jsonl").write_text('["a list"]\n' + lines)
    assert len(list(read_records(tmp_path / "lines.jsonl", damaged.__setitem__))) == 3 and list(damaged) == [1]


ROWS = [{"problem": f"p{n}", "answer": str(n)} for n in range(6)]
TABLES = {
    "arrays of objects": [ROWS[:4], ROWS[4:]],
    "columns and data": {"columns": ["problem", "answer"], "data": [[*row.values()] for row in ROWS]},
    "a list per column": {name: [row[name] for row in ROWS] for name in ROWS[0]},
    "an object per column": {name: {str(n): row[name] for n, row in enumerate(ROWS)} for name in ROWS[0]},
    "below a name": {"version": "1.1", "data": ROWS},
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_table_in_one_json_value_is_read_and_check_says_that_nemo_rl_does_not(name, indent, tmp_path):
    path = tmp_path / "set.json"
    path.write_text(json.dumps(TABLES[name], indent=indent))
    assert list(read_records(path, pytest.fail)) == list(enumerate(ROWS, start=1))
    assert not is_lines_or_objects(path)


def test_conversations_records_by_id_and_a_single_record_are_read(tmp_path):
    path = tmp_path / "set.json"
    talk = [*ASKED, {"role": "assistant", "content": "27"}]
    for content, wanted in (
        ([talk, talk], [{"messages": talk}] * 2),
        ({"a": {"problem": "p"}, "b": {"problem": "q"}}, [{"id": "a", "problem": "p"}, {"id": "b", "problem": "q"}]),
        ({"responses_create_params": {"input": ASKED}, "agent_ref": {"name": "math"}}, None),
        ({"prompt": ASKED, "answer": ["27"]}, None),
    ):
        path.write_text(json.dumps(content, indent=1))
        assert [row for _, row in read_records(path, pytest.fail)] == (wanted or [content])
        assert is_lines_or_objects(path) == (wanted is None)
    for rows in ([["2+3=", "5"], ["3+4=", "7"]], [[2, 5], [3, 7]]):
        path.write_text(json.dumps(rows, indent=1))
        with pytest.raises(UserError, match="below a list of their names"):
            list(read_records(path, pytest.fail))


@pytest.mark.parametrize("between", [",", ";", "\t", "|"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_spreadsheet_may_write_another_sign_between_cells(between, suffix, tmp_path):
    path = tmp_path / f"set{suffix}"
    lines = [
        between.join(("problem", '"answer, or; none"')),
        *(between.join((f'"p{n}, {n}"', str(n))) for n in range(3)),
    ]
    path.write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    wanted = [{"problem": f"p{n}, {n}", "answer, or; none": str(n)} for n in range(3)]
    assert [row for _, row in read_records(path, pytest.fail)] == wanted


def as_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(folder, files):
    """Files of a data set as hubs keep them: Parquet, Arrow, JSON lines with and without a packer, CSV, arrays."""
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pyarrow.Table.from_pylist(rows) if rows else None
        match name.lower().rpartition(".")[2]:
            case "parquet":
                parquet.write_table(table, path)
            case "arrow":  # a stream, as `datasets` writes it
                with pyarrow.ipc.new_stream(str(path), table.schema) as stream:
                    stream.write_table(table)
            case "zst":
                with pyarrow.output_stream(str(path), compression="zstd") as stream:
                    stream.write(as_lines(rows).encode())
            case "csv":
                path.write_text("problem,answer\n" + "".join(f"{row['problem']},{row['answer']}\n" for row in rows))
            case "json":
                path.write_text(json.dumps([["problem", "answer"], *([*row.values()] for row in rows)]))
            case _:
                path.write_text(as_lines(rows))


FOLDERS = {
    "shards of Parquet": {"data/train-00000-of-00002.parquet": ROWS[:3], "data/train-00001-of-00002.parquet": ROWS[3:],
                          "data/test-00000-of-00001.parquet": ROWS[:1]},
    "save_to_disk": {"data-00000-of-00002.arrow": ROWS[:3], "data-00001-of-00002.arrow": ROWS[3:]},
    "DatasetDict": {"train/data-00000-of-00001.arrow": ROWS, "test/data-00000-of-00001.arrow": ROWS[:1]},
    "lines": {"train.jsonl": ROWS, "test.jsonl": ROWS[:1], "README.md": []},
    "zstd": {"train/part-0.jsonl.zst": ROWS[:3], "train/part-1.jsonl.zst": ROWS[3:]},
    "one file with another name": {"MATH.JSONL": ROWS},
    "CSV": {"main/train.csv": ROWS, "main/validation.csv": ROWS[:1]},
    "an array of arrays": {"train.json": ROWS},
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_read_as_it_lies_on_a_hub(name, tmp_path):
    write(tmp_path, FOLDERS[name])
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text("{}")
    assert list(read_records(tmp_path, pytest.fail)) == list(enumerate(ROWS, start=1))
    source = open_source(str(tmp_path))
    assert [number for number, _ in source.records()] == [1, 2, 3, 4, 5, 6]
    before = source.identity
    write(tmp_path, {next(iter(FOLDERS[name])): ROWS[:2]})
    assert open_source(str(tmp_path)).identity != before


def test_a_pattern_names_shards_and_another_split_is_not_taken_for_it(tmp_path):
    write(tmp_path, FOLDERS["shards of Parquet"])
    assert len(list(read_records(tmp_path / "data" / "train-*.parquet", pytest.fail))) == 6
    assert len(list(open_source(str(tmp_path), split="test").records())) == 1
    with pytest.raises(UserError, match="no files of the split 'validation', but of test, train"):
        open_source(str(tmp_path), split="validation")
    with pytest.raises(UserError, match="matches no file"):
        list(read_records(tmp_path / "data" / "nosuch-*.parquet", pytest.fail))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no data file"):
        list(read_records(tmp_path / "empty", pytest.fail))


def test_an_arrow_file_with_an_index_is_read_as_well(tmp_path):
    table = pyarrow.Table.from_pylist(ROWS)
    with pyarrow.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as file:
        file.write_table(table)
    assert [row for _, row in read_records(tmp_path / "x.arrow", pytest.fail)] == ROWS
