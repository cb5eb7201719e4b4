"""`nemo-ada export` writes the newest complete checkpoint of a run as a Hugging Face folder.

A checkpoint of the CPU back end contains such a folder. NeMo-RL's own examples/converters convert its checkpoints, in
the interpreter of its Megatron workers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nemo_ada.cluster.hub import missing_files
from nemo_ada.cluster.nemo_config import HOME
from nemo_ada.cluster.site import site_setting, worker_python
from nemo_ada.errors import UserError
from nemo_ada.run_folder.files import MANIFEST, verify_folder, write_folder
from nemo_ada.run_folder.folder import RunDir

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


def export(run: Path, *, step: int | None, out: Path | None, say: Callable[[str], object]) -> Path:
    """Write the folder, check it file by file, and return it. Raises UserError."""
    folder = newest(run, step)
    target = out or run / "hf" / folder.name
    if target.exists():
        raise UserError(f"{target} is there already; name another folder with --out, or remove it")
    say(f"{folder} -> {target}")

    def fill(place: Path) -> None:
        if (folder / "hf").is_dir():
            shutil.copytree(folder / "hf", place, dirs_exist_ok=True)
        else:
            _convert(folder, place)
        for file in (folder / "policy/tokenizer").glob("*"):
            if not (place / file.name).exists():
                shutil.copy2(file, place)
        broken = [file.name for file in place.glob("*.safetensors") if not _whole(file)]
        broken += missing_files(place, weights=True)
        if broken:
            raise UserError(f"{target} would not be whole: {', '.join(broken[:5])}; export again")

    write_folder(target, fill)
    size = sum(file.stat().st_size for file in target.glob("*.safetensors"))
    say(f"{target}: {size / 2**20:,.0f} MiB of weights, for transformers and vLLM")
    return target


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
    raise UserError(
        f"{run} has no complete checkpoint{'' if step is None else f' of step {step}'}; name a run's folder"
    )


def _convert(folder: Path, place: Path) -> None:
    """Run NeMo-RL's converter for Megatron's or DTensor's files, or copy what DTensor saved for Hugging Face."""
    weights, home = folder / "policy/weights", Path(site_setting(HOME) or ".missing")
    iterations = sorted(weights.glob("iter_*"))
    if (weights / "model/consolidated").is_dir():
        shutil.copytree(weights / "model/consolidated", place, dirs_exist_ok=True)
        return
    kind, flag, checkpoint, worker = (
        ("megatron", "--megatron-ckpt-path", iterations[-1], "megatron")
        if iterations
        else ("dcp", "--dcp-ckpt-path", weights, "dtensor|automodel")
    )
    script = home / f"examples/converters/convert_{kind}_to_hf.py"
    if not script.is_file():
        raise UserError(f"{HOME}={home} has no {script.name}; set it to a checkout of NeMo-RL v0.7.0")
    out = place / "converted"  # a folder that the converter makes itself
    python = worker_python(worker) or Path(sys.executable)
    _run(script.name, [python, script, "--config", folder / "config.yaml", flag, checkpoint, "--hf-ckpt-path", out])
    if not out.is_dir():
        raise UserError(f"{script.name} wrote nothing in {python}; run it in NeMo-RL's container")
    _run("safetensors", [python, "-c", TO_SAFETENSORS, out])
    for file in out.iterdir():
        file.rename(place / file.name)
    out.rmdir()


def _run(name: str, command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{name} failed in {command[0]}: {last[:500]}; run it in NeMo-RL's container")


def _whole(file: Path) -> bool:
    """Whether a safetensors file has all the bytes that its header lists."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            header = json.loads(stream.read(min(length, 1 << 28)))
        except ValueError:
            return False
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    return file.stat().st_size == 8 + length + end
