"""The wheel, as somebody installs it: fresh environments, an empty folder, no checkout, no C compiler.

Python 3.11 gets the CPU stack and trains. The other Pythons get the base, because this machine may have a CPU build of
torch for one Python only.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import nemo_ada
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name("uv")
SMALL = ["base.steps=20", "grpo.num_prompts_per_step=4", "grpo.max_num_steps=2", "grpo.val_at_start=false",
         "grpo.val_period=0", "run_dir=run"]  # fmt: skip
TINY = """
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
letters = [*"0123456789 =", "<eos>"]
words = Tokenizer(models.WordLevel(dict(zip(letters, range(99))), unk_token="="))
words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<eos>").save_pretrained("model")
LlamaForCausalLM(LlamaConfig(
    vocab_size=len(letters), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=64, eos_token_id=12, pad_token_id=12,
)).save_pretrained("model")
"""  # a model whose tokens are digits


def run(*words, cwd, **environment):
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=clean | environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def interpreter_of(version):
    """The first interpreter of a version that runs: on PATH, else among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in (f"python{version}", *sorted(pyenv.glob(f"{version}.*/bin/python"))):
        program = (
            "import sys, venv; print(sys.executable) if '%d.%d' % sys.version_info[:2] == sys.argv[1] else exit(1)"
        )
        try:
            done = subprocess.run([candidate, "-c", program, version], capture_output=True, text=True, timeout=PATIENCE)
        except OSError:
            continue
        if done.returncode == 0:
            return done.stdout.strip()
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel that was built from an sdist, and the sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(UV, "build", "--python", sys.executable, "--out-dir", out, ROOT, cwd=out)
    return next(out.glob("*.whl"))


def test_version_and_extras_are_one_story():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert nemo_ada.__version__ == "0.1.0"
    assert not any("reasoning-gym" in requirement for requirement in extras["cpu"]), "its pycosat needs a compiler"
    assert extras["embedded"] == ["nemo-ada[cpu,puzzles]"]


@pytest.mark.slow
def test_the_wheel_holds_configs_and_types_and_no_tests(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {"nemo_ada/shipped/configs/cpu/jsonl.yaml", "nemo_ada/shipped/recipes/data/chain_sum.jsonl"}
    assert shipped | {"nemo_ada/py.typed", "nemo_ada/lab/report/page.html", "nemo_ada/config/presets.yaml"} <= names
    of_checkout = {f"nemo_ada/shipped/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    assert of_checkout <= names
    assert not any(name.startswith(("tests/", "recipes/", "configs/")) for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_base_runs_in_an_empty_folder(python, wheel, tmp_path):
    interpreter = interpreter_of(python)
    if interpreter is None:
        pytest.skip(f"no Python {python} here")
    environment, work = tmp_path / "venv", tmp_path / "empty"
    work.mkdir()
    run(UV, "venv", "--python", interpreter, environment, cwd=work)
    # No source distribution is built, so no compiler is needed.
    run(UV, "pip", "install", "--python", environment / "bin/python", "--only-binary", ":all:", wheel, cwd=work)
    command = environment / "bin" / "nemo-ada"
    assert run(command, "--version", cwd=work).strip() == "0.1.0"
    rows = json.loads(run(command, "simulate", "--preset", "grpo", "--seeds", "1", "--json", cwd=work))
    assert rows[0]["responses"]["value"] == 256
    log = work / "log.jsonl"
    log.write_text("".join(json.dumps({"prompt": i // 4, "reward": i % 3 % 2, "tokens": 9}) + "\n" for i in range(400)))
    found = json.loads(run(command, "whatif", log, "--preset", "grpo", "--json", cwd=work))
    assert found["log"]["groups"] == 100
    steps = [{"step": t, "reward": 0.4, "frac_reward_zero_std": 0.5 + t % 2 / 10} for t in range(20)]
    (work / "trainer_state.json").write_text(json.dumps({"log_history": steps}))
    refused = subprocess.run([command, "eval", ".", "--data", "nothing"], cwd=work, capture_output=True, text=True)
    assert "math500" in refused.stderr, "the benchmarks of configs/eval are in the wheel"
    assert "55 % of your groups" in run(command, "whatif", "trainer_state.json", "--group", "8", cwd=work)
    have_torch = "import importlib.util as u; print(u.find_spec('torch') is not None)"
    assert run(environment / "bin" / "python", "-c", have_torch, cwd=work).strip() == "False"


@pytest.mark.slow
def test_one_command_answers_from_a_checkout_without_an_installation(tmp_path):
    (tmp_path / "log.jsonl").write_text(
        "".join(json.dumps({"prompt": i // 4, "reward": i % 2}) + "\n" for i in range(80))
    )
    folders = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    where = {"UV_FIND_LINKS": folders} if folders else {}
    words = ("tool", "run", "--python", sys.executable, "--from", ROOT, "nemo-ada", "whatif", "log.jsonl")
    assert "0 % of your groups" in run(UV, *words, cwd=tmp_path, **where)


AT_HAND = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the CPU build of torch that is at hand is for 3.11"
)


def installed(folder, *packages):
    """A fresh environment with these packages and a CPU build of torch. Returns its folder of programs."""
    environment = folder / "venv"
    run(UV, "venv", "--python", sys.executable, environment, cwd=folder)
    folders = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    torch = {"UV_FIND_LINKS": folders} if folders else {"UV_TORCH_BACKEND": "cpu"}
    run(UV, "pip", "install", "--python", environment / "bin/python", "--only-binary", ":all:", *packages,
        cwd=folder, **torch)  # fmt: skip
    return environment / "bin"


@pytest.mark.slow
@AT_HAND
def test_the_laptops_road_in_an_empty_folder(wheel, tmp_path):
    """Train, stand, export, evaluate twice with defaults, compare, report."""
    programs, work = installed(tmp_path, f"nemo-ada[cpu] @ file://{wheel}"), tmp_path / "empty"
    work.mkdir()
    ada = programs / "nemo-ada"
    run(ada, "train", "configs/cpu/jsonl.yaml", *SMALL, cwd=work)
    steps = [json.loads(line)["step"] for line in (work / "run/metrics.jsonl").read_text().splitlines()]
    assert max(steps) == 2
    assert "done" in run(ada, "status", "run", cwd=work)
    run(ada, "export", "run", cwd=work)
    assert "run/eval/step_000002" in run(ada, "eval", "run/hf/step_000002", "--k", "2", cwd=work)
    run(ada, "eval", "run/hf/step_000002", "--k", "2", "--seed", "1", "--out", "e", cwd=work)
    found = json.loads((work / "e" / "results.json").read_text())
    assert found["overall"]["prompts"] == len((work / "run/heldout.jsonl").read_text().splitlines())
    assert "overall" in run(ada, "eval", "compare", "run/eval/step_000002", "e", cwd=work)
    run(ada, "report", "run", "--out", "report.html", cwd=work)
    assert (work / "report.html").stat().st_size > 10_000


@pytest.mark.slow
@AT_HAND
def test_trls_road(wheel, tmp_path):
    """The page's packages and its script, with a tiny model in place of Qwen's and one step."""
    page = (ROOT / "recipes/guide/trl.md").read_text(encoding="utf-8")
    extra = re.search(r"pip install \. '(trl.*?)'", page)[1]
    programs = installed(tmp_path, f"nemo-ada @ file://{wheel}", extra)
    script = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    small = "max_steps=1, report_to='none', use_cpu=True, max_completion_length=4, output_dir='out', num_generations="
    script = script.replace("num_generations=", small, 1).replace("Qwen/Qwen2.5-0.5B", "model")
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{number} =", "answer": str(number)}) + "\n" for number in range(16))
    )
    (tmp_path / "model.py").write_text(TINY)
    run(programs / "python", "model.py", cwd=tmp_path)
    assert "ada/pool_reward" in run(programs / "python", "script.py", cwd=tmp_path)
