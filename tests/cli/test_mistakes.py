"""Slips of new users: each ends with exit code 2, names what is wrong, and has a remedy that works."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

from nemo_ada.cli.main import app, run_guarded

S, Q = "configs/cpu/mini_sudoku.yaml", "configs/qwen2.5-math-7b.yaml"
WHOLE = "task: {name: mini_sudoku}\nreinforce_ada: {preset: grpo}\n"
# what a user types | what the message must name | what the message says to do, as a line that then works. `config` in
# place of `train` resolves the same settings without training. None: the remedy needs a run, a model or NeMo-RL.
SLIPS = [
    (f"train run_dir=x {S}", "run_dir=x", f"config {S} run_dir=x"),
    (f"train {S} 'a = b'", "a = b", None),
    (f"train {S} grpo.max_num_steps = 5", "grpo.max_num_steps", f"config {S} grpo.max_num_steps=5"),
    (f"train {S} --max-steps 5", "--max-steps", f"config {S} grpo.max_num_steps=5"),
    (f"train {S} lr=1e-4", "lr", f"config {S} policy.megatron_cfg.optimizer.lr=1e-4"),
    (f"train {S} seed=3", "seed", f"config {S} grpo.seed=3"),
    (f"train {S} preset=ada_single", "preset", f"config {S} reinforce_ada.preset=ada_single"),
    (f"train {S} learning_rate=1e-4", "learning_rate", f"config {S} policy.megatron_cfg.optimizer.lr=1e-4"),
    (f"train {S} num_generations=8", "num_generations", f"config {S} grpo.num_generations_per_prompt=8"),
    (f"train {S} steps=5", "steps", f"config {S} grpo.max_num_steps=5"),
    (f"train {S} batch_size=8", "batch_size", f"config {S} grpo.num_prompts_per_step=8"),
    (f"train {S} temperature=0.7", "temperature", f"config {S} policy.generation.temperature=0.7"),
    (f"train {S} grpo.steps=5", "grpo.steps", f"config {S} grpo.max_num_steps=5"),
    (f"train {S} grpo.lr=1e-4", "grpo.lr", f"config {S} policy.megatron_cfg.optimizer.lr=1e-4"),
    (f"train {S} reinforce_ada.presets=ada_single", "presets", f"config {S} reinforce_ada.preset=ada_single"),
    (f"train {S} reinforce_ada.preset=ada_singel", "ada_singel", f"config {S} reinforce_ada.preset=ada_single"),
    (f"train {S} reinforce_ada.preset=ada-single", "ada-single", f"config {S} reinforce_ada.preset=ada_single"),
    (f"train {S} reinforce_ada.max_responses=8", "max_responses", f"config {S} reinforce_ada.sampling.max_responses=8"),
    (f"train {S} reinforce_ada.cap=8", "reinforce_ada.cap", f"config {S} reinforce_ada.sampling.max_responses=8"),
    ("train configs/cpu/mini-sudoku.yaml", "mini-sudoku.yaml", f"config {S}"),
    ("train configs/cpu/mini_sudoko.yaml", "mini_sudoko.yaml", f"config {S}"),
    ("train mini_sudoku", "mini_sudoku", f"config {S}"),
    (f"train {S} configs/methods/ada_single.yaml", "ada_single.yaml", "configs/methods/ada-single.yaml"),
    (f"train {S} ada-single.yaml", "ada-single.yaml", "configs/methods/ada-single.yaml"),
    (f"train {S} configs/methods/single.yaml", "single.yaml", "configs/methods/ada-single.yaml"),
    ("train", f"nemo-ada train {S}", f"config {S}"),
    ("trian x", "trian", "train --help"),
    ("train --resume", "--resume", f"config {S} resume=auto"),
    (f"train {S} resume=yes", "resume", f"config {S} resume=auto"),
    (f"train {S} grpo.max_num_steps=five", "grpo.max_num_steps", f"config {S} grpo.max_num_steps=8"),
    (f"train {S} grpo.max_num_steps=-1", "grpo.max_num_steps", f"config {S} grpo.max_num_steps=1"),
    (f"train {S} --config {S}", "--config", f"config {S} grpo.max_num_steps=5"),
    (f"train {S} logger.tensorbord=false", "tensorbord", f"config {S} logger.tensorboard=false"),
    (f"train {S} logger.tensorboard=nope", "logger.tensorboard", f"config {S} logger.tensorboard=true"),
    (f"check {S} lr=1e-5 --no-verifier", "lr", f"config {S} policy.megatron_cfg.optimizer.lr=1e-5"),
    (f"check {Q} preset=grpo --no-verifier", "NEMO_RL_HOME", None),
    (f"check {Q} lr=1e-6 --no-verifier", "NEMO_RL_HOME", None),
    ("check configs/qwen2.5_math_7b.yaml --no-verifier", "qwen2.5_math_7b.yaml", Q),
    ("check qwen2.5-math-7b --no-verifier", "qwen2.5-math-7b", Q),
    (f"plan {S}", "--run", None),
    (f"plan {Q} --time 4", "NEMO_RL_HOME", None),
    (f"plan {Q} --price", "--price", None),
    (f"plan {Q} --price inf", "--price", None),
    (f"plan {Q} --cold-start -5000", "--cold-start=-5000.0: input should be greater than or equal to 0", None),
    (f"plan {Q} --cold-start nan", "--cold-start=nan", None),
    (f"plan {Q} --run-steps 2", "--run-steps=2: input should be greater than or equal to 3", None),
    (f"plan {Q} --step-seconds 0", "--step-seconds=0.0: input should be greater than 0", None),
    (f"rehearse {S}", f"nemo-ada train {S}", f"config {S} grpo.max_num_steps=5"),
    ("report", "runs", None),
    ("report runs/nothing", "runs/nothing", None),
    ("report my.yaml", "my.yaml", None),
    ("eval run rundir", "rundir/hf/step_12", None),
    ("eval rundir --data d.jsonl", "rundir/hf/step_12", None),
    ("export rundir", "rundir", None),
    ("export nothing", "nothing", None),
    ("export rundir --public", "--public", None),
    ("whatif", "nemo-ada whatif runs/grpo/logs", "whatif --help"),
    ("whatif nothing.jsonl", "nothing.jsonl", "whatif --help"),
    ("whatif log.json", "log.json", "whatif --help"),
    ("whatif empty.jsonl", "empty.jsonl", "whatif --help"),
    ("whatif roll.jsonl", "roll.jsonl", "whatif roll.jsonl --column prompt=problem_text --column reward=my_score"),
    ("whatif one.jsonl", "groups", "whatif one.jsonl --column prompt=task"),
    ("whatif state", "--group", "whatif state --group 8"),
    ("whatif sft --group 8", "--column", "whatif sft --group 8 --column reward=loss"),
    (f"whatif {Q}", Q, "whatif --help"),
    ("whatif state --column reward", "--column=reward: write", None),
    ("whatif state --column rewards=x", "--column=rewards=x", None),
    ("whatif state --group 1", "--group=1", "whatif state --group 2"),
    ("whatif state --threshold nan", "--threshold=nan", None),
    ("whatif state --group 8 --max-responses 1", "--max-responses", "whatif state --group 8 --max-responses 16"),
    ("whatif state --group 8 --preset ada_est_ema", "simulate --preset ada_est_ema", None),
    ("config", S, f"config {S}"),
    ("status nothing", "nothing", None),
    ("status nothing --watch inf", "--watch", None),
    ("train my.yaml", "overlay", f"config {S}"),
    ("train tabs.yaml", "tabs.yaml", "config spaces.yaml"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the lines name. There is no checkout of NeMo-RL."""
    for name in ("state", "sft", "rundir/hf/step_5", "rundir/hf/step_12"):
        (tmp_path / name).mkdir(parents=True)
    curve = [{"step": i, "reward": 0.4, "frac_reward_zero_std": 0.5 + i % 2 / 10} for i in range(9)]
    lines = {
        "roll.jsonl": [{"problem_text": f"a{i // 4}", "my_score": i % 2} for i in range(40)],
        "one.jsonl": [{"prompt": f"a{i}", "task": f"t{i // 4}", "reward": i % 2} for i in range(40)],
        "d.jsonl": [{"question": "2+2", "solution": "4"}],
        "rundir/metrics.jsonl": [{"step": 1}],
        "empty.jsonl": [],
    }
    texts = {
        "log.json": "{}",
        "my.yaml": "run_dir: x\ngrpo: {lr: 1}\n",
        "tabs.yaml": WHOLE + "grpo:\n\tseed: 1\n",
        "spaces.yaml": WHOLE + "grpo:\n  seed: 1\n",
        "state/trainer_state.json": json.dumps({"log_history": curve}),
        "sft/trainer_state.json": json.dumps({"log_history": [{"step": i, "loss": 0.4} for i in range(9)]}),
        **{name: "".join(json.dumps(row) + "\n" for row in rows) for name, rows in lines.items()},
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NEMO_RL_HOME", raising=False)
    return tmp_path


def told(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a line as the entry point does. Returns the exit code and all that was printed."""
    done = CliRunner().invoke(app, shlex.split(line))
    code, text = done.exit_code, done.output
    if done.exception is not None and not isinstance(done.exception, SystemExit):

        def again() -> None:
            raise done.exception

        code = run_guarded(again)
        text += capsys.readouterr().err
    return code, " ".join(text.split())


@pytest.mark.parametrize(("line", "names", "remedy"), SLIPS, ids=[line for line, *_ in SLIPS])
def test_a_slip_is_named_and_its_remedy_works(line, names, remedy, folder, capsys):
    code, text = told(line, capsys)
    assert code == 2 and "Traceback" not in text, text
    assert names in text, text
    if remedy is None:
        assert re.search(r"`nemo-ada |--[a-z]+|set |name |write |give |VALUE|export ", text), text
        return
    typed = {word.partition("=")[0] for word in shlex.split(line)}
    keys = {word.partition("=")[0] for word in shlex.split(remedy) if re.match(r"--|[a-z_]+(\.[a-z_]+)+=", word)}
    assert all(key in text for key in keys - typed - {"--help"}), text  # the message has what the remedy adds
    if not remedy.startswith("configs/"):
        code, text = told(remedy, capsys)
        assert code == 0, text
    else:
        assert remedy in text, text


def test_the_list_has_64_slips_or_more():
    assert len(SLIPS) >= 64 and len({line for line, *_ in SLIPS}) == len(SLIPS)
