"""`nemo-ada export` writes the newest complete checkpoint of a run as a Hugging Face folder.

A checkpoint of the CPU back end contains such a folder. NeMo-RL's own examples/converters convert its checkpoints, in
the interpreter of its Megatron workers. A checkpoint of LoRA has adapters only. Its export is the merged model, or with
`adapter` a folder for PEFT.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from nemo_ada import marks as trust
from nemo_ada.errors import UserError
from nemo_ada.nemo.launch.contract import write_contract
from nemo_ada.rules.facts.config_file import HOME
from nemo_ada.rules.facts.hub import REPOSITORY, missing_files, snapshot
from nemo_ada.rules.facts.nemo_config import Values
from nemo_ada.rules.facts.site import site_setting, worker_python
from nemo_ada.run.files import (
    MANIFEST,
    duplicate,
    json_of,
    opened_to_read,
    verify_folder,
    write_atomically,
    write_folder,
)
from nemo_ada.run.folder import CONTRACT, RunDir
from nemo_ada.run.json_lines import records
from nemo_ada.run.provenance import latest
from nemo_ada.run.redaction import hide, printable
from nemo_ada.run.start import python
from nemo_ada.run.start import run as run_process
from nemo_ada.run.yaml_file import read_yaml

CONFIG = "config.yaml"  # of a run and of a checkpoint
MAX_BYTES, MOST_LETTERS = 4 << 20, 300  # of a file that the card cites, and of a text in it
CARD = "README.md"  # what the hub shows of a model
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
TO_SAFETENSORS = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
weights = Path(sys.argv[1]) / "pytorch_model.bin"
if weights.is_file():
    tensors = torch.load(weights, map_location="cpu", weights_only=True)
    whole = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    save_file(whole, weights.with_name("model.safetensors"), {"format": "pt"})
    weights.unlink()
"""  # the converter of DTensor's files writes a pickle
SHARDS = "shard-*.safetensors"
FROM_SHARDS = """
import sys
from pathlib import Path
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
shards, out = Path(sys.argv[1]), Path(sys.argv[2])
reader = dcp.HuggingFaceStorageReader(str(shards))
found = reader.read_metadata().state_dict_metadata
whole = {name: torch.empty(facts.size, dtype=facts.properties.dtype) for name, facts in found.items()}
dcp.load(whole, storage_reader=reader, no_dist=True)
save_file(whole, out / "model.safetensors", {"format": "pt"})
"""  # each rank of DTensor v2 saves its parts of the tensors, which transformers cannot read

MERGED = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
base, saved, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
facts = json.loads((saved / "adapter_config.json").read_text())
pairs = load_file(saved / "adapter_model.safetensors")
model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
for name in [name for name in pairs if name.endswith("lora_A.weight")]:
    layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
    change = pairs[name.replace("lora_A", "lora_B")].float() @ pairs[name].float() * (facts["lora_alpha"] / facts["r"])
    weight = model.get_submodule(layer).weight
    with torch.no_grad():
        weight.copy_(weight.float() + change)
model.save_pretrained(out)
"""  # DTensor v2 saves adapters for PEFT, and NeMo-RL has no converter for them


def export(
    run: Path, *, step: int | None, out: Path | None, say: Callable[[str], object], adapter: bool = False
) -> Path:
    """Write the folder, check it file by file, and return it.

    Args:
        run: the run's folder.
        step: step of the checkpoint. None for the newest.
        out: the folder to write. None for a folder in the run's.
        say: shows a line to the user.
        adapter: write only the adapters of LoRA, in PEFT's format.

    Raises:
        UserError: there is no such checkpoint, the folder exists, or the converter failed.
    """
    folder = newest(run, step)
    ours = trust.allowed(run / CONFIG)
    if not ours:
        _refuse_outside(run, folder)
    base = _lora_base(folder)
    if adapter and base is None:
        raise UserError(f"--adapter: {folder} has all weights and no adapters of LoRA; leave it out")
    target = out or run / ("adapter" if adapter else "hf") / folder.name
    if target.exists():
        raise UserError(f"{target} is there already; name another folder with --out, or remove it")
    say(f"{folder} -> {target}")

    def fill(place: Path) -> None:
        if (folder / "hf").is_dir():
            duplicate(folder / "hf", place)
        else:
            _convert(folder, place, base, adapter, None if ours else run / CONFIG)
        for file in (folder / "policy/tokenizer").glob("*"):
            if not (place / file.name).exists():
                duplicate(file, place / file.name)
        if not (folder / "hf").is_dir():
            _add_prompts(place, run, folder / CONFIG if ours else None)
        write_atomically(place / CARD, model_card(run, folder))
        if broken := _broken(place, adapter):
            raise UserError(f"{target} would not be whole: {', '.join(broken[:5])}; export again")

    write_folder(target, fill)
    size = sum(file.stat().st_size for file in target.glob("*.safetensors"))
    say(f"{target}: {size / 2**20:,.0f} MiB of weights, for transformers and vLLM")
    return target


def _refuse_outside(run: Path, folder: Path) -> None:
    """Refuse a checkpoint with links that leave the run: the export would hold the user's own files.

    Raises:
        UserError: there is such a link, or a pipe or a device.
    """
    for path in (folder, *folder.rglob("*")):
        if not trust.within(path, [run]) or not (path.is_dir() or path.is_file()):
            raise UserError(
                f"{path} is no file of this run; an export takes nothing from outside of it. `nemo-ada allow "
                f"{run / CONFIG}` says that the run is yours"
            )


def _broken(place: Path, adapter: bool) -> list[str]:
    """Return the files of an export that are not whole."""
    broken = [file.name for file in place.glob("*.safetensors") if not _whole(file)]
    if adapter:
        return [*broken, *(name for name in ADAPTER if not (place / name).is_file())]
    return [*broken, *missing_files(place, weights=True)]


def model_card(run: Path, folder: Path) -> str:
    """Return the model card of a checkpoint: base, method, commit and the last evaluation, as far as the run has them.

    Args:
        run: the run's folder.
        folder: the folder of the checkpoint.
    """
    step, config, made = int(folder.name.removeprefix("step_")), run / "config.yaml", run / "environment.json"
    values, about = Values(_mapping(config)), latest(made)
    path = values.get("data.train.data_path")
    base = str(values.get("policy.model_name") or "")
    public = REPOSITORY.fullmatch(base) is not None and not os.path.exists(base)
    head = {
        "library_name": "transformers",
        **({"base_model": base} if public else {}),
        "tags": ["grpo", "reinforce-ada"],
    }
    facts = {
        "base": base if public else f"the folder {Path(base).name}" if base else "a small model, trained from scratch",
        "method": f"preset {values.get('reinforce_ada.preset') or 'of its own'}, "
        f"{values.get('grpo.num_generations_per_prompt', '?')} rows for each of "
        f"{values.get('grpo.num_prompts_per_step', '?')} prompts per step, {step} steps, "
        f"seed {values.get('grpo.seed', 0)}",
        "data": values.get("task.name") or values.get("data.train.dataset_name") or (path and Path(str(path)).name),
        "code": f"nemo_ada {about.get('nemo_ada', '?')}, commit {about.get('commit') or 'unknown'}",
        "evaluation": _last_evaluation(run, step),
    }
    lines = [f"- **{name}:** {_one_line(value)}" for name, value in facts.items() if value]
    title = _one_line(Path(run).resolve().name)
    return "\n".join(
        ["---", yaml.safe_dump(head, sort_keys=False) + "---", "", f"# {title}, step {step}", "", *lines, ""]
    )


def _one_line(value: object) -> str:
    """Return a text of a run's files for the card: one line, without a secret or a character that steers a terminal."""
    return printable(hide(" ".join(str(value)[:MOST_LETTERS].split())))


def _mapping(path: Path) -> dict[str, Any]:
    """Return the mapping of a run's file; empty where it is missing or damaged, which a card can do without."""
    try:
        content = read_yaml(path, written=True) if path.suffix == ".yaml" else json_of(path, MAX_BYTES)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _last_evaluation(run: Path, step: int) -> str:
    """Return the scores of the newest evaluation up to a step. Empty without one."""
    file = run / "evaluations.jsonl"
    lines = records(file, on_damage=lambda _number, _why: None) if file.is_file() else ()
    found = [one for _, one in lines if isinstance(one.get("step"), int) and one["step"] <= step]
    if not found:
        return ""
    scores = [f"{name[4:]} {value:.3f}" for name, value in found[-1].items()
              if name.startswith("val/") and isinstance(value, float)]  # fmt: skip
    return f"{', '.join(scores)} on held-out prompts after step {found[-1]['step']}" if scores else ""


def _add_prompts(place: Path, run: Path, config: Path | None) -> None:
    """Add the model's generation_config.json, which names all stop tokens, and what the prompts were made of.

    Args:
        place: the folder of the export.
        run: the run's folder.
        config: the configuration of the checkpoint. None where it may not name files outside of the run.
    """
    if config is None:
        if (run / CONTRACT).is_file() and trust.within(run / CONTRACT, [run]):
            duplicate(run / CONTRACT, place / CONTRACT)
        return
    values = Values(read_yaml(config, "the run's configuration", written=True)) if config.is_file() else Values({})
    model = Path(str(values.get("policy.model_name", "")))
    source = (model if model.is_dir() else snapshot(str(model)) or model) / "generation_config.json"
    if source.is_file() and not (place / source.name).exists():
        duplicate(source, place / source.name)
    write_contract(place, values)


def newest(run: Path, step: int | None) -> Path:
    """The newest complete checkpoint of either back end, or the one of `step`. Raises UserError if there is none."""
    for folder in reversed(RunDir(run).checkpoints()):
        if step is not None and int(folder.name.removeprefix("step_")) != step:
            continue
        try:
            if (folder / MANIFEST).is_file():
                verify_folder(folder)
            elif not (folder / "policy/weights").is_dir():
                continue
        except UserError:
            continue
        return folder
    if not run.is_dir():
        raise UserError(f"{run} is no folder; name a run's folder, its run_dir")
    others = (
        [int(folder.name.removeprefix("step_")) for folder in RunDir(run).checkpoints()] if step is not None else []
    )
    raise UserError(
        f"{run} has no complete checkpoint{'' if step is None else f' of step {step}'}; name a run's folder"
        + (f", or with --step one of {', '.join(map(str, others))}" if others else "")
        + ". A run saves every checkpointing.save_period steps and at its end"
    )


def _lora_base(folder: Path) -> Path | None:
    """Return the model that a checkpoint's adapters belong to. None for a checkpoint without adapters.

    Adapters on Megatron belong to a converted model, and those on DTensor v2 to `policy.model_name`.

    Raises:
        UserError: the converted model is not where the run found it.
    """
    if (folder / "policy/weights/model" / ADAPTER[1]).is_file():
        return Path(_model_name(folder))
    for iteration in sorted((folder / "policy/weights").glob("iter_*"))[-1:]:
        file = iteration / "run_config.yaml"
        told = read_yaml(file, "the checkpoint's configuration", written=True) if file.is_file() else {}
        if not told.get("peft"):
            continue
        base = Path(str((told.get("checkpoint") or {}).get("pretrained_checkpoint")))
        found = sorted(base.glob("iter_*"))
        if not found:
            raise UserError(
                f"{folder} has adapters of LoRA, and the converted model that they belong to is not at {base}; put it "
                "back there, or start a job of this config with the same HF_HOME, which converts it again"
            )
        return found[-1]
    return None


def _convert(folder: Path, place: Path, base: Path | None, adapter: bool, foreign: Path | None) -> None:
    """Run NeMo-RL's converter for Megatron's or DTensor's files, or copy what DTensor saved for Hugging Face.

    Args:
        folder: the checkpoint.
        place: folder for the files.
        base: the model that its adapters belong to. None for a checkpoint without adapters.
        adapter: write only the adapters.
        foreign: the configuration of a run that nobody has allowed. What it names outside of the run is not used.
    """
    weights, home = folder / "policy/weights", Path(site_setting(HOME) or ".missing")
    iterations = sorted(weights.glob("iter_*"))
    if (weights / "model/consolidated").is_dir():
        duplicate(weights / "model/consolidated", place)
        return
    if base is not None and not iterations:
        if adapter:
            for name in ADAPTER:
                duplicate(weights / "model" / name, place / name)
        else:
            _refuse_foreign(foreign, "the model that its adapters belong to")
            interpreter = worker_python("dtensor|automodel") or Path(sys.executable)
            _run("merging the adapters", python(interpreter, "-c", MERGED, base, weights / "model", place))
        return
    if any((weights / "model").glob(SHARDS)):
        interpreter = worker_python("dtensor|automodel") or Path(sys.executable)
        _run("joining the shards", python(interpreter, "-c", FROM_SHARDS, weights / "model", place))
        for name in ("config.json", "generation_config.json"):
            if (weights / "model/.hf_metadata" / name).is_file():
                duplicate(weights / "model/.hf_metadata" / name, place / name)
        return
    _refuse_foreign(foreign, "a tokenizer and a model, which the converter reads")
    kind, flag, checkpoint, worker = (
        ("megatron", "--megatron-ckpt-path", iterations[-1], "megatron")
        if iterations
        else ("dcp", "--dcp-ckpt-path", weights, "dtensor|automodel")
    )
    script = home / f"examples/converters/convert_{kind}_to_hf.py"
    if not script.is_file():
        raise UserError(f"{HOME}={home} has no {script.name}; set it to a checkout of NeMo-RL v0.7.0")
    out = place / "converted"  # a folder that the converter makes itself
    interpreter = worker_python(worker) or Path(sys.executable)
    command = python(interpreter, script, "--config", folder / "config.yaml", flag, checkpoint)
    if base is not None:
        script = home / "examples/converters/convert_lora_to_hf.py"
        command = python(interpreter, script, "--base-ckpt", base, "--adapter-ckpt", checkpoint)
        command += ["--hf-model-name", _model_name(folder), *(["--adapter-only"] if adapter else [])]
    _run(script.name, [*command, "--hf-ckpt-path", str(out)])
    if not out.is_dir():
        raise UserError(f"{script.name} wrote nothing in {interpreter}; run it in NeMo-RL's container")
    _run("safetensors", python(interpreter, "-c", TO_SAFETENSORS, out))
    for file in out.iterdir():
        file.rename(place / file.name)
    out.rmdir()


def _refuse_foreign(config: Path | None, what: str) -> None:
    if config is not None:
        raise UserError(
            f"{config} names {what}, and these may be files of yours; look at it, and if the run is yours or you want "
            f"that, `nemo-ada allow {config}`"
        )


def _model_name(folder: Path) -> str:
    """Return the model that a checkpoint's run started from."""
    return str(read_yaml(folder / "config.yaml", "the run's configuration")["policy"]["model_name"])


def _run(name: str, command: Sequence[str]) -> None:
    done = run_process(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{name} failed in {command[0]}: {last[:500]}; run it in NeMo-RL's container")


def _whole(file: Path) -> bool:
    """Return whether a safetensors file has all the bytes that its header lists."""
    with opened_to_read(file) as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            header = json.loads(stream.read(min(length, 1 << 28)))
        except ValueError:
            return False
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    return file.stat().st_size == 8 + length + end
