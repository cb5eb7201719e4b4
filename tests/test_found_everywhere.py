"""The audit: every kind of file that a command could find lies everywhere, and every command runs.

Code, compiled code, settings, entry points, presets, problems, prompt files and pipes are planted in the working
folder, a model, a data set, a run and their parents, as a download and as a second user. Nothing of it runs, no command
hangs, and the token stays here. What the user has named runs, as it always did.
"""

from __future__ import annotations

import json
import os
import py_compile
import re
import shutil
import subprocess
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from nemo_ada.config.paths import resolve_folder_or_repository
from nemo_ada.errors import UserError
from nemo_ada.nemo.launch.server import PUBLIC, VARIABLE, set_wandb_server
from nemo_ada.rules.check.site import find_job_folder
from nemo_ada.rules.facts import site
from nemo_ada.run.folder import RunDir
from nemo_ada.standing import (
    get_users_folder,
    get_users_temporary,
    get_whole_path,
    share_temporary,
    show_path,
    stand_in,
)
from nemo_ada.tasks.reasoning import MiniSudoku
from nemo_ada.tasks.settings import MiniSudokuSettings
from tests.lab.data.fake_server import completion, model_folder, serving
from tests.lab.report.made_runs import make_run
from tests.people import OTHER, needs_two_users
from tests.planted import PEOPLE, TOKEN, TOOL, run

MODULES = (
    "json", "re", "sympy", "megatron", "torch", "vllm", "numpy", "yaml", "nemo_ada", "nemo_rl", "transformers", "typer",
    "pydantic", "hydra", "omegaconf", "matplotlib", "pandas", "scipy", "jinja2", "tensorboard", "huggingface_hub",
    "datasets", "pyarrow", "safetensors", "sitecustomize", "usercustomize", "multiprocessing", "subprocess", "planted",
    "conftest", "setup", "math_verify", "latex2sympy2_extended", "uvloop", "modeling", "configuration", "flash_attn",
    "xformers", "apex", "deepspeed", "fbgemm_gpu", "google", "colorama", "ipdb", "antigravity",
)  # fmt: skip
CODE = "with open({where!r}, 'a') as out: out.write(__file__ + chr(10))\ndef f(*_a, **_k): return 1.0\n"
REWARD = "def score(response, reference):\n    return float(str(reference) in response)\n"
SITE = "echo site >>{where}\nRUN_ROOT={folder}\nHF_ENDPOINT=http://127.0.0.1:9\nNEMO_RL_HOME={folder}\n"
EVAL = "name: NAME\nsource: {folder}/heldout.jsonl\nmax_prompt_tokens: 8\nmax_new_tokens: 8\n"
PRIVATE = re.compile(r"/nemo-ada-\w{8}\b")
GROUPS = ("vllm.general_plugins", "vllm.platform_plugins", "pytest11", "console_scripts", "torch.backends",
          "transformers", "hydra.plugins", "pydantic", "tensorboard_plugins", "fsspec.specs")  # fmt: skip
ENTRY_POINTS = "".join(f"[{group}]\nevil = planted:f\n" for group in GROUPS)
COMMANDS = (
    "train config.yaml grpo.max_num_steps=1 run_dir={out}/train", "train configs/cpu/mini_sudoku.yaml grpo.no_such=1",
    "status", "status {run}", "simulate", "whatif {run}", "whatif {data}", "check config.yaml --no-verifier",
    "check configs/cpu/mini_sudoku.yaml", "check configs/qwen2.5-math-7b.yaml --no-verifier --site",
    "config config.yaml",
    "config nemo.yaml", "plan configs/qwen2.5-math-7b.yaml", "plan nemo.yaml", "prepare configs/qwen2.5-math-7b.yaml",
    "rehearse configs/qwen2.5-math-7b.yaml", "eval {model} --server http://127.0.0.1:9",
    "eval {model} --data math500 --server http://127.0.0.1:9 --out {out}/eval1",
    "eval {model} --data heldout.yaml --server http://127.0.0.1:9 --out {out}/eval2",
    "data prepare {data} --out {out}/set --verifier exact",
    "data prepare {data} --out {out}/judged --verifier math",
    "data prepare {data} --out {out}/own --reward mine:score", "export {run} --out {out}/hf",
    "report {run} --out {out}/r.html",
)  # fmt: skip


def planted(folder: Path, where: Path, owner: int) -> None:
    """Plant one file of every kind in a folder. `mine.py` is what the user names, and its compiled file is another."""
    evil = CODE.format(where=str(where))
    files = {f"{name}.py": evil for name in MODULES}
    files |= {f"mine{ending}": "no library" for ending in EXTENSION_SUFFIXES}
    files |= {
        "slurm/lib.sh": f"echo lib >>{where}\n",
        "slurm/site.env": SITE.format(where=where, folder=folder),
        "site.env": SITE.format(where=where, folder=folder),
        "heldout.yaml": EVAL.format(folder=folder).replace("NAME", "heldout"),
        "heldout.jsonl": json.dumps({"problem": "1+1", "answer": "2"}) + "\n",
        "configs/eval/math500.yaml": EVAL.format(folder=folder).replace("NAME", "math500") + "reward: planted:f\n",
        "configs/common/boxed.txt": "planted prompt",
        ".cache/rehearsal/policy/bin/python": f"#!/bin/sh\necho python >>{where}\n",
        ".cache/rehearsal/vllm/bin/python": f"#!/bin/sh\necho python >>{where}\n",
        ".venv/bin/nemo-ada": f"#!/bin/sh\necho tool >>{where}\n",
        "config.yaml": f"task: {{name: jsonl, path: {folder}/heldout.jsonl}}\n",
        "nemo.yaml": "cluster: {}\ndata: {default: {system_prompt_file: ../private.txt}}\n"
        "logger: {wandb: {project: '${oc.env:HF_TOKEN}'}}\n",
        "matplotlibrc": "backend: module://planted\n",
        "pyvenv.cfg": "home = .\n", ".netrc": "machine h login l password p\n", ".env": "HF_ENDPOINT=http://127.0.0.1:9\n",
        ".wandb/settings": "[default]\nbase_url = http://127.0.0.1:9\n",
        "wandb/settings": "[default]\nbase_url = http://127.0.0.1:9\n",
        "evil-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n",
        "evil-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
        "evil-1.0.dist-info/RECORD": "", "evil.pth": f"import planted; open({str(where)!r}, 'a').write('pth')\n",
        "spaces/inside.py": evil, "nemo_ada_plugins/evil.py": evil, "hydra_plugins/evil.py": evil,
        "ruff.toml": "x\n", "pydistutils.cfg": "x\n", "setup.cfg": "x\n", "ray.yaml": "x\n",
    }  # fmt: skip
    for name, text in files.items():
        path = folder / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (folder / "mine.py").write_text(evil + REWARD)
    py_compile.compile(
        str(folder / "mine.py"), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    (folder / "mine.py").write_text(REWARD)
    for path in (*folder.rglob("*"),):
        if path.name not in ("model", "first", "runs", "data"):
            os.chown(path, owner, owner)


@pytest.mark.slow
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
            assert not PRIVATE.search(done.stdout + done.stderr), (
                "a path of the user's became one of the private folder"
            )
        if owner == OTHER:
            break  # the working folder of a second user is the shared one
    assert TOKEN not in said, "the token"


@pytest.mark.long
@pytest.mark.parametrize("place", ["working folder", "beside the YAML", "package", "path"])
def test_what_the_user_has_named_runs_in_every_process_and_nothing_beside_it_does(tmp_path: Path, place: str) -> None:
    """A run of the CPU back end: driver, Ray's actors, vLLM, and the verifier's server, in a folder full of traps."""
    where, folder = tmp_path / "ran", tmp_path / "mine"
    folder.mkdir()
    where.touch()
    planted(folder, where, 0)
    rows = "".join(json.dumps({"problem": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(120))
    (folder / "rows.jsonl").write_text(rows)
    (folder / "helper.py").write_text("def value(a, b):\n    return float(str(b) in a)\n")
    (folder / "mine.py").write_text(
        "import helper\ndef score(response, reference):\n    return helper.value(response, reference)\n"
    )
    if place == "package":
        (folder / "pack").mkdir()
        (folder / "pack" / "__init__.py").touch()
        (folder / "mine.py").rename(folder / "pack" / "mine.py")
    name = {"package": "pack.mine:score", "path": "./mine.py:score"}.get(place, "mine:score")
    cwd, words = folder, ["configs/cpu/jsonl.yaml", "task.path=rows.jsonl", f"+task.reward={name}"]
    if place == "beside the YAML":
        cwd = tmp_path / "elsewhere"
        cwd.mkdir()
        (folder / "own.yaml").write_text(f"task: {{path: {folder}/rows.jsonl, reward: 'mine:score'}}\n")
        words = ["configs/cpu/jsonl.yaml", "../mine/own.yaml"]
    small = ["grpo.max_num_steps=1", "base.steps=20", "grpo.num_prompts_per_step=8", "run_dir=out"]
    temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # a short path, as /tmp has
    done = run("train", *words, *small, cwd=cwd, TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr[-2000:]
    left = list(temporary.iterdir())
    shutil.rmtree(temporary)
    assert not left, "a library's folder under a name that anyone can guess, such as torchinductor_USER"
    assert where.read_text() == "" and (cwd / "out" / "metrics.jsonl").is_file()
    assert "names code: task.reward=" in done.stderr and "mine.py" in done.stderr
    again = run("train", *words, *small, "grpo.max_num_steps=2", "resume=auto", cwd=cwd)
    assert again.returncode == 0, again.stderr[-2000:]
    left = {path.name for path in cwd.iterdir()} - {"out", ".cache", *(path.name for path in folder.iterdir())}
    assert not left, "nothing of a library's lies in the user's folder"


def heldout(folder: Path, owner: int, reward: str = "") -> Path:
    """A model below held-out problems, as a run leaves them."""
    model = model_folder(folder / "run" / "model")
    planted(folder, folder / "ran", owner)
    (folder / "ran").touch()
    (folder / "ran").chmod(0o666)
    with (folder / "heldout.yaml").open("a") as file:
        file.write(reward)
    return model


@pytest.mark.long
@needs_two_users
def test_eval_takes_no_held_out_problems_of_another_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    model = heldout(tmp_path, OTHER)
    words = ["eval", model, "--server", "http://127.0.0.1:9", "--out", tmp_path / "out"]
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2 and "heldout.yaml is not used: it belongs to" in done.stderr, done.stderr
    assert f"--data {tmp_path}/heldout.yaml" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("owner", PEOPLE)
def test_held_out_problems_that_were_found_name_no_code_and_those_that_are_named_do(tmp_path: Path, owner: int) -> None:
    tmp_path.chmod(0o1777 if owner else 0o755)
    model = heldout(tmp_path, owner, "reward: planted:f\n")
    with serving(model, lambda _asked: completion("2")) as server:
        words = ["eval", model, "--server", server.url, "-k", "1", "--out", tmp_path / "out"]
        done = run(*words, cwd=tmp_path)
        assert done.returncode == 2 and (tmp_path / "ran").read_text() == "", done.stderr
        assert owner or "was found above the model, and names code" in done.stderr
        done = run(*words, "--data", "heldout.yaml", cwd=tmp_path)
        if owner:
            assert done.returncode == 2 and "planted.py:f, if you trust" in done.stderr, done.stderr
        else:
            assert done.returncode == 0 and "planted" in (tmp_path / "ran").read_text(), done.stderr
            assert "names code: reward=planted:f is in" in done.stderr


@pytest.mark.long
@needs_two_users
@pytest.mark.parametrize("place", [".", "checkpoints", "checkpoints/step_000002", "config.yaml"])
def test_a_run_of_another_user_is_not_gone_on_with(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints" / "step_000002").mkdir(parents=True)
    (folder / "config.yaml").write_text("{}")
    os.chown(folder / place, OTHER, OTHER)
    words = ["train", "configs/cpu/mini_sudoku.yaml", f"run_dir={folder}", "resume=auto"]
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2 and "is not used: it belongs to" in done.stderr, done.stderr
    os.chown(folder / place, 0, 0)
    (folder / place).chmod(0o777)
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2 and "every user may write it" in done.stderr and "chmod -R go-w" in done.stderr


@needs_two_users
def test_a_private_group_may_write_a_run_as_with_umask_002(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoints"):
        folder.chmod(0o775)
    RunDir(tmp_path / "run").check({}, resume=False)
    os.chown(tmp_path / "run", 0, 1)
    with pytest.raises(UserError, match="the group daemon may write it"):
        RunDir(tmp_path / "run").check({}, resume=False)


def test_wandb_gets_the_server_of_the_users_home_or_its_own(tmp_path: Path, monkeypatch) -> None:
    """By itself it reads `.wandb/settings` and `wandb/settings` near the run, and sends its key there."""
    planted(tmp_path, tmp_path / "ran", 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_CONFIG_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for noted, server in (("", PUBLIC), ("[default]\nbase_url = https://own.example\n", "https://own.example")):
        monkeypatch.delenv(VARIABLE, raising=False)
        (tmp_path / "home/.config/wandb").mkdir(parents=True, exist_ok=True)
        (tmp_path / "home/.config/wandb/settings").write_text(noted)
        set_wandb_server()
        assert os.environ[VARIABLE] == server
    monkeypatch.setenv(VARIABLE, "https://named.example")
    set_wandb_server()
    assert os.environ[VARIABLE] == "https://named.example"


@pytest.mark.parametrize("key", ["policy.model_name", "task.path", "--tokenizer"])
def test_a_folder_with_the_name_of_a_repository_is_in_the_way(tmp_path: Path, monkeypatch, key: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_folder_or_repository(key, "Qwen/Qwen2.5-Math-7B") == "Qwen/Qwen2.5-Math-7B"
    (tmp_path / "Qwen/Qwen2.5-Math-7B").mkdir(parents=True)
    with pytest.raises(UserError, match=r"write \./Qwen/Qwen2\.5-Math-7B for the folder, or start the command in"):
        resolve_folder_or_repository(key, "Qwen/Qwen2.5-Math-7B")
    assert resolve_folder_or_repository(key, "./Qwen/Qwen2.5-Math-7B") == "./Qwen/Qwen2.5-Math-7B"


@pytest.mark.long
def test_every_command_says_so_where_a_folder_has_the_name_of_a_model(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "owner" / "model")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "1+1", "answer": "2"}\n' * 20)
    out = f"--out {tmp_path}/out"
    for words in (
        "check configs/cpu/smollm2.yaml policy.model_name=owner/model",
        "train configs/cpu/smollm2.yaml policy.model_name=owner/model",
        f"eval {model} --data rows.jsonl --tokenizer owner/model --server http://127.0.0.1:9 {out}",
        f"data prepare rows.jsonl --tokenizer owner/model {out}", f"data prepare owner/model {out}",
    ):  # fmt: skip
        done = run(*words.split(), cwd=tmp_path)
        assert done.returncode == 2 and "write ./owner/model for the folder" in done.stdout + done.stderr, words


def test_bash_gets_the_text_of_site_env_that_was_looked_at(tmp_path: Path, monkeypatch) -> None:
    """An owner who renames files between two readings would have had his own run."""
    (tmp_path / "slurm").mkdir()
    file = tmp_path / "slurm" / "site.env"
    file.write_text("HF_HOME=/looked/at\n")
    monkeypatch.setenv("NEMO_ADA_HOME", str(tmp_path))
    for name in ("NEMO_ADA_SITE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    read = site.read_found

    def then_changed(path: Path, *more: object) -> bytes:
        content = read(path, *more)
        file.write_text("HF_HOME=/changed\n")
        return content

    monkeypatch.setattr(site, "read_found", then_changed)
    assert site.read_site_setting("HF_HOME") == "/looked/at"


def test_a_process_stands_elsewhere_and_knows_where_its_user_stands(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "user" / "models").mkdir(parents=True)
    (tmp_path / "private").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    monkeypatch.setenv("HF_HOME", "models")
    monkeypatch.setenv("PYTHONPATH", f"models{os.pathsep}{os.pathsep}none")
    assert get_whole_path("x") == "x" and get_users_folder() == tmp_path / "user"
    with stand_in(tmp_path / "private"):
        assert Path.cwd() == tmp_path / "private" and get_users_folder() == tmp_path / "user"
        assert get_whole_path("a/../x") == f"{tmp_path}/user/x" and get_whole_path(Path("/x")) == Path("/x")
        assert get_whole_path("~/x") == os.path.expanduser("~/x")
        assert show_path(tmp_path / "user" / "x") == Path("x") and show_path(Path("/x")) == Path("/x")
        assert (
            find_job_folder("runs/x") == find_job_folder(f"{tmp_path}/user/runs/x") == tmp_path / "user" / "runs" / "x"
        )
        assert os.environ["HF_HOME"] == f"{tmp_path}/user/models"
        assert os.environ["PYTHONPATH"] == f"{tmp_path}/user/models{os.pathsep}{os.pathsep}none"
    assert Path.cwd() == tmp_path / "user"


@pytest.mark.parametrize("given", [None, "/var/tmp"])
def test_temporary_files_lie_in_a_private_folder_and_other_nodes_get_the_users(
    tmp_path: Path, monkeypatch, given: str | None
) -> None:
    if given is None:
        monkeypatch.delenv("TMPDIR", raising=False)
    else:
        monkeypatch.setenv("TMPDIR", given)
    before = tempfile.tempdir
    with stand_in(tmp_path):
        mine = tempfile.gettempdir()
        assert mine == os.environ["TMPDIR"] == f"{tmp_path}/t" and os.stat(mine).st_mode & 0o777 == 0o700
        assert get_users_temporary() == Path(given or "/tmp")
        share_temporary()  # NeMo-RL gives its environment to workers on all nodes
        assert os.environ.get("TMPDIR") == given and tempfile.gettempdir() == mine
    assert os.environ.get("TMPDIR") == given and tempfile.tempdir == before


@pytest.mark.parametrize(
    ("name", "value", "means"),
    [
        ("HF_HOME", "cache/hf", "{user}/cache/hf"), ("WANDB_DIR", "logs", "{user}/logs"),  # libraries make them
        ("VLLM_DISABLE_COMPILE_CACHE", "1", "1"), ("NODE_PYTHON", "python3", "python3"), ("HF_HOME", "~/hf", "~/hf"),
        ("MODEL_PATH", "owner/name", "owner/name"), ("MODEL_PATH", "./owner/name", "{user}/./owner/name"),
        ("LD_LIBRARY_PATH", "owner/name:/lib", "{user}/owner/name:/lib"), ("PIP_CACHE_DIR", "s3://a/b", "s3://a/b"),
    ],
)  # fmt: skip
def test_a_variable_means_the_users_folder_also_where_a_library_makes_it_later(
    tmp_path: Path, monkeypatch, name: str, value: str, means: str
) -> None:
    """A file `1` and a folder `owner/name` that somebody has put there change no flag and no model."""
    (tmp_path / "private").mkdir()
    (tmp_path / "user" / "owner" / "name").mkdir(parents=True)
    (tmp_path / "user" / "1").touch()
    monkeypatch.chdir(tmp_path / "user")
    monkeypatch.setenv(name, value)
    with stand_in(tmp_path / "private"):
        assert os.environ[name] == means.format(user=tmp_path / "user")


@needs_two_users
def test_cached_problems_of_another_user_are_not_used(tmp_path: Path) -> None:
    """They would choose what a run learns and is measured on: .cache/base is found in the working folder."""
    settings = MiniSudokuSettings()
    first = MiniSudoku(settings, tmp_path).splits()
    assert MiniSudoku(settings, tmp_path).splits() == first
    (cached,) = tmp_path.glob("mini_sudoku-*.json")
    os.chown(cached, OTHER, OTHER)
    with pytest.raises(UserError, match=r"is not used: it belongs to .*base\.cache_dir"):
        MiniSudoku(settings, tmp_path).splits()


@pytest.mark.long
@pytest.mark.parametrize("form", ["absolute", "link", "above", "working folder"])
def test_a_prompt_file_from_outside_of_the_config_is_refused(tmp_path: Path, form: str) -> None:
    (tmp_path / "download" / "prompts").mkdir(parents=True)
    (tmp_path / "prompts").mkdir()
    for private in (tmp_path / "private.txt", tmp_path / "prompts" / "p.txt"):
        private.write_text(TOKEN)
    (tmp_path / "download" / "prompts" / "link.txt").symlink_to(tmp_path / "private.txt")
    name = {"absolute": str(tmp_path / "private.txt"), "link": "prompts/link.txt"}.get(form, "prompts/p.txt")
    config = tmp_path / "download" / "config.yaml"
    config.write_text(f"cluster: {{}}\ndata: {{default: {{system_prompt_file: {name}}}}}\n")
    where = tmp_path if form == "working folder" else tmp_path / "download"
    done = run("config", config, cwd=where)
    assert done.returncode == 2 and "lies outside of the configuration's folder" in done.stderr, (
        done.stdout + done.stderr
    )
    done = run("config", config, f"data.default.system_prompt_file={name}", cwd=where)
    assert "lies outside" not in done.stderr


@pytest.mark.long
def test_a_working_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone}; rmdir {gone}; exec {TOOL} status"
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # Python itself reads it there
    done = subprocess.run(["bash", "-c", command], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "was deleted" in done.stderr and "Traceback" not in done.stderr
