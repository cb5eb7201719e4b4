"""A resumed run goes on with the contents that it has read so far, and a change is named: on both back ends."""

from __future__ import annotations

import json
import os
import sys

import pytest

from nemo_ada.errors import UserError
from nemo_ada.run.folder import RunDir
from nemo_ada.run.inputs import FILE

FILES = {
    "data.jsonl": '{"problem": "2+3=", "answer": "5"}\n',
    "shards/train-0.jsonl": '{"problem": "2+3=", "answer": "5"}\n',
    "shards/test-0.jsonl": '{"problem": "2+2=", "answer": "4"}\n',
    "prompt.txt": "Solve: {}",
    "system.txt": "Think.",
    "model/tokenizer.json": "{}",
    "model/tokenizer_config.json": '{"chat_template": "a"}',
    "model/chat_template.jinja": "{{ messages }}",
    "model/generation_config.json": '{"eos_token_id": 1}',
    "model/config.json": "{}",
    "my_own_reward.py": "def right(text, answer):\n    return 1.0\n",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_own_reward", raising=False)
    return tmp_path


def cpu(place):
    return {
        "task": {"path": str(place / "data.jsonl"), "reward": "my_own_reward:right"},
        "policy": {"model_name": str(place / "model"), "tokenizer": {"name": None}},
    }


def nemo_rl(place):
    prompts = {"prompt_file": str(place / "prompt.txt"), "system_prompt_file": str(place / "system.txt")}
    return {
        "data": {"train": {"data_path": str(place / "shards")}, "default": prompts},
        "env": {"math": {"reward": "my_own_reward:right"}},
        "policy": {"model_name": "Qwen/Qwen2.5-1.5B", "tokenizer": {"name": str(place / "model")}},
    }


CHANGES = [
    (cpu, "data.jsonl", r"data \(task.path\)"),
    (cpu, "my_own_reward.py", r"code of my_own_reward:right \(task.reward\)"),
    (cpu, "model/tokenizer.json", r"tokenizer \(policy.model_name\)"),
    (cpu, "model/chat_template.jinja", r"chat template \(policy.model_name\)"),
    (cpu, "model/generation_config.json", r"generation_config \(policy.model_name\)"),
    (nemo_rl, "shards/train-0.jsonl", r"data \(data.train.data_path\)"),
    (nemo_rl, "prompt.txt", r"prompt_file \(data.default.prompt_file\)"),
    (nemo_rl, "system.txt", r"system_prompt_file \(data.default.system_prompt_file\)"),
    (nemo_rl, "model/tokenizer_config.json", r"tokenizer \(policy.tokenizer.name\)"),
    (nemo_rl, "my_own_reward.py", r"code of my_own_reward:right \(env.math.reward\)"),
]


def opened(place, config):
    run_dir = RunDir(place / "run")
    run_dir.open(config, resume=True)
    run_dir.close()


@pytest.mark.parametrize(("backend", "name", "said"), CHANGES)
def test_another_content_is_named_and_refused_unless_it_is_asked_for(backend, name, said, place):
    opened(place, backend(place))
    (place / name).write_text(FILES[name] + " ")
    with pytest.raises(UserError, match=rf"has read other contents so far: {said} changed; .*changed_inputs=true"):
        RunDir(place / "run").check(backend(place), resume=True)
    before = json.loads((place / "run" / FILE).read_text())
    opened(place, backend(place) | {"changed_inputs": True})
    assert json.loads((place / "run" / FILE).read_text()) != before
    opened(place, backend(place))


@pytest.mark.parametrize("backend", [cpu, nemo_rl])
def test_the_same_contents_under_another_date_and_another_split_are_the_same(backend, place):
    opened(place, backend(place))
    for name in FILES:
        os.utime(place / name, (1, 1))
    (place / "shards" / "test-0.jsonl").write_text("{}\n")
    opened(place, backend(place))


def test_an_input_that_is_gone_or_new_is_a_change(place):
    (place / "model" / "generation_config.json").unlink()
    opened(place, cpu(place))
    (place / "model" / "generation_config.json").write_text("{}")
    with pytest.raises(UserError, match="generation_config"):
        RunDir(place / "run").check(cpu(place), resume=True)
    (place / "model" / "generation_config.json").unlink()
    (place / "data.jsonl").unlink()
    with pytest.raises(UserError, match="data"):
        RunDir(place / "run").check(cpu(place), resume=True)


def in_the_cache(place, kind, name, version, **files):
    """Put a repository's version into the cache of the hub."""
    folder = place / f"hub/hub/{kind}s--{name.replace('/', '--')}"
    for file, text in files.items():
        path = folder / "snapshots" / version / file.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(version)


def test_what_the_hub_gives_under_the_same_name_is_compared_once_it_is_in_the_cache(place, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(place / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    config = {
        "data": {"train": {"data_path": "owner/set"}},
        "policy": {"model_name": "owner/model", "tokenizer": {"name": "owner/model"}},
    }
    opened(place, config)
    in_the_cache(place, "model", "owner/model", "a", tokenizer__json="{}", README__md="one")
    in_the_cache(place, "dataset", "owner/set", "a", train__jsonl='{"problem": "1", "answer": "1"}')
    opened(place, config)  # the first attempt has filled the cache
    in_the_cache(place, "model", "owner/model", "b", tokenizer__json="{}", README__md="two")
    opened(place, config)  # a version that changes nothing of it
    in_the_cache(place, "model", "owner/model", "c", tokenizer__json='{"a": 1}')
    in_the_cache(place, "dataset", "owner/set", "c", train__jsonl='{"problem": "2", "answer": "2"}')
    said = r"the hub's data \(data.train.data_path\); the hub's tokenizer \(policy.model_name\) changed"
    with pytest.raises(UserError, match=said):
        RunDir(place / "run").check(config, resume=True)


def test_a_checkpoint_has_what_its_attempt_has_read_and_not_what_was_edited_since(place):
    opened(place, nemo_rl(place))
    (place / "shards" / "train-0.jsonl").write_text("{}")
    step = place / "elsewhere" / "step_3"
    step.mkdir(parents=True)
    RunDir(place / "run").copy_inputs(step)
    assert (step / FILE).read_text() == (place / "run" / FILE).read_text()
    with pytest.raises(UserError, match=r"step_3 has read other contents so far: data \(data.train.data_path\)"):
        RunDir(place / "new").check_inputs(nemo_rl(place), step)
    RunDir(place / "new").check_inputs(nemo_rl(place) | {"changed_inputs": True}, step)


def test_code_of_a_library_and_names_of_the_hub_are_no_inputs(place):
    config = {"task": {"path": "owner/name", "reward": "json:loads"}, "policy": {"model_name": "owner/model"}}
    opened(place, config)
    assert json.loads((place / "run" / FILE).read_text()) == {}
