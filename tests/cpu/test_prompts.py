"""The prompt contract of a run: what train, eval and data prepare ask is the same, or the difference has a name."""

from __future__ import annotations

import json

import pytest

from nemo_ada.cli.main import app, run_guarded
from nemo_ada.run.folder import RunDir
from nemo_ada.tasks.heldout import HELDOUT
from nemo_ada.tasks.prompting import CONTRACT, ModelTokenizer, read_contract
from nemo_ada.tasks.registry import build_task
from nemo_ada.tasks.tokenizer import CharTokenizer
from tests.lab.data.fake_server import completion, serving
from tests.lazy import Lazy

pytestmark = pytest.mark.long

training = Lazy("nemo_ada.cpu.trainer")
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is defined and not enable_thinking %}="
    "{% else %}+{% endif %}"
)
QUIET = {"enable_thinking": False}
STOP = 7  # a second id that ends a response


@pytest.fixture(scope="module")
def model(make, stack, task, tmp_path_factory):
    """The base model of the bandit, with a chat template and a second stop token."""
    from nemo_ada.cpu.base import prepare_base
    from nemo_ada.run.files import duplicate

    base = prepare_base(make("contract-base"), task, stack)
    folder = tmp_path_factory.mktemp("model") / "m"
    duplicate(base, folder)
    (folder / "MANIFEST.json").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [CharTokenizer.eos_id, STOP]}))
    (folder / CONTRACT).unlink(missing_ok=True)
    return folder


@pytest.fixture(scope="module")
def run(make, stack, model):
    """A run of two steps from that model with thinking off, and its checkpoint."""
    config = make(
        "contract", f"policy.model_name={model}", "+policy.tokenizer.chat_template_kwargs={enable_thinking: false}",
        "grpo.max_num_steps=2", "grpo.val_at_start=false", "checkpointing.save_period=2",
    )  # fmt: skip
    tokenizer = ModelTokenizer(model, config.policy.tokenizer)
    task = build_task(config.task, None, tokenizer)
    assert training.Trainer(config, stack, task).run().step == 2
    return config.folder, RunDir(config.folder).list_checkpoints()[-1] / "hf"


def test_a_run_and_its_export_hold_the_contract(run, model):
    folder, exported = run
    for place in (folder, exported):
        contract = read_contract(place)
        assert contract["chat_template_kwargs"] == QUIET and contract["chat_template"] == TEMPLATE
        assert contract["stop_ids"] == [CharTokenizer.eos_id, STOP]
    assert json.loads((exported / "config.json").read_text())["eos_token_id"] == [CharTokenizer.eos_id, STOP]
    assert json.loads((exported / "generation_config.json").read_text())["eos_token_id"] == [CharTokenizer.eos_id, STOP]


def test_eval_and_data_prepare_name_the_difference(run, bandit, tmp_path, capfd, monkeypatch):
    """One of the four commands starts an engine; the others ask a server, which costs no start."""
    folder, exported = run
    monkeypatch.setenv("no_proxy", "*")
    data = f"{bandit.root}/bandit.jsonl"

    def said(*words) -> str:
        assert run_guarded(lambda: app([*map(str, words)], standalone_mode=False)) == 0
        return capfd.readouterr().err

    asked = ("--max-new-tokens", 6, "--max-prompt-tokens", 12, "-k", 1, "--verifier", "exact")
    ask = ("eval", exported, "--data", data, *asked, "--max-prompts", 3)
    named = 'chat_template_kwargs was {"enable_thinking": false} and is {}'
    quiet = ("--chat-template-kwargs", json.dumps(QUIET))
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps({"problem": f"{n:03d}a", "answer": "0"}) + "\n" for n in range(4)))
    prepare = ("data", "prepare", few, "--model", exported, *asked)
    assert "other prompts" not in said(*ask, *quiet, "--out", tmp_path / "b")
    with serving(exported, lambda _asked: completion("0")) as server:
        ask, prepare = (*ask, "--server", server.url), (*prepare, "--server", server.url)
        assert named in said(*ask, "--out", tmp_path / "a")
        own = ("eval", exported, "--data", folder / HELDOUT, "-k", 1, "--max-prompts", 3, "--server", server.url)
        assert "other prompts" not in said(*own, "--out", tmp_path / "own")
        assert named in said(*prepare, "--out", tmp_path / "c")
        assert "other prompts" not in said(*prepare, *quiet, "--out", tmp_path / "d")
    assert json.loads((tmp_path / "d" / "card.json").read_text())["prompts"]["chat_template_kwargs"] == QUIET


def test_training_names_the_prompts_of_pass_rates_that_it_does_not_ask(make, model, tmp_path):
    rows = [{"problem": f"{n:03d}a", "answer": "0"} for n in range(40)]
    (tmp_path / "dataset.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "card.json").write_text(json.dumps({"prompts": {"chat_template_kwargs": QUIET, "system": None}}))
    config = make("card", f"policy.model_name={model}", f"task.path={tmp_path / 'dataset.jsonl'}")
    task = build_task(config.task, None, ModelTokenizer(model, config.policy.tokenizer))
    ((key, text),) = training.list_warnings(config, task)
    assert key == "task.path" and "dataset.jsonl was made with other prompts" in text and "chat_template_kwargs" in text
