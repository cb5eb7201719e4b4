#!/usr/bin/env python3
"""What is submitted: the decisions of a command that submits a job. lib.sh calls them, as it calls slots.py.

Usage: submission.py arguments WORD... | submission OPTION... OVERRIDE... | may-submit | submitted JOB
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # the tree may be read-only
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared import EXIT_REFUSED, another_users, in_queue, main, refuse, run_dir, say, setting, tail, whole  # noqa: E402

WARNINGS_ONLY = 3  # exit code of `nemo-ada check`: nemo_ada/rules/finding.py
SECRET = re.compile(  # names of settings, in small letters
    r"(?:.*[+~._-])?(?:token|secret|password|passwd|passphrase|credentials?|"
    r"(?:api|access|secret|private|auth|wandb)_?key(?:_id)?)"
)
NO_SECRET = re.compile(r"(?:.*[._-])?(?:pad|bos|eos|unk|sep|cls|mask|stop|think|image|audio|video)_token")
CPU = "/configs/cpu/"
OF_CHECK = {"--time": "-t", "--nodes": "-N", "--gpus-per-node": ""}  # options of sbatch that `nemo-ada check` judges
VARIABLES = {  # by which sbatch takes options, too; --nodes has none
    "--time": "SBATCH_TIMELIMIT", "--gpus-per-node": "SBATCH_GPUS_PER_NODE", "--signal": "SBATCH_SIGNAL",
    "--array": "SBATCH_ARRAY_INX",
}  # fmt: skip
FORCE = "(--force submits all the same)"
BY_HAND = "then give --nodes, --gpus-per-node, --time and --signal"


def assign(name: str, value: "str | list[str]") -> None:
    """Print a variable as bash reads it."""
    quoted = shlex.quote(value) if isinstance(value, str) else "({})".format(" ".join(map(shlex.quote, value)))
    print(f"{name}={quoted}")


def arguments(*words: str) -> int:
    """Print the words of a command as bash's variables: options of sbatch, overrides of the run, its config and folder.

    Variables:
        CONFIG, RUN_DIR: what stands in front of the command. HOME_DIR: the project's folder.
        SCRIPT: train.sh takes its config from the words, and its slots get it as a word again (FIRST).
    """
    script, home, options, yamls, overrides = setting("SCRIPT"), setting("HOME_DIR"), [], [], []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and SECRET.fullmatch(name.lower()) and not NO_SECRET.fullmatch(name.lower()):
            # A command line can be read by every user of the machine (ps, squeue), and is printed and recorded.
            library = "export the variable that its library reads (WANDB_API_KEY, HF_TOKEN), e.g. in site.env"
            refuse(f"{name} is a secret: leave it out and {library}")
        elif name == "--export":
            refuse("--export: the job needs its whole environment; put variables in front of the command")
        elif name in ("run_dir", "+run_dir", "++run_dir"):
            refuse(f"{word}: the job watches RUN_DIR, so put RUN_DIR={value} in front of the command")
        elif word.startswith("-"):
            options.append(word)
        elif equals or word.startswith("~"):
            overrides.append(word)
        elif word.endswith((".yaml", ".yml")):
            yamls.append(file(word))
        else:
            right = "write --time=08:00:00, not --time 08:00:00"
            refuse(f"{word} is neither a YAML nor key=value nor an option of sbatch in one word: {right}")
    if script != "train.sh" or not yamls:
        yamls.insert(0, file(setting("CONFIG")) if setting("CONFIG") else "")
    if not yamls[0]:
        refuse(
            "name the YAML of a model, such as configs/qwen2.5-math-7b.yaml, and overlays of configs/methods after it"
        )
    for path in yamls:
        if not os.access(path, os.R_OK):
            refuse(f"{path} cannot be read: name a YAML in configs/, and overlays of configs/methods after it")
    config, layers = yamls[0], yamls[1:]
    if CPU not in config and not setting("NEMO_RL_HOME"):
        refuse("NEMO_RL_HOME is not set: the NeMo-RL v0.7.0 checkout as nodes see it (/opt/nemo-rl in its NGC image)")
    name = "-".join(Path(path).stem for path in yamls)
    assign("RUN_DIR", os.path.abspath(setting("RUN_DIR") or os.path.join(home, setting("RUN_ROOT"), name)))
    assign("CONFIG", config)
    assign("FIRST", [config] if script == "train.sh" else [])
    assign("OPTIONS", [word for word in options if word != "--force"])
    assign("OVERRIDES", overrides if script == "export.sh" else layers + overrides)  # its overlays have named RUN_DIR
    assign("GPUS_PER_NODE", _gpus(yamls, overrides))
    assign("LEAD", _asked("--signal", "", options).partition("@")[2])
    assign("PREFLIGHT", "0" if "--force" in words else setting("PREFLIGHT"))
    return 0


def file(name: str) -> str:
    """The absolute path of a YAML: as `nemo-ada check` reads it, in the working folder, else in the project's."""
    return os.path.abspath(name if os.path.exists(name) else os.path.join(setting("HOME_DIR"), name))


def _gpus(yamls: "list[str]", overrides: "list[str]") -> str:
    """The number of GPUs per node: SLURM's, else the submission's, which `nemo-ada plan` read, or an override's.

    Where there is none of these (a direct sbatch), it is that of the last YAML that says one in its own lines.
    """
    known = setting("SLURM_GPUS_ON_NODE") or (setting("NEMO_ADA_GPUS") if setting("SLURM_JOB_ID") else "")
    found = [known or "8"]
    for path in [] if known else yamls:
        found += re.findall(r"^ *gpus_per_node: *(\d+)", Path(path).read_text(errors="replace"), re.M)
    found += [number for word in overrides for number in re.findall(r"^\+*cluster\.gpus_per_node=(\d+)$", word)]
    return "0" if CPU in yamls[0] else found[-1]


def _asked(option: str, short: str, options: "list[str]") -> str:
    """The value of an option as sbatch takes it: of the command line (the last), of its variable, of the header."""
    header = (Path(setting("HOME_DIR")) / "slurm" / setting("SCRIPT")).read_text()
    found = re.findall(rf"^#SBATCH {option}=(.*)$", header, re.M)
    found += [setting(VARIABLES[option])] if setting(VARIABLES.get(option, "")) else []
    for word in options:
        found += re.findall(rf"^(?:{option}=|{short or option + '='})(.+)", word)
    return found[-1] if found else ""


def submission(*words: str) -> int:
    """Print OPTIONS of sbatch for a job that may be submitted, and the number of nodes that they ask for.

    train.sh's options are those that the config needs, by `nemo-ada plan`, and then the user's: sbatch takes the last.
    Nothing is submitted unchecked unless --force says so. A crash of the check is never a pass.
    """
    dry, script, config = setting("DRY_RUN") == "1", setting("SCRIPT"), setting("CONFIG")
    options = [word for word in words if word.startswith("-")]
    job = [config, f"run_dir={setting('RUN_DIR')}", *words[len(options) :]]
    if not dry and shutil.which("sbatch") is None:
        refuse(f"there is no sbatch on this machine. To train on it: nemo-ada train {' '.join(job)} resume=auto")
    if script.startswith("train") and whole(setting("PREFLIGHT")):
        tool, hole = _tool(config)
        if hole and not dry:
            refuse(f"nothing was submitted: {hole} {FORCE}")
        limit = _asked("--time", "-t", options)
        if script == "train.sh":
            plan = _nemo_ada(tool, ["plan", "--sbatch", *([f"--time={limit}"] if limit else []), *job], listen=not hole)
            if hole:
                say("the plan's options are not shown, because this machine lacks nemo-ada or NeMo-RL's checkout")
            if plan.returncode:
                refuse(f"nothing was submitted: nemo-ada plan cannot plan this job {FORCE}; {BY_HAND}")
            unknown = "--gpus-per-node=" if setting("GPUS_IN_SLURM") == "0" else " "
            planned = (plan.stdout or "").splitlines()
            options = [line for line in planned if line.startswith("-") and not line.startswith(unknown)] + options
            if setting("GPUS_IN_SLURM") == "0" and CPU not in config and _asked("--gpus-per-node", "", planned):
                assign("GPUS_PER_NODE", _asked("--gpus-per-node", "", planned))  # the slots get it: they plan nothing
        asked = {name: _asked(name, short, options) for name, short in OF_CHECK.items() if CPU not in config}
        given = [f"{name}={value}" for name, value in asked.items() if value]
        code = _nemo_ada(tool, ["check", "--no-verifier", *given, *job]).returncode
        if code not in (0, WARNINGS_ONLY):
            crash = "" if code == EXIT_REFUSED else f"nemo-ada check itself failed with exit code {code}; "
            refuse(f"nothing was submitted: {crash}mend what is said above {FORCE}")
    array, _, together = _asked("--array", "-a", options).partition("%")
    if together not in ("", "1"):
        refuse(f"--array={array}%{together}: the slots of a run go one after another; write --array={array}%1")
    slots = re.fullmatch(r"1(?:-(\d+))?", array)
    assign("SLOTS", (slots[1] or "1") if slots else "")
    options = [word for word in options if not re.match("--array=|-a.", word)]
    assign("OPTIONS", [*options, f"--array={array}%1"] if array and not slots else options)
    assign("NODES_ASKED", _asked("--nodes", "-N", options) or "1")
    return 0


def _tool(config: str) -> "tuple[str, str]":
    """The nemo-ada of this machine, and what the machine lacks to judge a config."""
    own, checkout = f"{setting('HOME_DIR')}/.venv/bin/nemo-ada", setting("CHECKOUT_HERE")
    tool = shutil.which("nemo-ada") or (own if os.access(own, os.X_OK) else "")
    if not tool:
        return "", "no nemo-ada command here checks the config; run make install"
    with open(tool, errors="replace") as script:
        python = script.readline().strip()
    if python.startswith("#!/") and not os.access(python[2:].split()[0], os.X_OK):
        place = os.path.realpath(python[2:].split()[0])
        everybody = "everybody must be able to run that (slurm/site.md, step 1)"
        return "", f"{tool} does not start for you: its interpreter is {place}, and {everybody}"
    if CPU in config or os.path.isdir(checkout):
        return tool, ""
    put = "put NEMO_RL_HOME=CHECKOUT in front of the command"
    return tool, f"NEMO_RL_HOME={checkout} is not on this machine, so the config was not checked; {put}"


def _nemo_ada(tool: str, words: "list[str]", listen: bool = False) -> "subprocess.CompletedProcess[str]":
    """Run nemo-ada, and take what it says where we listen. A dry run prints the command, and runs it if we listen."""
    log, dry = int(setting("LOG_TO") or 1), setting("DRY_RUN") == "1"
    if dry:
        os.write(log, ("+ " + " ".join(map(shlex.quote, ["nemo-ada", *words])) + "\n").encode())
    command = ["true"] if dry and not listen else [tool, *words]
    here = dict(os.environ, NEMO_RL_HOME=setting("CHECKOUT_HERE"), RUN_ROOT="")  # RUN_DIR stands among the words
    out = subprocess.PIPE if listen else log
    return subprocess.run(command, env=here, stdout=out, universal_newlines=True, check=False)  # noqa: UP021 - 3.6


def may_submit() -> int:
    """Make RUN_DIR, so that the job finds a place for its log. Refuse a second array of one run."""
    try:
        if another_users():
            refuse(another_users())
        (run_dir() / "attempts").mkdir(parents=True, exist_ok=True)
        for folder in (run_dir(), run_dir() / "attempts"):
            if not os.access(str(folder), os.W_OK):
                refuse(f"{folder} cannot be written: put RUN_DIR=FOLDER in front")
    except OSError as problem:
        refuse(f"RUN_DIR={run_dir()} cannot be made ({problem.strerror}): put RUN_DIR=FOLDER in front, or set RUN_ROOT")
    owner = tail(run_dir() / "job").strip().partition("_")[0]
    for array, _, state in (in_queue(owner) or []) if owner else []:
        if array == owner and state != "CG":  # one that ends is waited for
            refuse(f"array {owner} of this run is in SLURM's queue: end it (scancel {owner}), or set another RUN_DIR")
    return 0


def submitted(job: str) -> int:
    """Write down the array of a run, where its first slot has not begun yet."""
    path = run_dir() / "job"
    try:
        if tail(path).partition("_")[0].strip() != job:
            path.write_text(f"{job}\n")
    except OSError as problem:
        say(f"warning: {path} was not written: {problem.strerror}")
    return 0


if __name__ == "__main__":
    sys.exit(main((arguments, submission, may_submit, submitted), sys.argv[1:]))
