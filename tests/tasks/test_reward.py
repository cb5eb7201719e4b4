"""An own reward: a function that the YAML names, without an edit of the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_ada.config.load import load_words
from nemo_ada.config.parsing import parse
from nemo_ada.errors import UserError
from nemo_ada.tasks.protocol import score_many
from nemo_ada.tasks.registry import build_task
from nemo_ada.tasks.settings import JsonlSettings
from nemo_ada.verify.verdict import CRASH, TIMEOUT, Verdict
from tests.patience import PATIENCE
from tests.people import OTHER, needs_two_users

ROOT = Path(__file__).resolve().parents[2]
MODULE = """
LIMIT = 3

def shorter(text, answer):
    return len(text) < len(answer)

def part(text, answer):
    return 0.5

def late(text, answer):
    if text in ("", "abcd", "abcd1") or "boxed" in text:  # the trial's
        return 1
    if text == "x":
        import sys
        sys.exit(3)
    return None if text == "none" else float(text) if text[-1].isdigit() else 1

def broken(text, answer):
    raise KeyError(text)

def leaves(text, answer):
    raise SystemExit(3)

def nothing(text, answer):
    pass

def mapping(text, answer):
    return {"value": 1}

def array(text, answer):
    import numpy
    return numpy.ones(2)

def text(text, answer):
    return "1"

def far(text, answer):
    return 2

async def later(text, answer):
    return 1.0 if text == answer else 0

def deep(text, answer):
    import json
    return json.loads("{" + text)
"""


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with rewards on the import path; a new one for every test, because Python keeps modules."""
    name = f"own_rewards_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_torn.py").write_text("import json\nraise ValueError('torn')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def settings(folder: Path, reward: str) -> JsonlSettings:
    file = folder / "data.jsonl"
    file.write_text("".join(json.dumps({"problem": f"{i}+1=", "answer": "abcd"}) + "\n" for i in range(40)))
    return JsonlSettings(path=str(file), reward=reward)


def test_the_function_decides_and_a_cut_off_response_is_wrong(tmp_path: Path, rewards: str) -> None:
    task = build_task(settings(tmp_path, f"{rewards}:shorter"))
    prompt = task.splits().train[0]
    verdicts = score_many(task, [(prompt, "abc", True), (prompt, "abcd", True), (prompt, "abc", False)])
    assert verdicts == [Verdict(1.0), Verdict(0.0), Verdict(0.0)]


def test_a_part_of_a_point_is_one_and_an_error_names_its_line(tmp_path: Path, rewards: str) -> None:
    task = build_task(settings(tmp_path, f"{rewards}:part"))
    assert score_many(task, [(task.splits().train[0], "x", True)]) == [Verdict(0.5)]
    task = build_task(settings(tmp_path, f"{rewards}:late"))
    (verdict,) = score_many(task, [(task.splits().train[0], "x", True)])
    assert verdict.label is None and verdict.cause is not None
    assert verdict.cause.startswith("reward_error ") and f"{rewards}.py:15 SystemExit" in verdict.cause
    (verdict,) = score_many(task, [(task.splits().train[0], "none", True)])
    assert verdict.label is None and f"{rewards}.py:10 returned None" in str(verdict.cause)
    found = score_many(task, [(task.splits().train[0], far, True) for far in ("1.5", "-2")])
    assert len({verdict.cause for verdict in found}) == 1 and "a number outside" in str(found[0].cause)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("broken", r"py:19 KeyError: 'abcd'"),
        ("leaves", r"py:22 SystemExit: 3"),
        ("nothing", r"py:24 returned None"),
        ("mapping", "returned a dict"),
        ("array", "returned a ndarray"),
        ("text", "returned a str"),
        ("deep", r"py:45 JSONDecodeError"),  # not the line of the library
        ("far", r"returned a number outside \[0, 1\]: 2"),
    ],
)
def test_the_reward_is_tried_on_a_reference_before_anything_starts(
    tmp_path: Path, rewards: str, function: str, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        build_task(settings(tmp_path, f"{rewards}:{function}"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "no_such_module_of_mine:f",
            "there is no module no_such_module_of_mine, neither installed nor in .*beside the YAML",
        ),
        ("{}:f", r"has no such name; it has shorter, part, late, broken"),
        ("{}:LIMIT", "has a int of that name"),
        ("{}_torn:f", r"ValueError: torn \(.*_torn.py:2\)"),
        ("pydoc:pipepager", "Python's own.*my_rewards"),
        ("os.path:exists", "Python's own"),
        ("{}.shorter", "must be package.module:name or path/to/file.py:name"),
        ("none/mine.py:f", "there is no file .*none/mine.py"),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(tmp_path: Path, rewards: str, name: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        build_task(settings(tmp_path, name.format(rewards)))
    assert "\n" not in str(caught.value)


def test_a_reward_and_math_verify_are_not_both_asked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave one of them out"):
        parse(JsonlSettings, {"name": "jsonl", "path": "x", "verifier": "math", "reward": "a:b"})


def test_the_command_line_names_a_missing_reward(tmp_path: Path) -> None:
    data = settings(tmp_path, "x:y").path
    config = tmp_path / "own.yaml"
    task = {"name": "jsonl", "path": data, "reward": "no_such_module_of_mine:f"}
    content = yaml.safe_load((ROOT / "configs" / "cpu" / "mini_sudoku.yaml").read_text())
    parents = content.get("defaults", [])
    parents = [parents] if isinstance(parents, str) else parents
    content |= {"task": task, "defaults": [str(ROOT / "configs" / "cpu" / parent) for parent in parents]}
    config.write_text(yaml.safe_dump(content))
    command = [
        sys.executable,
        "-c",
        "from nemo_ada.cli.main import main; main()",
        "train",
        str(config),
        f"run_dir={tmp_path / 'run'}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "task.reward='no_such_module_of_mine:f'" in done.stderr and "Traceback" not in done.stderr


def yaml_with(folder: Path, task: str) -> Path:
    file = folder / "own.yaml"
    file.write_text(f"model: m\nother: pydoc:pipepager\nwhole: {{reward: pydoc:pipepager}}\ntask: {task}\n")
    return file


def code_in(folder: Path, name: str = "mine") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text("def score(text, answer):\n    return 1.0\n")
    return file


@pytest.mark.parametrize("place", ["beside", "above", "working folder", "path", "package"])
def test_a_yaml_names_code_and_one_line_says_which_file_it_is(tmp_path: Path, monkeypatch, capsys, place: str) -> None:
    """Beside the YAML, beside one that its `defaults` name, in the working folder, by a path, or in a package."""
    file = yaml_with(tmp_path, "{reward: 'mine:score'}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    if place == "above":
        (tmp_path / "parent").mkdir()
        file = file.rename(tmp_path / "parent" / "parent.yaml")
        code = code_in(file.parent)
        file = tmp_path / "own.yaml"
        file.write_text("defaults: parent/parent.yaml\n")
    elif place == "path":
        code = code_in(tmp_path / "rewards", "my-own")
        yaml_with(tmp_path, "{reward: 'rewards/my-own.py:score'}")
    elif place == "package":
        code = code_in(tmp_path / "pack", "inside")
        (tmp_path / "pack" / "__init__.py").touch()
        yaml_with(tmp_path, "{reward: 'pack.inside:score'}")
    else:
        code = code_in(tmp_path if place == "beside" else Path.cwd())
    assert load_words(file).task.reward == f"{code}:score"
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and f"{file} names code: task.reward=" in said and said.endswith(f"{code}\n")


def test_a_word_of_the_command_line_means_the_working_folder_first(tmp_path: Path, monkeypatch) -> None:
    beside, here = code_in(tmp_path / "configs"), code_in(tmp_path / "here")
    file = yaml_with(tmp_path / "configs", "{reward: 'mine:score'}")
    monkeypatch.chdir(here.parent)
    assert load_words(file).task.reward == f"{beside}:score"
    assert load_words(file, ["task.reward=mine:score"]).task.reward == f"{here}:score"
    assert load_words(file, ["task.reward=mine.py:score"]).task.reward == f"{here}:score"


@pytest.mark.parametrize("task", ["{reward: 'pydoc:pipepager'}", "{reward: '${other}'}", "${whole}"])
def test_a_yaml_may_name_no_function_of_python_itself(tmp_path: Path, task: str) -> None:
    with pytest.raises(UserError, match=r"task\.reward='pydoc:pipepager': pydoc is Python's own"):
        load_words(yaml_with(tmp_path, task))


def test_a_folder_without_init_is_no_package(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code_in(tmp_path / "spaces", "inside")
    file = yaml_with(tmp_path, "{reward: 'spaces.inside:score'}")
    with pytest.raises(UserError, match=r"spaces has no __init__\.py"):
        load_words(file)


@pytest.mark.parametrize(
    "content",
    [
        {"reinforce_ada": {"sampling": {"exit": {"kind": "own", "name": "mine:score"}}}},
        {"reinforce_ada": {"advantage": {"objective": {"kind": "own", "name": "mine:score"}}}},
        {"task": {"name": "own", "task": "mine:score"}},
        {"env": {"ada_math": {"reward": "mine:score"}}},
        {"env": {"a.b": {"class": "mine.score", "reward": None}}},
        {"env": {"a.b": {"class": "nemo_ada.nemo.environment.AdaMathEnvironment", "reward": "mine:score"}}},
    ],
)
def test_other_code_that_a_yaml_names_is_held_to_the_same(tmp_path: Path, content: dict[str, Any]) -> None:
    file, code = tmp_path / "own.yaml", code_in(tmp_path)
    file.write_text(yaml.safe_dump(content))
    assert f"{code}:score" in str(load_words(file))


@needs_two_users
@pytest.mark.parametrize("whose", ["file", "folder", "open folder"])
def test_a_module_name_leads_to_no_code_of_another_user(tmp_path: Path, whose: str) -> None:
    code, file = code_in(tmp_path / "shared"), yaml_with(tmp_path / "shared", "{reward: 'mine:score'}")
    if whose == "open folder":
        code.parent.chmod(0o777)
    else:
        os.chown(code if whose == "file" else code.parent, OTHER, OTHER)
    with pytest.raises(UserError, match=rf"is not used: .*name it by its path, {code}:score"):
        load_words(file)
    assert load_words(file, [f"task.reward={code}:score"]).task.reward == f"{code}:score"


RAW = [
    ["assert f(1) == 2"],
    {"inputs": [1, 2], "outputs": ["3"]},
    "  leading\n",
    "a #### b",
    r"\\boxed{3} is it",
    3.5,
    [1, 2],
]


@pytest.mark.parametrize("reference", RAW, ids=str)
def test_a_reward_gets_the_reference_as_the_data_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference
) -> None:
    name = f"raw_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(
        f"WANTED = {reference!r}\ndef same(text, own):\n    return float(own == WANTED)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "raw.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"p{n}", "answer": reference}) + "\n" for n in range(8)))
    task = build_task(JsonlSettings(path=str(file), reward=f"{name}:same"))
    assert score_many(task, [(task.splits().train[0], "x", True)]) == [Verdict(1.0)]
    task.close()


def test_a_reward_that_hangs_or_ends_its_process_costs_one_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"hard_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(
        "import os, time\ndef f(text, own):\n"
        "    if text == 'exit':\n        os._exit(0)\n"
        "    while text == 'hang':\n        time.sleep(1)\n    return 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    task = build_task(settings(tmp_path, f"{name}:f"))
    prompt = task.splits().train[0]
    verdicts = score_many(task, [(prompt, text, True) for text in ("fine", "exit", "hang", "fine")])
    assert [verdict.cause for verdict in verdicts] == [None, CRASH, TIMEOUT, None]
    assert task.submit(prompt, "fine", True).result(60) == Verdict(1.0)
    assert task.submit(prompt, "fine", False) == Verdict(0.0)
    task.close()
