"""One judge: training, evaluation, data preparation, TRL, NeMo-RL and `check` read the same references."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.lab.data.prepare import Preparation, prepare
from nemo_ada.lab.evaluation.benchmark import Benchmark
from nemo_ada.rules.references import check_references
from nemo_ada.tasks.protocol import score_many
from nemo_ada.tasks.registry import build_task
from nemo_ada.tasks.settings import JsonlSettings
from nemo_ada.trl import Rewards
from nemo_ada.verify.judge import KINDS, Judge, make_judge
from nemo_ada.verify.reference import Reading, read_reference
from nemo_ada.verify.verdict import INVALID
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
FORMS: dict[str, tuple[Any, str | None]] = {  # what the data have -> the right answer; None: no answer
    "text": ("24", "24"),
    "gsm8k": ("6*4=<<6*4=24>>24\n#### 24", "24"),
    "list as JSON": ('["2"]', "2"),
    "list as Python": ("['2']", "2"),
    "list": (["2"], "2"),
    "tags": ("<answer> 7 </answer>", "7"),
    "solution": (r"Add them. Thus \boxed{\frac{1}{2}}.", "0.5"),
    "whole number": (7, "7"),
    "float of a column with a null": (27.0, "27"),
    "dollars": ("$5$", "5"),
    "an empty box": (r"so \boxed{}", None),
    "a box that is not closed": (r"so \boxed{3", None),
    "null": (None, None),
    "None": ("None", None),
    "proof": ("proof", None),
    "notfound": ("notfound", None),
    "N/A": (r"\text{N/A}", None),
    "list of two": (["1", "2"], None),
    "truth": (True, None),
    "blank": (" ", None),
    "object": ({"a": "1"}, None),
}
ROWS = [{"problem": f"problem {n}?", "answer": raw} for n, (raw, _) in enumerate(FORMS.values())]
WANTED = [[None, None] if right is None else [1.0, 0.0] for _, right in FORMS.values()]
"""Per form: what a right answer gets and what a wrong one does. None where nothing is paid."""
READABLE = [right is not None for _, right in FORMS.values()]
RESPONSES = [(rf"So it is \boxed{{{right}}}.", r"So it is \boxed{1000003}.") for _, right in FORMS.values()]
UNREADABLE = [str(raw) for raw, right in FORMS.values() if right is None]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("forms") / "all.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_what_is_read_is_read_the_same_again(form):
    raw, right = FORMS[form]
    if right is None:
        with pytest.raises(ValueError, match=r"^(is|holds|ends) "):
            read_reference(raw)
        return
    text = read_reference(raw).text
    assert read_reference(text).text == text


def test_training_on_the_cpu(file):
    task = build_task(JsonlSettings(path=str(file), verifier="math", heldout_fraction=0.1, supervision_fraction=0.0))
    try:
        assert sorted(task.malformed) == [n for n, readable in enumerate(READABLE, start=1) if not readable]
        prompts = sorted((*task.splits().train, *task.splits().heldout), key=lambda prompt: prompt.entry["line"])
        places = [prompt.entry["line"] - 1 for prompt in prompts]
        asked = [(one, text, True) for one, n in zip(prompts, places, strict=True) for text in RESPONSES[n]]
        labels = iter([verdict.label for verdict in score_many(task, asked)])
        assert [[next(labels), next(labels)] for _ in places] == [WANTED[n] for n in places]
    finally:
        task.close()


def test_data_preparation_and_evaluation(file, tmp_path):
    benchmark = Benchmark(name="forms", source=str(file))
    card = prepare(Preparation(benchmark), tmp_path / "set")
    made = [json.loads(line) for line in (tmp_path / "set" / "dataset.jsonl").read_text().splitlines()]
    assert [row["line"] - 1 for row in made] == [n for n, readable in enumerate(READABLE) if readable]
    assert card["problems"] == sum(READABLE)
    judge = benchmark.judge()
    try:
        raw = [[one.label for one in judge.verdicts([(text, row["answer"], True, row["problem"]) for text in texts])]
               for texts, row in zip(RESPONSES, ROWS, strict=True)]  # fmt: skip
        again = [[one.label for one in judge.verdicts([(text, row["answer"]) for text in RESPONSES[row["line"] - 1]])]
                 for row in made]  # fmt: skip
    finally:
        judge.close()
    assert raw == WANTED, "also an unreadable reference that reaches a judge is never paid"
    assert again == [WANTED[row["line"] - 1] for row in made]


def test_trl():
    rewards = Rewards("math")
    (reward,) = rewards.functions
    try:
        for number, (row, readable) in enumerate(zip(ROWS, READABLE, strict=True)):
            if readable:
                reward.check([row])
                continue
            with pytest.raises(UserError, match="train_dataset: the `answer` of row 0"):
                reward.check([row])
            with pytest.raises(UserError, match=f"row {sum(READABLE[:number])} "):
                reward.check([one for one, fine in zip(ROWS[: number + 1], READABLE, strict=False) if fine] + [row])
        found = [rewards({"completions": list(texts), "answer": [row["answer"]] * 2})
                 for texts, row in zip(RESPONSES, ROWS, strict=True)]  # fmt: skip
    finally:
        reward._judge.close()
    assert found == WANTED


def nemo_rl_config(path: Path, split: str = "train") -> Values:
    data = {"default": {"env_name": "ada_math"}, split: {"data_path": str(path), "output_key": "answer"}}
    return Values({"data": data, "env": {"ada_math": {"workers": 1}}})


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("form", FORMS)
def test_check_and_every_start_of_nemo_rl_refuse_what_the_judge_cannot_read(tmp_path, form, split):
    raw, right = FORMS[form]
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps({"problem": "p", "answer": raw}) + "\n")
    found = list(check_references(nemo_rl_config(path, split)))
    if right is not None:
        assert found == []
        return
    assert [(one.level, one.key) for one in found] == [("error", f"data.{split}.data_path")]
    assert re.search(r"line 2: its reference (is|holds|ends) ", found[0].message)
    path.write_text(json.dumps({"problem": "p", "answer": raw}) + "\n")
    with pytest.raises(UserError, match="has no line that can be used"):
        build_task(JsonlSettings(path=str(path)))


NEMO_RL = """
import json, sys
from nemo_rl.data.datasets.response_datasets.response_dataset import ResponseDataset
from nemo_ada.nemo.environment import MathJudge
judge, found = MathJudge({"workers": 2, "deadline_s": 900.0}), []
for number, (row, texts) in enumerate(json.load(open(sys.argv[1]))):
    path = f"{sys.argv[1]}.{number}.jsonl"
    open(path, "w").write(json.dumps(row) + "\\n")
    _, known = ResponseDataset(path, "problem", "answer").dataset[0]["messages"]
    logs = [[{"role": "user", "content": "p"}, {"role": "assistant", "content": text}] for text in texts]
    found.append(judge.step(logs, [{"ground_truth": known["content"]}] * 2).rewards.tolist())
judge.shutdown()
print([[None if one != one else one for one in rewards] for rewards in found])
"""


@pytest.mark.long
@pytest.mark.nemo_rl
def test_nemo_rl_with_its_own_data_set(tmp_path):
    home, python = os.environ.get("NEMO_RL_HOME"), ROOT / ".cache" / "rehearsal" / "policy" / "bin" / "python"
    if home is None or not python.is_file():
        pytest.skip("NEMO_RL_HOME or .cache/rehearsal is missing")
    (tmp_path / "forms").write_text(json.dumps(list(zip(ROWS, RESPONSES, strict=True))))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), home)), "HF_HOME": str(tmp_path / "hf")}
    command = [str(python), "-c", NEMO_RL, str(tmp_path / "forms")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == WANTED


class Letter(Judge):
    """Multiple choice: the first letter of the response. All that a further kind of verifier needs."""

    def read(self, raw: Any) -> Reading:
        reading = super().read(raw)
        if not re.fullmatch("[A-J]", reading.text):
            raise ValueError(f"is {reading.text!r}, not a letter from A to J")
        return reading

    def compare(self, text: str, wanted: str, prompt: str) -> float:
        return float(text.strip()[:1] == wanted)


def test_a_further_kind_of_verifier_is_one_class_and_reaches_every_back_end(tmp_path):
    kind = type("Letter", (Letter,), {"kind": "letter"})
    path = tmp_path / "choice.jsonl"
    rows = [{"problem": f"{n}: A, B or C?", "answer": "ABC"[n % 3]} for n in range(9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        assert isinstance(make_judge("letter"), kind)
        task = build_task(JsonlSettings(path=str(path), verifier="letter"))
        prompt = task.splits().train[0]
        right = [(prompt, prompt.answer + ": so", True), (prompt, "D", True), (prompt, prompt.answer, False)]
        assert [one.label for one in score_many(task, right)] == [1.0, 0.0, 0.0]
        benchmark = Benchmark(name="choice", source=str(path), verifier="letter")
        assert [one.label for one in benchmark.judge().verdicts([("B", "B"), ("A", "B")])] == [1.0, 0.0]
        assert prepare(Preparation(benchmark), tmp_path / "set")["problems"] == 9
        assert Rewards("letter")({"completions": ["A", "B"], "answer": ["A", "A"]}) == [1.0, 0.0]
        values = nemo_rl_config(path)
        values.config["env"]["ada_math"]["verifier"] = "letter"
        assert list(check_references(values)) == []
        path.write_text(json.dumps({"problem": "p", "answer": "Z"}) + "\n")
        assert "not a letter from A to J" in next(iter(check_references(values))).message
    finally:
        del KINDS["letter"]
    with pytest.raises(UserError, match="verifier='letter' must be math or exact"):
        make_judge("letter")


def test_only_the_judge_makes_a_verifier():
    makers = [str(path.relative_to(ROOT)) for path in (ROOT / "nemo_ada").rglob("*.py")
              if re.search(r"(?<!class )\bMathVerifier\(", path.read_text())]  # fmt: skip
    assert makers == ["nemo_ada/verify/judge.py"]


def test_an_unreadable_reference_is_said_and_gives_no_label_also_to_a_response_that_was_cut_off(caplog):
    judge = make_judge("exact")
    verdicts = judge.verdicts([("proof", "proof", True), ("proof", "proof", False), ("x", "proof", True)])
    assert [one.cause for one in verdicts] == [INVALID] * 3
    assert caplog.text.count("'proof', which is no answer") == 1
