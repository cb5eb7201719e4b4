"""A Hugging Face folder as a run's base: Llama, Qwen2 and Qwen3 with their own tokenizer and chat template.

1. The learner's log-probabilities are transformers' in every layout, padded and packed, and so are its updates.
2. A run trains such a model, and its exports load in transformers and vLLM. test_trainer.py resumes to the bit.
3. A folder that cannot be used is refused in one line, before any process starts.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_ada.cpu.learner.batch import TrainBatch
from nemo_ada.cpu.learner.settings import LearnerConfig
from nemo_ada.cpu.learner.shape import PolicyShape
from nemo_ada.cpu.rollout import load_tokenizer
from nemo_ada.cpu.settings import LossSettings, OptimizerSettings
from nemo_ada.cpu.supervision import make_demonstration_batches
from nemo_ada.errors import UserError
from nemo_ada.run.folder import read_lines
from nemo_ada.run.job_control import EXIT_DONE
from nemo_ada.tasks.prompting import ModelTokenizer, PromptFormat
from tests.cpu.folders import VOCABULARY, write_model, write_tokenizer
from tests.lazy import Lazy

pytestmark = pytest.mark.long

torch, ray, transformers = Lazy("torch"), Lazy("ray"), Lazy("transformers")
safetensors = Lazy("safetensors.numpy")
embedded, training = Lazy("nemo_ada.cpu.stack"), Lazy("nemo_ada.cpu.trainer")

MODELS = [("llama", True), ("qwen2", False), ("qwen3", True), ("llama", False)]
SPLITS = {"packed": {}, "tp2": {"tensor_parallel": 2}, "pp2": {"pipeline_parallel": 2}, "dp2": {"data_parallel": 2}}
LAYOUTS = {"padded": {}} | {name: {"packed_tokens": 40} | split for name, split in SPLITS.items()}
WIDTH = 20


def batch() -> TrainBatch:
    """Four groups of three responses. Two groups' prompts begin alike, and two responses are equal."""
    g = np.random.default_rng(3)
    prompts = [g.integers(0, VOCABULARY, n).tolist() for n in (4, 6, 9)]
    prompts.append(prompts[2][:5] + prompts[0])
    rows = [(p, g.integers(0, VOCABULARY, g.integers(1, 9)).tolist()) for p in prompts for _ in range(3)]
    rows[4] = rows[3]
    tokens = np.zeros((len(rows), WIDTH), np.int64)
    for row, (prompt, response) in zip(tokens, rows, strict=True):
        row[: len(prompt) + len(response)] = prompt + response
    return TrainBatch(
        tokens_RT=tokens,
        length_R=np.array([len(p) + len(r) for p, r in rows]),
        prompt_length_R=np.array([len(p) for p, _ in rows]),
        advantage_R=g.normal(size=len(rows)).astype(np.float32),
        weight_R=np.where(np.arange(len(rows)) == 7, 0, 1).astype(np.float32),
        old_logprob_RT=(-6 + g.normal(size=tokens.shape)).astype(np.float32),
        denominator=50.0,
    )


def reference(folder: Path, rows: TrainBatch) -> np.ndarray:
    """transformers' log-probabilities of the response tokens, one row at a time."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    wanted = np.zeros(rows.tokens_RT.shape, np.float32)
    for r, (length, prompt) in enumerate(zip(rows.length_R, rows.prompt_length_R, strict=True)):
        ids = torch.from_numpy(rows.tokens_RT[r : r + 1, :length])
        with torch.no_grad():
            logprob = model(ids).logits[0].log_softmax(-1)
        at = np.arange(prompt, length)
        wanted[r, at] = logprob[at - 1, ids[0, at]].numpy()
    return wanted


@pytest.mark.parametrize(("kind", "tied"), MODELS)
def test_the_learner_is_transformers_in_every_layout(stack, tmp_path, kind, tied):
    folder, rows = write_model(tmp_path / "model", kind, tied=tied), batch()
    wanted = reference(folder, rows)
    shape = PolicyShape.read(folder)
    optimizer, loss = OptimizerSettings(lr=1e-3, adam_eps=1e-3), LossSettings(entropy_coefficient=0.01)
    base = LearnerConfig(shape=shape, micro_batch_size=5, optimizer=optimizer, loss=loss)
    updates, weights = {}, {}
    for name, layout in LAYOUTS.items():
        learner = stack.learner(dataclasses.replace(base, **layout), folder)
        found = learner.logprobs(rows.tokens_RT, rows.length_R, rows.prompt_length_R)
        assert np.abs(found - wanted).max() < 1e-5, name
        features = learner.features(rows.tokens_RT, rows.prompt_length_R)
        updates[name] = [*learner.train(rows).values(), *features[::3, :2].flat]
        weights[name] = {key: value.numpy().copy() for key, value in ray.get(learner.weights()).items()}
    for name in LAYOUTS:
        assert updates[name] == pytest.approx(updates["padded"], rel=1e-4, abs=1e-5), name
        for key, value in weights["padded"].items():
            assert np.abs(value - weights[name][key]).max() < 2e-5, (name, key)


@pytest.fixture(scope="module")
def taught(stack, task, tmp_path_factory):
    """A Llama that answers the bandit's prompts with some digit, written by the learner."""
    folder = write_model(tmp_path_factory.mktemp("random"), "llama", tied=True, initializer_range=0.02)
    tokenizer, out = ModelTokenizer(folder, PromptFormat("plain")), tmp_path_factory.mktemp("taught")
    optimizer = OptimizerSettings(lr=5e-3)
    config = LearnerConfig(shape=PolicyShape.read(folder), optimizer=optimizer, packed_tokens=512)
    learner = stack.learner(config, folder)
    for rows in islice(make_demonstration_batches(task.splits().supervision, tokenizer, batch_size=32, seed=0), 60):
        learner.supervised(rows)
    learner.export_hf(out, {"eos_token_id": tokenizer.eos_id})
    tokenizer.write_hf(out)
    return out


@pytest.mark.slow
def test_a_run_trains_a_folder_and_exports_it(make, stack, taught):
    whole = make(
        "folder",
        f"policy.model_name={taught}",
        "policy.tokenizer.template=plain",
        "reinforce_ada.preset=ada_seq_balance",
        "policy.megatron_cfg.tensor_model_parallel_size=2",
        "policy.megatron_cfg.optimizer.lr=1e-3",
    )
    assert training.Trainer(whole, stack, embedded.build_run_task(whole)).run().exit_code == EXIT_DONE
    records = read_lines(whole.folder / "metrics.jsonl")
    assert sum(record["ada/live_rows"] for record in records) > 0

    exported = whole.folder / "checkpoints" / "step_000004" / "hf"
    tokenizer = ModelTokenizer(exported)
    assert [tokenizer.encode("017b"), tokenizer.eos_id] == [ModelTokenizer(taught).encode("017b"), 1]
    data = stack.call("sample", 9, list(range(8)), 0)
    rows = TrainBatch(
        data.tokens_RT, data.length_R, data.prompt_length_R, data.advantage_R, data.weight_R, data.old_logprob_RT, 1.0
    )
    assert np.abs(reference(exported, rows) - data.old_logprob_RT)[data.weight_R > 0].max() < 1e-4  # a tied model


@pytest.mark.slow
def test_a_fresh_vllm_computes_the_learners_log_probabilities_from_an_export(stack, taught, tmp_path):
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, (4, WIDTH))
    learner = stack.learner(LearnerConfig(shape=PolicyShape.read(taught)), taught)
    found = learner.logprobs(tokens, np.full(4, WIDTH), np.ones(4, np.int64))
    expected = {"tokens": torch.from_numpy(tokens), "logprobs": torch.from_numpy(found[:, 1:])}
    torch.save(expected, tmp_path / "logprobs.pt")
    command = [sys.executable, "-m", "nemo_ada.rehearsal.exported", "vllm", taught, tmp_path / "logprobs.pt"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert float(told.splitlines()[-1]) < 1e-5


def test_a_response_ends_with_its_line_where_that_is_asked_for(make, stack, taught):
    config = make("lines", f"policy.model_name={taught}", "policy.generation.stop_at_line_end=true")
    tokenizer = ModelTokenizer(taught)
    ends = tokenizer.line_ends()
    assert tokenizer.encode("a\n")[-1] in ends and tokenizer.eos_id not in ends
    assert all("\n" in tokenizer.decode([i]) for i in ends)
    assert config.policy.generation.stop_at_line_end and load_tokenizer(config.policy) == tokenizer


def change(path: Path, **content: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | content))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("whole"), "llama")


BROKEN = {
    "no model": (lambda f: (f / "config.json").unlink(), "no config.json there"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json there"),
    "half a tokenizer": (lambda f: truncate(f / "tokenizer.json"), "no tokenizer can be read"),
    "other architecture": (lambda f: change(f / "config.json", model_type="gpt2"), "runs llama, qwen2, qwen3"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"holds no \*\.safetensors"),
    "half of the weights": (lambda f: truncate(f / "model.safetensors"), "no complete safetensors file"),
    "half of the layers": (lambda f: change(f / "config.json", num_hidden_layers=4), "model.layers.2.* is none"),
    "other vocabulary": (lambda f: change(f / "config.json", vocab_size=256), "do not fit: lm_head.weight is"),
    "long context": (
        lambda f: change(f / "config.json", rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), "type 'yarn'"
    ),
    "quantised": (lambda f: change(f / "config.json", quantization_config={"bits": 4}), "quantised weights"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(make, whole_folder, tmp_path, what):
    broken, says = BROKEN[what]
    folder = shutil.copytree(whole_folder, tmp_path / "model")
    broken(folder)
    config = make("broken", f"policy.model_name={folder}")
    with pytest.raises(UserError, match=says) as error:
        training.check_run(config, embedded.build_run_task(config))
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


def test_what_does_not_fit_the_folder_is_refused(make, tmp_path):
    folder = write_model(tmp_path / "small", "qwen2", vocab_size=256)
    config = make("vocabulary", f"policy.model_name={folder}")
    with pytest.raises(UserError, match="has 256 tokens, its tokenizer gives ids up to 300"):
        training.check_run(config, embedded.build_run_task(config))
    three = write_model(tmp_path / "three", "llama", hidden_size=288, num_attention_heads=9, num_key_value_heads=3)
    config = make("three", f"policy.model_name={three}", "policy.megatron_cfg.tensor_model_parallel_size=2")
    with pytest.raises(UserError, match=r"does not divide 9 attention heads, 3 query groups.*; 1 or 3 would work"):
        training.check_run(config, embedded.build_run_task(config))
    write_tokenizer(three, chat=False)
    (three / "chat_template.jinja").unlink(missing_ok=True)
    config = make("chat", f"policy.model_name={three}", "policy.tokenizer.template=chat")
    with pytest.raises(UserError, match="has no chat template"):
        embedded.build_run_task(config)


def test_copies_that_a_folder_holds_are_no_tensors_of_the_model(tmp_path):
    folders = Lazy("nemo_ada.cpu.model_folder")
    own = ("model.embed_tokens.weight", "model.norm.weight")
    tensors = {name: np.zeros(3, np.float32) for name in (*own, "lm_head.weight", "model.layers.0.rotary_emb.inv_freq")}
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    for tied, more in ((True, set()), (False, {"lm_head.weight"})):
        (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
        assert folders.read_tensor_shapes(tmp_path).keys() == {*own} | more


def shard(folder: Path, name: str = "model.safetensors") -> dict[str, np.ndarray]:
    return dict(safetensors.load_file(folder / name))


def split(folder: Path) -> dict[str, str]:
    """Write the weights as two shards with an index, as transformers does, and return the index."""
    tensors = shard(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {f"model-0000{i}-of-00002.safetensors": names[i - 1 :: 2] for i in (1, 2)}
    for file, held in files.items():
        safetensors.save_file({name: tensors[name] for name in held}, folder / file)
    index = {name: file for file, held in files.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return index


def test_the_index_says_which_files_are_the_model_also_where_another_export_lies_beside(stack, whole_folder, tmp_path):
    folder = shutil.copytree(whole_folder, tmp_path / "model")
    other = {name: tensor + 1 for name, tensor in shard(folder).items()}
    split(folder)
    for stale in ("model-00003-of-00003.safetensors", "zzz.safetensors"):
        safetensors.save_file(other, folder / stale)
    rows = batch()
    learner = stack.learner(LearnerConfig(shape=PolicyShape.read(folder), micro_batch_size=5), folder)
    found = learner.logprobs(rows.tokens_RT, rows.length_R, rows.prompt_length_R)
    assert np.abs(found - reference(folder, rows)).max() < 1e-5


def test_files_that_leave_the_model_open_are_refused(whole_folder, tmp_path):
    folders = Lazy("nemo_ada.cpu.model_folder")
    folder = shutil.copytree(whole_folder, tmp_path / "model")
    safetensors.save_file(shard(folder), folder / "model-00001-of-00001.safetensors")
    with pytest.raises(UserError, match=r"holds model.safetensors and model-00001.*vLLM would read all"):
        folders.list_tensor_files(folder)
    (folder / "model-00001-of-00001.safetensors").unlink()
    index = split(folder)
    lost = next(iter(index.values()))
    (folder / lost).unlink()
    with pytest.raises(UserError, match=f"lacks {lost}, which its model.safetensors.index.json names"):
        folders.list_tensor_files(folder)


@pytest.mark.parametrize(
    "said",
    [{"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
     {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default"}}, {"rope_theta": 1e6},
     {"rope_theta": 1e6, "rope_scaling": {"rope_theta": 5e5, "rope_type": "default"}}, {}],
)  # fmt: skip
def test_rotary_positions_are_read_as_transformers_reads_them(whole_folder, tmp_path, said):
    folder = shutil.copytree(whole_folder, tmp_path / "model")
    content = json.loads((folder / "config.json").read_text())
    for name in ("rope_theta", "rope_parameters", "rope_scaling"):
        content.pop(name, None)
    (folder / "config.json").write_text(json.dumps(content | said))
    theirs = transformers.AutoConfig.from_pretrained(folder).rope_parameters["rope_theta"]
    assert PolicyShape.read(folder).rope_theta == theirs


def test_an_export_keeps_bos_and_the_type_of_the_weights(make, stack, taught, tmp_path):
    folder = shutil.copytree(taught, tmp_path / "bfloat16")
    model = transformers.AutoModelForCausalLM.from_pretrained(taught, dtype=torch.bfloat16)
    model.config.bos_token_id = 0
    model.save_pretrained(folder)
    config = make(
        "bfloat16", f"policy.model_name={folder}", "policy.tokenizer.template=plain", "grpo.max_num_steps=1",
        "grpo.val_period=0",
    )  # fmt: skip
    assert training.Trainer(config, stack, embedded.build_run_task(config)).run().exit_code == EXIT_DONE
    exported = config.folder / "checkpoints" / "step_000001" / "hf"
    content = json.loads((exported / "config.json").read_text())
    assert (content["bos_token_id"], content["torch_dtype"]) == (0, "bfloat16")
    assert transformers.AutoModelForCausalLM.from_pretrained(exported, dtype="auto").dtype == torch.bfloat16


def test_a_run_stops_where_engine_and_learner_disagree_before_the_first_update(make, stack, taught):
    class Other(training.Trainer):
        """The engine's weights are not the learner's."""

        def _start(self) -> None:
            super()._start()
            learner = self.stack.learner(LearnerConfig(shape=PolicyShape.read(taught), seed=7), None)
            self.stack.call("refit", learner.weights())
            self._learner = self.stack.learner(
                embedded.make_learner_config(self.config, PolicyShape.read(taught)), taught
            )

    config = make("disagree", f"policy.model_name={taught}", "policy.tokenizer.template=plain")
    with pytest.raises(UserError, match=r"engine and learner read two models from one folder.*approx_kl"):
        Other(config, stack, embedded.build_run_task(config)).run()
    assert not [*config.folder.glob("checkpoints/step_*")]
