"""`nemo-ada export` writes the newest complete checkpoint of a run as a Hugging Face folder.

A checkpoint of the CPU back end contains such a folder. NeMo-RL's own examples/converters convert its checkpoints, in
the interpreter of its Megatron workers. A checkpoint of LoRA has adapters only. Its export is the merged model, or with
`adapter` a folder for PEFT.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import yaml

from nemo_ada import trust
from nemo_ada.errors import UserError
from nemo_ada.rules.facts.config_file import HOME
from nemo_ada.rules.facts.hub import REPOSITORY, find_code, find_missing_files, find_snapshot
from nemo_ada.rules.facts.nemo_config import Values
from nemo_ada.rules.facts.site import find_worker_python, read_site_setting
from nemo_ada.run.files import (
    MANIFEST,
    create_file,
    read_json,
    verify_folder,
    write_atomically,
    write_folder,
)
from nemo_ada.run.folder import CONTRACT, RunDir
from nemo_ada.run.json_lines import read_records
from nemo_ada.run.limited import call_limited
from nemo_ada.run.provenance import read_latest
from nemo_ada.run.redaction import hide, make_printable
from nemo_ada.run.start import make_environment, make_python_command
from nemo_ada.run.start import run as run_process
from nemo_ada.run.yaml_file import read_mapping, read_yaml

CONFIG = "config.yaml"  # of a run and of a checkpoint
GENERATION = "generation_config.json"
WORKS = "export what you trained yourself, or a copy of it that is yours"
MOST_LETTERS = 300  # of a text in the card
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
"""
# Each rank of DTensor v2 saves its parts of the tensors, which transformers cannot read. NeMo-RL's convert_dcp_to_hf.py
# cannot either: it wants a file .metadata (nemo_rl/utils/native_checkpoint.py, lines 243 to 253 of v0.7.0), which only
# checkpointing.model_save_format=torch_save writes. The default is safetensors (models/automodel/checkpoint.py, 167).

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


def export_checkpoint(
    run: Path,
    *,
    step: int | None,
    out: Path | None,
    say: Callable[[str], object],
    adapter: bool = False,
    model: str | None = None,
) -> Path:
    """Write the folder, check it file by file, and return it.

    Args:
        run: the run's folder.
        step: step of the checkpoint. None for the newest.
        out: the folder to write. None for a folder in the run's.
        say: shows a line to the user.
        adapter: write only the adapters of LoRA, in PEFT's format.
        model: the model that the run started from. It is needed where that has code of its own.

    Raises:
        UserError: there is no such checkpoint, the folder exists, or the converter failed.
    """
    folder = find_checkpoint(run, step)
    trust.check_folder(run, WORKS)
    trust.check_tree(folder, WORKS, links=False)
    base = _find_lora_base(folder)
    if adapter and base is None:
        raise UserError(f"--adapter: {folder} has all weights and no adapters of LoRA; leave it out")
    target = out or run / ("adapter" if adapter else "hf") / folder.name
    if target.exists():
        raise UserError(f"{target} is there already; name another folder with --out, or remove it")
    say(f"{folder} -> {target}")

    def fill(place: Path) -> None:
        if (folder / "hf").is_dir():
            _copy_found(folder / "hf", place)
        else:
            _convert_checkpoint(folder, place, base, adapter, model)
        for file in (folder / "policy/tokenizer").glob("*"):
            if not (place / file.name).exists():
                _copy_found(file, place / file.name)
        if not (folder / "hf").is_dir():
            _add_prompts(place, run, folder)
        write_atomically(place / CARD, write_model_card(run, folder))
        if broken := _find_broken_files(place, adapter):
            raise UserError(f"{target} would not be whole: {', '.join(broken[:5])}; export again")

    write_folder(target, fill)
    size = sum(file.stat().st_size for file in target.glob("*.safetensors"))
    say(f"{target}: {size / 2**20:,.0f} MiB of weights, for transformers and vLLM")
    return target


def _copy_found(source: Path, target: Path) -> None:
    """Copy a file of a checkpoint to a name that is not taken, or what is in a folder. No link is followed."""
    if source.is_dir():
        target.mkdir(exist_ok=True)
        for inner in source.iterdir():
            _copy_found(inner, target / inner.name)
        return
    with trust.open_found(source, WORKS, links=False) as old, create_file(target, "wb") as new:
        shutil.copyfileobj(old, new)


def _find_broken_files(place: Path, adapter: bool) -> list[str]:
    """Return the files of an export that are not whole."""
    broken = [file.name for file in place.glob("*.safetensors") if not _is_whole(file)]
    if adapter:
        return [*broken, *(name for name in ADAPTER if not (place / name).is_file())]
    return [*broken, *find_missing_files(place, weights=True)]


def write_model_card(run: Path, folder: Path) -> str:
    """Return the model card of a checkpoint: base, method, commit and the last evaluation, as far as the run has them.

    Args:
        run: the run's folder.
        folder: the folder of the checkpoint.
    """
    step, config, made = int(folder.name.removeprefix("step_")), run / "config.yaml", run / "environment.json"
    values, about = Values(read_mapping(config)), read_latest(made)
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
        "evaluation": _find_last_evaluation(run, step),
    }
    lines = [f"- **{name}:** {_clean_line(value)}" for name, value in facts.items() if value]
    title = _clean_line(Path(run).resolve().name)
    return "\n".join(
        ["---", yaml.safe_dump(head, sort_keys=False) + "---", "", f"# {title}, step {step}", "", *lines, ""]
    )


def _clean_line(value: object) -> str:
    """Return a text of a run's files for the card: one line, without a secret or a character that steers a terminal."""
    return make_printable(hide(" ".join(str(value)[:MOST_LETTERS].split())))


def _find_last_evaluation(run: Path, step: int) -> str:
    """Return the scores of the newest evaluation up to a step. Empty without one."""
    file = run / "evaluations.jsonl"
    lines = read_records(file, on_damage=lambda _number, _why: None) if file.is_file() else ()
    evaluations = [record for _, record in lines if isinstance(record.get("step"), int) and record["step"] <= step]
    if not evaluations:
        return ""
    scores = [f"{name[4:]} {value:.3f}" for name, value in evaluations[-1].items()
              if name.startswith("val/") and isinstance(value, float)]  # fmt: skip
    return f"{', '.join(scores)} on held-out prompts after step {evaluations[-1]['step']}" if scores else ""


def _add_prompts(place: Path, run: Path, folder: Path) -> None:
    """Add the model's generation_config.json, which names all stop tokens, and what the prompts were made of.

    The run has noted its prompts at its start. What its configuration names now could be any file of the user's.
    """
    if (run / CONTRACT).is_file():
        _copy_found(run / CONTRACT, place / CONTRACT)
    with suppress(UserError):  # the run names no model, or its file is no JSON and so none of a model
        source = _find_model_folder(_read_model_name(folder)) / GENERATION
        if source.is_file() and not (place / GENERATION).exists():
            write_atomically(place / GENERATION, json.dumps(read_json(source), indent=1) + "\n")


def _find_model_folder(name: str) -> Path:
    """Return the folder of a model, or of the hub's newest cached version of it."""
    return Path(name) if Path(name).is_dir() else find_snapshot(name) or Path(name)


def find_checkpoint(run: Path, step: int | None) -> Path:
    """The newest complete checkpoint of either back end, or the one of `step`. Raises UserError if there is none."""
    for folder in reversed(RunDir(run).list_checkpoints()):
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
        [int(folder.name.removeprefix("step_")) for folder in RunDir(run).list_checkpoints()]
        if step is not None
        else []
    )
    raise UserError(
        f"{run} has no complete checkpoint{'' if step is None else f' of step {step}'}; name a run's folder"
        + (f", or with --step one of {', '.join(map(str, others))}" if others else "")
        + ". A run saves every checkpointing.save_period steps and at its end"
    )


def _find_lora_base(folder: Path) -> Path | None:
    """Return the model that a checkpoint's adapters belong to. None for a checkpoint without adapters.

    Adapters on Megatron belong to a converted model, and those on DTensor v2 to `policy.model_name`.

    Raises:
        UserError: the converted model is not where the run found it.
    """
    if (folder / "policy/weights/model" / ADAPTER[1]).is_file():
        return Path(_read_model_name(folder))
    for iteration in sorted((folder / "policy/weights").glob("iter_*"))[-1:]:
        file = iteration / "run_config.yaml"
        told = Values(
            read_yaml(file, "the checkpoint's configuration", written=True, found=WORKS) if file.is_file() else {}
        )
        if not told.get("peft"):
            continue
        base = Path(str(told.get("checkpoint.pretrained_checkpoint")))
        found = sorted(base.glob("iter_*"))
        if not found:
            raise UserError(
                f"{folder} has adapters of LoRA, and the converted model that they belong to is not at {base}; put it "
                "back there, or start a job of this config with the same HF_HOME, which converts it again"
            )
        return found[-1]
    return None


def _convert_checkpoint(folder: Path, place: Path, base: Path | None, adapter: bool, model: str | None) -> None:
    """Run NeMo-RL's converter for Megatron's or DTensor's files, or copy what DTensor saved for Hugging Face.

    Args:
        folder: the checkpoint.
        place: folder for the files.
        base: the model that its adapters belong to. None for a checkpoint without adapters.
        adapter: write only the adapters.
        model: the model that the run started from, where the command line names it.
    """
    weights, home = folder / "policy/weights", Path(read_site_setting(HOME) or ".missing")
    iterations = sorted(weights.glob("iter_*"))
    if (weights / "model/consolidated").is_dir():
        _copy_found(weights / "model/consolidated", place)
        return
    if base is not None and not iterations:
        if adapter:
            for name in ADAPTER:
                _copy_found(weights / "model" / name, place / name)
        else:
            _refuse_code(folder, model)
            interpreter = find_worker_python("dtensor|automodel") or Path(sys.executable)
            _run_converter(
                "merging the adapters", make_python_command(interpreter, "-c", MERGED, base, weights / "model", place)
            )
        return
    if any((weights / "model").glob(SHARDS)):
        interpreter = find_worker_python("dtensor|automodel") or Path(sys.executable)
        _run_converter(
            "joining the shards", make_python_command(interpreter, "-c", FROM_SHARDS, weights / "model", place)
        )
        for name in ("config.json", "generation_config.json"):
            if (weights / "model/.hf_metadata" / name).is_file():
                _copy_found(weights / "model/.hf_metadata" / name, place / name)
        return
    _refuse_code(folder, model)
    kind, flag, checkpoint, worker = (
        ("megatron", "--megatron-ckpt-path", iterations[-1], "megatron")
        if iterations
        else ("dcp", "--dcp-ckpt-path", weights, "dtensor|automodel")
    )
    script = home / f"examples/converters/convert_{kind}_to_hf.py"
    if not script.is_file():
        raise UserError(f"{HOME}={home} has no {script.name}; set it to a checkout of NeMo-RL v0.7.0")
    out = place / "converted"  # a folder that the converter makes itself
    interpreter = find_worker_python(worker) or Path(sys.executable)
    command = make_python_command(interpreter, script, "--config", folder / "config.yaml", flag, checkpoint)
    if base is not None:
        script = home / "examples/converters/convert_lora_to_hf.py"
        command = make_python_command(interpreter, script, "--base-ckpt", base, "--adapter-ckpt", checkpoint)
        command += ["--hf-model-name", _read_model_name(folder), *(["--adapter-only"] if adapter else [])]
    _run_converter(script.name, [*command, "--hf-ckpt-path", str(out)])
    if not out.is_dir():
        raise UserError(f"{script.name} wrote nothing in {interpreter}; run it in NeMo-RL's container")
    _run_converter("safetensors", make_python_command(interpreter, "-c", TO_SAFETENSORS, out))
    for file in out.iterdir():
        file.rename(place / file.name)
    out.rmdir()


def _refuse_code(folder: Path, model: str | None) -> None:
    """Refuse a model that has code of its own and that only the run's configuration names: the converter would run it.

    Args:
        folder: the checkpoint.
        model: the model that the command line names. None where it names none.

    Raises:
        UserError: for such a model, or where the command line names another one than the run.
    """
    named = _read_model_name(folder)
    if model is not None and model != named:
        raise UserError(f"--model={model}: {folder} was trained from {named}; name that, or leave --model out")
    for place in (_find_model_folder(named), folder / "policy/tokenizer"):
        if model is None and (code := find_code(place)):
            raise UserError(
                f"{folder / CONFIG} names {named}, and {place} has code of its own ({', '.join(code[:3])}), which the "
                f"converter would run; where you trust it, say --model={named}"
            )


def _read_model_name(folder: Path) -> str:
    """Return the model that a checkpoint's run started from."""
    name = Values(read_yaml(folder / CONFIG, "the run's configuration", written=True, found=WORKS)).get(
        "policy.model_name"
    )
    if not isinstance(name, str):
        raise UserError(
            f"{folder / CONFIG} names no policy.model_name, so it is no checkpoint's configuration of NeMo-RL"
        )
    return name


def _run_converter(name: str, command: Sequence[str]) -> None:
    done = run_process(command, env=make_environment(HF_HUB_OFFLINE="1"), capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{name} failed in {command[0]}: {last[:500]}; run it in NeMo-RL's container")


def _is_whole(file: Path) -> bool:
    """Return whether a safetensors file has all the bytes that its header lists."""
    try:
        return file.stat().st_size == call_limited("nemo_ada.run.weights:end_of", str(file))
    except UserError:
        return False
