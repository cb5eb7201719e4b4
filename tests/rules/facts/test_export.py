"""`nemo-ada export`: the newest whole checkpoint of either back end, as a folder whose every byte is there."""

import json
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from nemo_ada.errors import UserError
from nemo_ada.nemo.launch.export import _add_prompts, export_checkpoint, find_checkpoint
from nemo_ada.run.files import write_folder
from nemo_ada.run.folder import CONTRACT
from nemo_ada.tasks.prompting import read_contract

pytestmark = pytest.mark.long

CONVERTER = """
import argparse, pathlib
parser = argparse.ArgumentParser()
for name in ("--config", "--{flag}-ckpt-path", "--hf-ckpt-path"): parser.add_argument(name)
given = vars(parser.parse_args())
out = pathlib.Path(given["hf_ckpt_path"])
out.mkdir()
(out / "config.json").write_text(given["{flag}_ckpt_path"])
header = b'{{"w": {{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}}}'
(out / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes({size}))
"""
PICKLES = """
import torch
(out / "model.safetensors").unlink()
torch.save({"w": torch.ones(2), "tied": torch.ones(2)}, out / "pytorch_model.bin")
"""


def weights(size=4):
    header = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    return len(header).to_bytes(8, "little") + header + bytes(size)


def ours(run):
    """The run, with the configuration that NeMo-RL writes into its checkpoint."""
    for folder in run.glob("checkpoints/step_*"):
        if not (folder / "config.yaml").exists():
            (folder / "config.yaml").write_text('{"policy": {"model_name": "none/such"}}')
    return run


def embedded(run, step):
    def fill(folder):
        (folder / "hf").mkdir()
        (folder / "hf/model.safetensors").write_bytes(weights())
        for name in ("config.json", "tokenizer.json"):
            (folder / "hf" / name).write_text(json.dumps({"step": step}))

    folder = run / f"checkpoints/step_{step:06d}"
    write_folder(folder, fill)
    return folder


def test_the_newest_checkpoint_that_is_whole_is_exported(tmp_path):
    embedded(tmp_path, 10)
    damaged = embedded(tmp_path, 20)
    (damaged / "hf/model.safetensors").write_bytes(weights(3))
    (tmp_path / "checkpoints/tmp_step_30/policy/weights").mkdir(parents=True)
    made = export_checkpoint(tmp_path, step=None, out=None, say=lambda line: None)
    assert json.loads((made / "config.json").read_text()) == {"step": 10}
    with pytest.raises(UserError, match="no complete checkpoint of step 20; name a run"):
        export_checkpoint(tmp_path, step=20, out=tmp_path / "out", say=lambda line: None)
    with pytest.raises(UserError, match="is there already"):
        export_checkpoint(tmp_path, step=10, out=None, say=lambda line: None)


@pytest.mark.parametrize(("flag", "kind", "files"), [("megatron", "megatron", "iter_0000000"), ("dcp", "dcp", "x")])
def test_nemo_rls_converter_runs_in_the_workers_interpreter(flag, kind, files, tmp_path, monkeypatch):
    saved = tmp_path / "run/checkpoints/step_7/policy"
    (saved / "weights" / files).mkdir(parents=True)
    (saved / "tokenizer").mkdir()
    (saved / "tokenizer/tokenizer.json").write_text("{}")
    script = tmp_path / f"examples/converters/convert_{kind}_to_hf.py"
    script.parent.mkdir(parents=True)
    script.write_text(CONVERTER.format(flag=flag, size=4))
    python = tmp_path / f"venvs/{'Megatron' if kind == 'megatron' else 'DTensor'}PolicyWorker/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho x >>{tmp_path}/used\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path / "venvs"))
    made = export_checkpoint(ours(tmp_path / "run"), step=None, out=tmp_path / "hf", say=lambda line: None)
    assert (tmp_path / "used").exists() and (made / "tokenizer.json").exists()
    source = saved / "weights" / (files if kind == "megatron" else "")
    assert (made / "config.json").read_text() == str(source)
    script.write_text(CONVERTER.format(flag=flag, size=3))
    with pytest.raises(UserError, match=r"not be whole: model\.safetensors"):
        export_checkpoint(ours(tmp_path / "run"), step=None, out=tmp_path / "again", say=lambda line: None)
    assert not (tmp_path / "again").exists()


def test_what_the_converter_of_dtensors_files_pickles_becomes_safetensors(tmp_path, monkeypatch):
    saved = tmp_path / "run/checkpoints/step_7/policy"
    for folder in (saved / "weights", saved / "tokenizer", tmp_path / "examples/converters"):
        folder.mkdir(parents=True)
    (saved / "tokenizer/tokenizer.json").write_text("{}")
    script = tmp_path / "examples/converters/convert_dcp_to_hf.py"
    script.write_text(CONVERTER.format(flag="dcp", size=4) + PICKLES)
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path / "none"))
    made = export_checkpoint(ours(tmp_path / "run"), step=None, out=None, say=lambda line: None)
    assert {name: tensor.tolist() for name, tensor in load_file(made / "model.safetensors").items()} == {
        "w": [1.0, 1.0],
        "tied": [1.0, 1.0],
    }
    assert not list(made.glob("*.bin"))


def test_the_shards_that_the_ranks_of_dtensor_v2_save_become_one_model(tmp_path, monkeypatch):
    """As a rehearsal of DTensor v2 with two ranks left them (26 November 2026): a part of each tensor per file."""
    saved = tmp_path / "run/checkpoints/step_7/policy"
    (saved / "weights/model/.hf_metadata").mkdir(parents=True)
    (saved / "tokenizer").mkdir()
    (saved / "tokenizer/tokenizer.json").write_text("{}")
    (saved / "weights/model/.hf_metadata/config.json").write_text('{"model_type": "qwen2"}')
    whole = {"w": torch.arange(12.0).reshape(4, 3), "norm": torch.arange(4.0), "mine": torch.ones(2)}
    for rank in range(2):
        parts = {"w": whole["w"][2 * rank : 2 * rank + 2], "norm": whole["norm"][2 * rank : 2 * rank + 2]}
        offsets = {"w": {"saved_offsets": [2 * rank, 0]}, "norm": {"saved_offsets": [2 * rank]}}
        if rank == 0:
            parts["mine"], offsets["mine"] = whole["mine"], {"saved_offsets": [0]}
        save_file({name: part.contiguous() for name, part in parts.items()},
                  saved / f"weights/model/shard-0000{rank + 1}-model-00001-of-00001.safetensors",
                  {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)})  # fmt: skip
    monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path / "none"))
    made = export_checkpoint(ours(tmp_path / "run"), step=None, out=None, say=lambda line: None)
    joined = load_file(made / "model.safetensors")
    assert {name: tensor.tolist() for name, tensor in joined.items()} == {
        name: tensor.tolist() for name, tensor in whole.items()
    }
    assert json.loads((made / "config.json").read_text()) == {"model_type": "qwen2"}


def test_adapters_that_dtensor_v2_saves_are_exported_merged_and_alone(tmp_path, monkeypatch):
    """The files and names are those that a rehearsal of LoRA on DTensor v2 left (27 November 2026)."""
    torch.manual_seed(0)
    base = Qwen2ForCausalLM(Qwen2Config(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                        num_attention_heads=2, num_key_value_heads=2))  # fmt: skip
    base.save_pretrained(tmp_path / "base")
    checkpoint = tmp_path / "run/checkpoints/step_7"
    saved = checkpoint / "policy/weights/model"
    saved.mkdir(parents=True)
    (checkpoint / "policy/tokenizer").mkdir()
    (checkpoint / "policy/tokenizer/tokenizer.json").write_text("{}")
    (checkpoint / "config.yaml").write_text(json.dumps({"policy": {"model_name": str(tmp_path / "base")}}))
    (saved / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 8}))
    layer = "model.layers.0.self_attn.q_proj"
    pair = {"lora_A": torch.randn(2, 8), "lora_B": torch.randn(8, 2)}
    save_file({f"base_model.model.{layer}.{name}.weight": part for name, part in pair.items()},
              saved / "adapter_model.safetensors")  # fmt: skip
    monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path / "none"))
    made = Qwen2ForCausalLM.from_pretrained(
        export_checkpoint(ours(tmp_path / "run"), step=None, out=None, say=lambda line: None)
    )
    expected = dict(base.named_parameters())
    for name, weight in made.named_parameters():
        change = 4 * pair["lora_B"] @ pair["lora_A"] if name == f"{layer}.weight" else 0
        torch.testing.assert_close(weight, expected[name] + change)
    alone = export_checkpoint(ours(tmp_path / "run"), step=None, out=None, say=lambda line: None, adapter=True)
    assert (alone / "adapter_model.safetensors").read_bytes() == (saved / "adapter_model.safetensors").read_bytes()


def test_an_export_says_what_it_is(tmp_path):
    embedded(tmp_path, 20)
    (tmp_path / "config.yaml").write_text(
        json.dumps({"policy": {"model_name": "Qwen/Qwen2.5-0.5B"}, "reinforce_ada": {"preset": "ada_single"},
                    "grpo": {"num_generations_per_prompt": 1, "num_prompts_per_step": 64}, "task": {"name": "words"}})
    )  # fmt: skip
    (tmp_path / "environment.json").write_text(json.dumps({"nemo_ada": "0.1.0", "commit": "abc1234"}))
    scores = [{"step": 10, "val/accuracy": 0.25}, {"step": 20, "val/accuracy": 0.5}, {"step": 30, "val/accuracy": 0.9}]
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in scores))
    card = (export_checkpoint(tmp_path, step=None, out=None, say=lambda line: None) / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["base_model"] == "Qwen/Qwen2.5-0.5B"
    for part in ("preset ada_single", "abc1234", "accuracy 0.500", "after step 20"):
        assert part in card
    assert "0.900" not in card


def test_a_run_that_saves_elsewhere_is_exported_from_there_also_when_it_has_moved(tmp_path):
    """NeMo-RL's own files save into results/; a YAML of a user's that builds on one names its run_dir alone."""
    run, results = tmp_path / "run", tmp_path / "results/grpo"
    embedded(tmp_path, 10).parent.rename((results.parent.mkdir(), results)[1])
    run.mkdir()
    config = {"run_dir": str(run), "checkpointing": {"checkpoint_dir": str(results)}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    made = export_checkpoint(run, step=None, out=None, say=lambda line: None)
    assert (made.parent, json.loads((made / "config.json").read_text())) == (run / "hf", {"step": 10})
    config["checkpointing"]["checkpoint_dir"] = str(run / "saves")
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    results.rename(run / "saves")
    moved = run.rename(tmp_path / "moved")
    assert find_checkpoint(moved, None) == moved / "saves/step_000010"


def test_a_run_that_saved_nothing_is_named(tmp_path):
    with pytest.raises(UserError, match="has no complete checkpoint; name a run"):
        export_checkpoint(tmp_path, step=None, out=None, say=lambda line: None)


def test_an_export_of_nemo_rl_keeps_every_stop_token_and_says_how_prompts_were_made(tmp_path):
    model, place, folder = tmp_path / "model", tmp_path / "place", tmp_path / "run" / "step_1"
    for made in (model, place, folder):
        made.mkdir(parents=True)
    (model / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    (folder / "config.yaml").write_text(json.dumps({"policy": {"model_name": str(model)}}))
    (tmp_path / "run" / CONTRACT).write_text('{"system": "Use a box."}')
    _add_prompts(place, tmp_path / "run", folder)
    assert json.loads((place / "generation_config.json").read_text()) == {"eos_token_id": [1, 7]}
    assert read_contract(place) == {"system": "Use a box."}


def test_a_model_with_code_of_its_own_is_named_on_the_command_line(tmp_path, monkeypatch):
    """NeMo-RL's converter trusts remote code, and the run's configuration was only found."""
    saved = tmp_path / "run/checkpoints/step_7/policy"
    (saved / "weights/x").mkdir(parents=True)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"auto_map": {"AutoConfig": "configuration.Mine"}}')
    (saved.parent / "config.yaml").write_text(json.dumps({"policy": {"model_name": str(model)}}))
    with pytest.raises(UserError, match=f"auto_map in config.json.*where you trust it, say --model={model}"):
        export_checkpoint(tmp_path / "run", step=None, out=None, say=lambda line: None)
    monkeypatch.delenv("NEMO_RL_HOME", raising=False)
    with pytest.raises(UserError, match="NEMO_RL_HOME"):
        export_checkpoint(tmp_path / "run", step=None, out=None, say=lambda line: None, model=str(model))
    with pytest.raises(UserError, match=f"was trained from {model}"):
        export_checkpoint(tmp_path / "run", step=None, out=None, say=lambda line: None, model="other/model")
