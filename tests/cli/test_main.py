"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from nemo_ada import __version__
from nemo_ada.cli.main import COMMANDS, app, run_guarded
from nemo_ada.cpu.settings import load_run
from nemo_ada.errors import UserError
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.run.folder import RunDir
from nemo_ada.run.job_control import EXIT_USER_ERROR
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
CPU = ROOT / "configs" / "cpu"


def command(*arguments):
    return [sys.executable, "-m", "nemo_ada.cli", *map(str, arguments)]


@pytest.fixture
def tiny(tmp_path):
    """Arguments of a run that trains in seconds."""
    lines = [json.dumps({"prompt": f"{n:03d}=", "answer": max(f"{n:03d}")}) for n in range(1000)]
    (tmp_path / "digits.jsonl").write_text("\n".join(lines))
    return [
        CPU / "jsonl.yaml",
        f"task.path={tmp_path}/digits.jsonl",
        f"run_dir={tmp_path}/run",
        f"base.cache_dir={tmp_path}/cache",
        "base.steps=20",
        "grpo.num_prompts_per_step=16",
        "grpo.max_num_steps=400",
        "grpo.val_period=0",
        "policy.model.hidden_size=64",
        "policy.model.num_attention_heads=2",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([CPU / "mini_sudoku.yaml", "grpo.num_prompts_per_stepp=8"], "did you mean grpo.num_prompts_per_step?"),
        ([CPU / "mini_sudoku.yaml", "reinforce_ada.sampling.max_responses=3"], "needs 4 responses (k_pos + k_neg)"),
        (
            [CPU / "mini_sudoku.yaml", "reinforce_ada={preset: ada_seq_positive, sampling: {wave_size: 2}}"],
            "raise wave_size to at least 4",
        ),
        ([CPU / "mini_sudoku.yaml", "policy.megatron_cfg.tensor_model_parallel_size=3"], "1 or 2 would work"),
        ([CPU / "jsonl.yaml", "task.path=EMPTY"], "EMPTY"),
        ([CPU / "jsonl.yaml", "task.path=/nowhere.jsonl"], "/nowhere.jsonl"),
        ([CPU / "nothing.yaml"], "cannot read the configuration"),
        (["--resume", CPU / "mini_sudoku.yaml"], "such as resume=auto"),
        ([CPU / "mini_sudoku.yaml", "grpo.seed", "=", "3"], "in one word, without spaces"),
        ([CPU / "mini_sudoku.yaml", "grpo.seed", "3"], "in one word, without spaces"),
        ([ROOT / "recipes/data/chain_sum.jsonl"], "is a file of data, no configuration"),
        ([ROOT / "configs/qwen2.5-32b.yaml"], "set NEMO_RL_HOME to a checkout of NeMo-RL"),
        ([CPU / "mini_sudoku.yaml", "backend=nemo-rl"], "did you mean nemo_rl?"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("EMPTY").touch()
    before = psutil.Process().children()
    monkeypatch.delenv("NEMO_RL_HOME", raising=False)
    words = ["train", *map(str, arguments), f"run_dir={tmp_path}/run"]
    assert run_guarded(lambda: app(words, standalone_mode=False)) == 2
    told = capfd.readouterr().err
    assert message in told and "Traceback" not in told and len(told.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists() and psutil.Process().children() == before


@pytest.mark.parametrize("words", [["-h"], ["train", "-h"], ["eval", "-h"], ["eval", "run", "-h"], ["whatif", "-h"]])
def test_the_short_option_of_help_works_everywhere(words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "Usage" in done.stdout


def test_a_shell_completes_commands_and_their_options():
    for words, wanted in (("nemo-ada wh", "whatif"), ("nemo-ada whatif --th", "--threshold")):
        environment = {"_NEMO_ADA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        program = "import sys; from nemo_ada.cli.main import app; sys.argv = ['nemo-ada']; app(prog_name='nemo-ada')"
        done = subprocess.run([sys.executable, "-c", program], env=os.environ | environment, capture_output=True,
                              text=True, timeout=PATIENCE)  # fmt: skip
        assert wanted in done.stdout.split()


@pytest.mark.parametrize("module", ["nemo_ada.cli", "nemo_ada.cli.main"])
def test_a_module_of_the_command_line_is_the_command(module):
    words = [sys.executable, "-m", module, "train", "nothing.yaml"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2 and "cannot read the configuration" in done.stderr


def test_help_lists_every_command_and_imports_none_of_their_modules():
    program = """
import sys
from nemo_ada.cli.main import main
sys.argv = ["nemo-ada", "--help"]
try:
    main()
finally:
    heavy = {"numpy", "pydantic", "omegaconf", "hydra", "matplotlib", "sympy", "torch"}
    print(sorted(heavy & set(sys.modules)), sorted(m for m in sys.modules if m.startswith("nemo_ada.cli.")))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.splitlines()[-1] == "[] ['nemo_ada.cli.main']", done.stdout + done.stderr
    assert all(f" {name} " in done.stdout for name in COMMANDS)


def test_a_run_directory_of_another_configuration_is_refused(tiny, capfd):
    other = load_run(tiny[0], [*tiny[1:], "grpo.seed=5"])
    RunDir(other.folder).open(other.model_dump(mode="json"), resume=False)
    assert run_guarded(lambda: app(["train", *map(str, tiny)], standalone_mode=False)) == 2
    assert "grpo.seed: 5 -> 0" in capfd.readouterr().err


def foreign(run_dir, tiny):
    run_dir.mkdir()
    (run_dir / "thesis.tex").touch()


def purged(run_dir, tiny):
    before = load_run(tiny[0], [*tiny[1:], "resume=auto"])
    RunDir(run_dir).open(before.model_dump(mode="json"), resume=False)
    (run_dir / "pace.json").write_text(json.dumps({"saved_step": 5, "save_seconds": [], "validation_seconds": []}))


@pytest.mark.parametrize(("spoil", "message"), [(foreign, "thesis.tex"), (purged, "step 5")])
def test_a_folder_that_no_attempt_can_use_is_a_user_error(tiny, tmp_path, spoil, message):
    spoil(tmp_path / "run", tiny)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    words = ["train", *tiny, "resume=auto"]
    done = subprocess.run(command(*words), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == EXIT_USER_ERROR and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.slow
def test_ctrl_c_saves_leaves_no_process_and_resumes(tiny, tmp_path):
    metrics = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen(command("train", *tiny), cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
            assert running.poll() is None, "the run ended by itself"
            time.sleep(0.1)
        children = psutil.Process(running.pid).children(recursive=True)
        os.kill(running.pid, signal.SIGINT)
        output, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 75, output
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert alive == []
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "stopped"
    saved = status["step"]
    assert (tmp_path / "run" / "checkpoints" / f"step_{saved:06d}" / "state.json").exists()

    finish = [a for a in tiny if "max_num_steps" not in str(a)] + [f"grpo.max_num_steps={saved + 1}", "resume=auto"]
    done = subprocess.run(command("train", *finish), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == list(range(1, saved + 2))


def test_the_version_is_printed():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout.strip()) == (0, __version__)


def test_a_config_of_the_package_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(Path("configs/cpu/jsonl.yaml"), ["reinforce_ada.preset=grpo"])
    assert Path(config["task"]["path"]).is_file()
    own = tmp_path / "configs" / "cpu" / "jsonl.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("task: {name: jsonl, path: mine.jsonl}\n")
    assert load_config(Path("configs/cpu/jsonl.yaml"))["task"]["path"] == "mine.jsonl", (
        "the user's own file comes first"
    )
    with pytest.raises(UserError):
        load_config(Path("configs/cpu/nope.yaml"))


def test_a_folder_of_somebody_else_is_named_with_its_owner():
    words = """
import io, os, sys
from rich.console import Console
from nemo_ada.cli.main import run_guarded
Console(file=io.StringIO()).print("[b]:x:[/b]")  # rich imports more when it prints, and nobody may read /root
if os.getuid() == 0:
    os.setuid(65534)
sys.exit(run_guarded(lambda: os.makedirs(sys.argv[1])))
"""
    with tempfile.TemporaryDirectory() as closed:  # pytest's own folder lets no other user in
        os.chmod(closed, 0o555)
        done = subprocess.run([sys.executable, "-c", words, f"{closed}/cache"], capture_output=True, text=True)
    me = os.getuid() or 65534
    assert done.returncode == EXIT_USER_ERROR
    assert f"this process is user {me}, and {closed} belongs to user {os.getuid()}" in done.stderr


def test_whatif_waits_for_no_library_that_it_does_not_use(tmp_path):
    rows = [{"step": step, "reward": 0.4 + step / 100, "frac_reward_zero_std": 0.5} for step in range(9)]
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({"log_history": rows}))
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command("whatif", log, "--group", 8)[1:]],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "scipy.optimize" in loaded
    slow = {"torch", "transformers", "pandas", "matplotlib", "tensorboard", "sympy", "hydra", "scipy.stats", "jinja2"}
    assert not loaded & slow
