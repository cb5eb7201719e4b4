"""The audit: every kind of file that a command could find lies everywhere, and every command runs.

Code, settings, presets, problems, prompt files and pipes are planted in the working folder, a model, a data set, a run
and their parents, as a download and as a second user. Nothing of it runs, no command hangs, and the token stays here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.lab.data.fake_server import model_folder
from tests.lab.report.made_runs import make_run
from tests.people import OTHER
from tests.test_trust import PEOPLE, TOKEN, run

pytestmark = pytest.mark.slow
MODULES = (
    "json", "re", "sympy", "megatron", "torch", "vllm", "numpy", "yaml", "nemo_ada", "nemo_rl", "transformers", "typer",
    "pydantic", "hydra", "omegaconf", "matplotlib", "pandas", "scipy", "jinja2", "tensorboard", "huggingface_hub",
    "datasets", "pyarrow", "safetensors", "sitecustomize", "usercustomize", "multiprocessing", "subprocess", "planted",
    "conftest", "setup", "math_verify", "latex2sympy2_extended", "uvloop", "modeling", "configuration",
)  # fmt: skip
CODE = "with open({where!r}, 'a') as out: out.write(__file__ + chr(10))\ndef f(*_a, **_k): return 1.0\n"
SITE = "echo site >>{where}\nRUN_ROOT={folder}\nHF_ENDPOINT=http://127.0.0.1:9\nNEMO_RL_HOME={folder}\n"
EVAL = "name: NAME\nsource: {folder}/heldout.jsonl\nreward: planted:f\nmax_prompt_tokens: 8\nmax_new_tokens: 8\n"
COMMANDS = (
    "train config.yaml grpo.max_num_steps=1 run_dir={out}/train", "train configs/cpu/mini_sudoku.yaml grpo.no_such=1",
    "status", "status {run}", "simulate", "whatif {run}", "whatif {data}", "check config.yaml --no-verifier",
    "check configs/cpu/mini_sudoku.yaml", "check configs/qwen2.5-math-7b.yaml --no-verifier --site",
    "config config.yaml",
    "config nemo.yaml", "plan configs/qwen2.5-math-7b.yaml", "plan nemo.yaml", "prepare configs/qwen2.5-math-7b.yaml",
    "rehearse configs/qwen2.5-math-7b.yaml", "eval {model} --server http://127.0.0.1:9",
    "eval {model} --data math500 --server http://127.0.0.1:9 --out {out}/eval1",
    "eval {model} --data heldout.yaml --server http://127.0.0.1:9 --out {out}/eval2",
    "data prepare {data} --out {out}/set --verifier exact", "export {run} --out {out}/hf",
    "report {run} --out {out}/r.html",
)  # fmt: skip


def planted(folder: Path, where: Path, owner: int) -> None:
    """Plant one file of every kind in a folder."""
    files = {f"{name}.py": CODE.format(where=str(where)) for name in MODULES}
    files |= {
        "slurm/lib.sh": f"echo lib >>{where}\n",
        "slurm/site.env": SITE.format(where=where, folder=folder),
        "site.env": SITE.format(where=where, folder=folder),
        "heldout.yaml": EVAL.format(folder=folder).replace("NAME", "heldout"),
        "heldout.jsonl": json.dumps({"problem": "1+1", "answer": "2"}) + "\n",
        "configs/eval/math500.yaml": EVAL.format(folder=folder).replace("NAME", "math500"),
        "configs/common/boxed.txt": "planted prompt",
        ".cache/rehearsal/policy/bin/python": f"#!/bin/sh\necho python >>{where}\n",
        ".cache/rehearsal/vllm/bin/python": f"#!/bin/sh\necho python >>{where}\n",
        ".venv/bin/nemo-ada": f"#!/bin/sh\necho tool >>{where}\n",
        "config.yaml": f"task: {{name: jsonl, path: {folder}/heldout.jsonl, reward: 'planted:f'}}\n",
        "nemo.yaml": "cluster: {}\ndata: {default: {system_prompt_file: ../private.txt}}\n"
        "env: {x: {class: planted.f}}\nlogger: {wandb: {project: '${oc.env:HF_TOKEN}'}}\n",
        "matplotlibrc": "backend: module://planted\n",
        "pyvenv.cfg": "home = .\n", ".netrc": "machine h login l password p\n",
    }  # fmt: skip
    for name, text in files.items():
        path = folder / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        for one in (path, path.parent) if path.parent != folder else (path,):
            os.chown(one, owner, owner)


@pytest.mark.parametrize("owner", PEOPLE)
def test_no_command_uses_what_was_only_found(tmp_path: Path, owner: int) -> None:
    shared, where = tmp_path / "shared", tmp_path / "ran"
    for folder in (shared / "runs", shared / "data"):
        folder.mkdir(parents=True)
    shared.chmod(0o1777 if owner else 0o755)
    where.touch()
    where.chmod(0o666)
    (shared / "private.txt").write_text(TOKEN)
    places = {
        "run": make_run(shared / "runs" / "first", 3), "model": model_folder(shared / "runs" / "model"),
        "data": shared / "data" / "x.jsonl", "out": tmp_path / "out",
    }  # fmt: skip
    places["data"].write_text('{"problem": "1+1", "answer": "2"}\n' * 20)
    for folder in (shared, shared / "runs", shared / "data", places["run"], places["model"]):
        planted(folder, where, owner)
    (shared / "runs" / "pipe").mkdir()
    os.mkfifo(shared / "runs" / "pipe" / "status.json")
    said = ""
    for place in (shared, places["run"]):
        for words in COMMANDS:
            done = run(*words.format(**places).split(), cwd=place, NEMO_RL_HOME="", RUN_ROOT="", HF_HUB_OFFLINE="1")
            said += done.stdout + done.stderr
            assert "Traceback" not in done.stderr, (words, done.stderr[-1500:])
            assert where.read_text() == "", (words, place)
        if owner == OTHER:
            break  # the working folder of a second user is the shared one
    assert TOKEN not in said
    written = [path for path in places["out"].rglob("*") if path.is_file()]
    assert [path for path in written if TOKEN.encode() in path.read_bytes()] == []
