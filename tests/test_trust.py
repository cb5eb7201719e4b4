"""Nothing that was only found is used: not from the working folder, a model, a run, or their parents.

Every kind of file is planted as a download (it belongs to its user) and as a second user. What ran or was read leaves
a file or a text behind. The commands are whole processes, started as a user starts them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.marks import allow, allowed, check_wandb, named
from tests.lab.data.fake_server import completion, model_folder, serving
from tests.patience import PATIENCE
from tests.people import OTHER, needs_two_users

pytestmark = pytest.mark.long  # whole commands
ROOT = Path(__file__).resolve().parents[1]
TOKEN = "hf_" + "Planted7" * 4
TOOL = Path(sys.executable).with_name("nemo-ada")
CODE = """
import os
with open({where!r}, "a") as out:
    out.write("%s HF_TOKEN=%s\\n" % (__name__, os.environ.get("HF_TOKEN")))
def f(response, reference):
    return 1.0
"""
PEOPLE = [pytest.param(0, id="download"), pytest.param(OTHER, id="second user", marks=needs_two_users)]


def run(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the hub's token in its environment, as a user's shell has it."""
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    return subprocess.run(
        [TOOL, *map(str, words)], cwd=cwd, env={**variables, "HF_TOKEN": TOKEN, **environment}, capture_output=True,
        text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that all users may write to, as /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def plant(folder: Path, owner: int, **texts: str) -> None:
    """Write files of this owner. `a__b` stands for a.b in a name."""
    for name, text in texts.items():
        path = folder / name.replace("__", ".")
        path.write_text(text)
        if owner:
            os.chown(path, owner, owner)


def ran(folder: Path) -> str:
    """What planted code has left."""
    return (folder / "ran").read_text() if (folder / "ran").exists() else ""


def heldout(folder: Path, owner: int, reward: str) -> None:
    """Plant held-out problems with a reward, and the module of the reward."""
    where = str(folder / "ran")
    (folder / "ran").touch()
    (folder / "ran").chmod(0o666)
    plant(
        folder, owner, heldout__yaml=f"name: heldout\nsource: heldout.jsonl\nreward: {reward}\n"
        "max_prompt_tokens: 8\nmax_new_tokens: 8\n",
        heldout__jsonl=json.dumps({"problem": "1+1", "answer": "2"}) + "\n",
        planted_reward__py=CODE.format(where=where),
    )  # fmt: skip


@pytest.mark.parametrize("owner", PEOPLE)
def test_eval_uses_no_heldout_problems_that_nobody_named(shared: Path, owner: int) -> None:
    model = model_folder(shared / "run" / "model")
    heldout(shared, owner, "planted_reward:f")
    done = run("eval", model, "--server", "http://127.0.0.1:9", "--out", shared / "out", cwd=shared)
    assert done.returncode == 2 and "heldout.yaml" in done.stderr and "nemo-ada allow" in done.stderr, done.stderr
    assert ran(shared) == ""


@pytest.mark.parametrize("owner", PEOPLE)
@pytest.mark.parametrize("reward", ["planted_reward:f", "sympy:simplify"])
def test_eval_runs_no_reward_that_only_a_file_names(shared: Path, owner: int, reward: str) -> None:
    model = model_folder(shared / "run" / "model")
    heldout(shared, owner, reward)
    words = ["eval", model, "--data", "heldout.yaml", "--server", "http://127.0.0.1:9", "--out", shared / "out"]
    done = run(*words, cwd=shared)
    assert done.returncode == 2 and f"--reward {reward}" in done.stderr and "was found" in done.stderr, done.stderr
    assert ran(shared) == ""


def test_what_is_named_or_allowed_is_used(shared: Path) -> None:
    """The refusals' own advice works, one way after the other."""
    model = model_folder(shared / "run" / "model")
    heldout(shared, 0, "planted_reward:f")
    with serving(model, lambda _asked: completion("2")) as server:
        words = ["eval", model, "--server", server.url, "-k", "1"]
        for number, more in enumerate(
            (["--data", "heldout.yaml", "--reward", "planted_reward:f"], ["--data", "heldout.yaml"], [])
        ):
            done = run(*words, *more, "--out", shared / f"out{number}", cwd=shared)
            assert done.returncode == 0, done.stderr
            assert "planted_reward" in ran(shared)
            (shared / "ran").write_text("")
            allow(shared / "planted_reward.py")
            if number:
                allow(shared / "heldout.yaml")


@pytest.mark.parametrize("owner", PEOPLE)
def test_train_runs_no_reward_of_a_yaml_of_a_download(shared: Path, owner: int) -> None:
    rows = "".join(json.dumps({"problem": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(40))
    plant(
        shared, owner, config__yaml="task: {name: jsonl, path: rows.jsonl, reward: planted_reward:f}\n",
        rows__jsonl=rows, planted_reward__py=CODE.format(where=str(shared / "ran")),
    )  # fmt: skip
    for command in ("check", "train", "config"):
        done = run(command, "config.yaml", cwd=shared)
        assert done.returncode == 2 and "task.reward=planted_reward:f" in done.stdout + done.stderr
    assert ran(shared) == ""


@pytest.mark.parametrize("owner", PEOPLE)
def test_no_site_file_that_was_found_is_run(shared: Path, owner: int) -> None:
    shared.chmod(0o1777 if owner else 0o755)
    (shared / "slurm").mkdir()
    plant(shared / "slurm", owner, lib__sh="", site__env=f'echo "site $HF_TOKEN" >>{shared}/ran\nRUN_ROOT=/\n')
    if owner:
        os.chown(shared / "slurm", owner, owner)
    (shared / "below").mkdir()
    for words in (["status"], ["check", "configs/cpu/mini_sudoku.yaml", "--no-verifier"], ["plan", "--help"]):
        for place in (shared, shared / "below"):
            run(*words, cwd=place)
    assert ran(shared) == ""


@pytest.mark.parametrize("owner", PEOPLE)
def test_a_preset_of_the_working_folder_is_not_the_one_of_the_package(shared: Path, owner: int) -> None:
    model = model_folder(shared / "model")
    (shared / "configs" / "eval").mkdir(parents=True)
    heldout(shared, owner, "planted_reward:f")
    text = (shared / "heldout.yaml").read_text().replace("heldout", "math500", 1)
    plant(shared / "configs" / "eval", owner, math500__yaml=text.replace("heldout.jsonl", f"{shared}/heldout.jsonl"))
    run("eval", model, "--data", "math500", "--server", "http://127.0.0.1:9", "--out", shared / "out", cwd=shared)
    assert ran(shared) == ""


@pytest.mark.parametrize("form", ["absolute", "link", "above", "working folder"])
def test_a_prompt_file_from_outside_of_the_config_is_refused(shared: Path, form: str) -> None:
    (shared / "download" / "prompts").mkdir(parents=True)
    (shared / "prompts").mkdir()
    for private in (shared / "private.txt", shared / "prompts" / "p.txt"):
        private.write_text(TOKEN)
    (shared / "download" / "prompts" / "link.txt").symlink_to(shared / "private.txt")
    name = {"absolute": str(shared / "private.txt"), "link": "prompts/link.txt"}.get(form, "prompts/p.txt")
    config = shared / "download" / "config.yaml"
    config.write_text(f"cluster: {{}}\ndata: {{default: {{system_prompt_file: {name}}}}}\n")
    where = shared if form == "working folder" else shared / "download"
    done = run("config", config, cwd=where)
    assert done.returncode == 2 and "was found and not named" in done.stderr, done.stdout + done.stderr
    done = run("config", config, f"data.default.system_prompt_file={name}", cwd=where)
    assert "was found" not in done.stderr


def test_no_settings_of_wandb_that_were_found_name_its_server(tmp_path: Path, monkeypatch) -> None:
    """W&B reads wandb/settings of the working folder, and sends its key to the server that stands there."""
    file = tmp_path / "wandb" / "settings"
    file.parent.mkdir()
    file.write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="wandb/settings was found and not named"):
        check_wandb(tmp_path / "run")
    allow(file)
    check_wandb(tmp_path / "run")


def test_a_mark_of_another_user_or_for_another_content_does_not_count(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    file = tmp_path / "heldout.yaml"
    file.write_text("a: 1\n")
    assert not allowed(file)
    allow(file)
    assert allowed(file) and not allowed(tmp_path / "none.yaml")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "heldout.yaml").write_text("a: 1\n")
    assert not allowed(tmp_path / "copy" / "heldout.yaml"), "another path"
    file.write_text("a: 2\n")
    assert not allowed(file)
    allow(file)
    (tmp_path / "home" / "nemo_ada" / "allowed").chmod(0o777)
    assert not allowed(file), "anybody could have made the mark"


def test_a_name_counts_where_it_is_a_whole_one() -> None:
    assert named("a:b", ["task.reward=a:b"]) and named("a:b", ["x={kind: own, name: a:b}"])
    assert not any(named("a:b", [word]) for word in ("run_dir=a:bc", "x=xa:b", "x=z.a:b", "x=a:b.c", ""))


def test_allowing_what_is_not_there_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = run("allow", "none.yaml", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
