#!/usr/bin/env python3
"""The decisions of a chain of jobs. lib.sh calls them; it starts, watches and ends processes itself.

Usage: chain.py arguments WORD... | submission OPTION... OVERRIDE... | space | claim | record | may-continue | job-end |
    stalled | called-off | why | ended | options

This file runs on the login node and on the batch host, outside the container. So it uses the standard library only,
and nothing newer than Python 3.6. Settings come from environment variables. A decision prints its answer, if it has
one. What it says goes to the log, by the descriptor LOG_TO.

Files in RUN_DIR:
    attempts.tsv   one line per attempt: chain, job, start time, last saved step at its start, folder in attempts/; and
                   after its end: end time, reason, what was seen. Times are epoch seconds.
    left_out.tsv   one line per unhealthy node: chain, job, node, cause
    job            the job that trains here
    pace.json      saved_step: the last step that was saved
    status.json    state: how the run ended
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

EXIT_NO = 1  # the chain ends
EXIT_REFUSED = 2  # nothing is submitted or trained
WARNINGS_ONLY = 3  # exit code of `nemo-ada check`: nemo_ada/rules/finding.py
COLUMNS = 4  # that a line of both tables has at least
FOLDER, REASON = 4, 6  # columns of attempts.tsv
SIGNALLED = r"about to end: (\d+) s are left"  # of the text that lib.sh gives a stop file at USR1
STATES = ("done", "stopped", "failed")

# Why an attempt ended. One of these words stands in attempts.tsv.
DONE, ASKED, WALL, OWN = "done", "asked", "wall", "own failure"
PREEMPTED, NODE_LOST, CONTROLLER = "preempted", "node lost", "controller"
LOCK, NO_SPACE = "lock", "no space"
BY_SLURM = (PREEMPTED, NODE_LOST, CONTROLLER)  # such an attempt does not count
OWN_TIME = ("", WALL, OWN)  # the run had its chance: two in a row without a new save end the chain
TAIL_BYTES = 20000  # of a log, in which a cause is looked for
SAID = (  # what a log says -> why the attempt ended; the first that is found is taken
    (NO_SPACE, re.compile(r"No space left on device|Disk quota exceeded")),
    (LOCK, re.compile(r"is in use by .*two runs must not share it")),
)
CANCELLED = (("TIME LIMIT", WALL), ("NODE FAIL", NODE_LOST))  # what SLURM says behind DUE TO; else PREEMPTED
SRUN_SAID = (
    (NODE_LOST, re.compile(r"[Nn]ode failure|NODE FAILURE|io error with slurmstepd|Communication connection failure")),
    (CONTROLLER, re.compile(r"ontact slurm controller|Unable to (confirm allocation|create step)|Socket timed out")),
)
LEFT = re.compile(r"error: (\S+): tasks? \S+: Exited with exit code 1$", re.M)  # a node ended by itself
SECRET = re.compile(  # names of settings, in small letters
    r"(?:.*[+~._-])?(?:token|secret|password|passwd|passphrase|credentials?|"
    r"(?:api|access|secret|private|auth|wandb)_?key(?:_id)?)"
)
NO_SECRET = re.compile(r"(?:.*[._-])?(?:pad|bos|eos|unk|sep|cls|mask|stop|think|image|audio|video)_token")
CPU = "/configs/cpu/"
OF_CHECK = {"--time": "-t", "--nodes": "-N", "--gpus-per-node": ""}  # options of sbatch that `nemo-ada check` judges
FORCE = "(--force submits all the same)"
BY_HAND = "then give --nodes, --gpus-per-node, --time and --signal"
CLOCK_SECONDS = 30  # by which a node's clock may differ from the controller's


def refuse(text: str) -> "NoReturn":
    """Say what is wrong and what would work, and end."""
    sys.stderr.write(f"error: {text}\n")
    sys.exit(EXIT_REFUSED)


def setting(name: str) -> str:
    """The value of an environment variable; empty where it is not set."""
    return os.environ.get(name, "")


def say(text: str) -> None:
    """Write one line into the log."""
    mark = "# " if setting("DRY_RUN") == "1" else time.strftime("[%Y-%m-%d %H:%M:%S] ")
    os.write(int(setting("LOG_TO") or 1), (mark + text + "\n").encode(errors="replace"))


def assign(name: str, value: "str | list[str]") -> None:
    """Print a variable as bash reads it."""
    quoted = shlex.quote(value) if isinstance(value, str) else "({})".format(" ".join(map(shlex.quote, value)))
    print(f"{name}={quoted}")


def run_dir() -> Path:
    """The folder of the run."""
    return Path(os.environ["RUN_DIR"])


def attempt_dir() -> Path:
    """The folder of this attempt."""
    return Path(os.environ["ATTEMPT_DIR"])


def table(name: str) -> "list[list[str]]":
    """The whole lines of a .tsv file in RUN_DIR. A missing file has no lines, and a damaged line does not count."""
    try:
        text = (run_dir() / name).read_text(errors="replace")
    except OSError:
        return []
    lines = [line.split("\t") for line in text.splitlines()]
    return [line for line in lines if len(line) >= COLUMNS]


def of_chain(name: str) -> "list[list[str]]":
    """The lines of this chain in a .tsv file."""
    return [line for line in table(name) if line[0] == setting("CHAIN")]


def flat(value: object) -> str:
    """A value as one cell of a table."""
    return re.sub(r"\s+", " ", str(value)).strip()


def add(name: str, *values: object) -> None:
    """Append one line to a .tsv file in RUN_DIR. A full disk is said, and the chain goes on."""
    try:
        with (run_dir() / name).open("a") as file:
            file.write("\t".join(flat(value) for value in values) + "\n")
    except OSError as problem:
        sys.stderr.write(f"warning: {name} was not written: {problem}\n")


def read_json(path: Path) -> dict:
    """A JSON object. Empty where the file is missing or damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def whole(text: object) -> int:
    """A whole number; 0 for anything else."""
    try:
        return int(float(str(text)))
    except (ValueError, OverflowError):
        return 0


def best_step() -> int:
    """The furthest step that this run ever saved. A step that was made and not saved has to be made again."""
    saved = whole(read_json(run_dir() / "pace.json").get("saved_step", 0))
    return max([saved, *(whole(line[3]) for line in table("attempts.tsv"))])


def arguments(*words: str) -> int:
    """Print the words of a command as bash's variables: options of sbatch, overrides of the run, its config and folder.

    Variables:
        CONFIG, RUN_DIR: what stands in front of the command. HOME_DIR: the project's folder.
        SCRIPT: train.sh takes its config from the words, and its next job gets it as a word again (FIRST).
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
            yamls.append(os.path.join(home, word))
        else:
            right = "write --time=08:00:00, not --time 08:00:00"
            refuse(f"{word} is neither a YAML nor key=value nor an option of sbatch in one word: {right}")
    if script != "train.sh" or not yamls:
        yamls.insert(0, os.path.join(home, setting("CONFIG")))
    if yamls[0] == os.path.join(home, ""):
        refuse(
            "name the YAML of a model, such as configs/qwen2.5-math-7b.yaml, and overlays of configs/methods after it"
        )
    for path in yamls:
        if not os.access(path, os.R_OK):
            refuse(f"{path} cannot be read: name a YAML in configs/, and overlays of configs/methods after it")
    config, layers = yamls[0], yamls[1:]
    if CPU not in config and not setting("NEMO_RL_HOME"):
        refuse("NEMO_RL_HOME is not set: the NeMo-RL v0.7.0 checkout as nodes see it (/opt/nemo-rl in its NGC image)")
    array = any(re.match("--array=|-a.", word) for word in options)
    task = "0" if array else setting("SLURM_ARRAY_TASK_ID")
    for word in overrides:
        if task and re.match(r"\+*grpo\.seed=", word):
            refuse(f"{word}: each task of --array trains with its number as grpo.seed, in its own folder; leave it out")
    name = "-".join(Path(path).stem for path in yamls)
    assign("RUN_DIR", os.path.join(home, setting("RUN_DIR") or f"{setting('RUN_ROOT')}/{name}"))
    assign("CONFIG", config)
    assign("TASK", task)
    assign("FIRST", [config] if script == "train.sh" else [])
    assign("OPTIONS", [word for word in options if word != "--force"])
    assign("OVERRIDES", overrides if script == "export.sh" else layers + overrides)  # its overlays have named RUN_DIR
    assign("GPUS_PER_NODE", _gpus(yamls, overrides))
    assign("LEAD", _asked("--signal", "", options).partition("@")[2])
    assign("PREFLIGHT", "0" if "--force" in words else setting("PREFLIGHT"))
    return 0


def _gpus(yamls: "list[str]", overrides: "list[str]") -> str:
    """The number of GPUs per node: SLURM's, else that of the last YAML that says one. An override wins over both."""
    found = [setting("SLURM_GPUS_ON_NODE") or "8"]
    for path in [] if setting("SLURM_GPUS_ON_NODE") else yamls:
        found += re.findall(r"^ *gpus_per_node: *(\d+)", Path(path).read_text(errors="replace"), re.M)
    found += [number for word in overrides for number in re.findall(r"^\+*cluster\.gpus_per_node=(\d+)$", word)]
    return "0" if CPU in yamls[0] else found[-1]


def _asked(option: str, short: str, options: "list[str]") -> str:
    """The value of an option of sbatch: the last one of the command line, else that of the script's header."""
    header = (Path(setting("HOME_DIR")) / "slurm" / setting("SCRIPT")).read_text()
    found = re.findall(rf"^#SBATCH {option}=(.*)$", header, re.M)
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
        asked = {name: _asked(name, short, options) for name, short in OF_CHECK.items() if CPU not in config}
        given = [f"{name}={value}" for name, value in asked.items() if value]
        code = _nemo_ada(tool, ["check", "--no-verifier", *given, *job]).returncode
        if code not in (0, WARNINGS_ONLY):
            crash = "" if code == EXIT_REFUSED else f"nemo-ada check itself failed with exit code {code}; "
            refuse(f"nothing was submitted: {crash}mend what is said above {FORCE}")
    assign("OPTIONS", options)
    assign("NODES_ASKED", _asked("--nodes", "-N", options) or "1")
    return 0


def _tool(config: str) -> "tuple[str, str]":
    """The nemo-ada of this machine, and what the machine lacks to judge a config."""
    own, checkout = f"{setting('HOME_DIR')}/.venv/bin/nemo-ada", setting("CHECKOUT_HERE")
    tool = shutil.which("nemo-ada") or (own if os.access(own, os.X_OK) else "")
    if not tool:
        return "", "no nemo-ada command here checks the config; run make install"
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
    here = dict(os.environ, NEMO_RL_HOME=setting("CHECKOUT_HERE"))
    out = subprocess.PIPE if listen else log
    return subprocess.run(command, env=here, stdout=out, universal_newlines=True, check=False)  # noqa: UP021 - 3.6


def space() -> int:
    """Whether RUN_DIR can be written now. Exit code 1: its disk is full or a quota is used up."""
    probe = run_dir() / "attempts" / f".space-{os.getpid()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"x" * 65536)
        finally:
            if probe.exists():
                probe.unlink()
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            return 0  # lib.sh meets the same error and ends with it
        say(f"no space: {run_dir()} cannot be written ({problem.strerror}); make room, and the chain goes on")
        return EXIT_NO
    return 0


def claim() -> int:
    """Make this job the one that trains in RUN_DIR. Two jobs may ask at the same time; one that ends is waited for."""
    job, path, waited = job_id(), run_dir() / "job", 0.0
    while True:
        with (run_dir() / "attempts" / ".claim").open("w") as lock:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            owner = tail(path).strip()
            state = ask_slurm("squeue", "-h", "-j", owner, "-t", "R,CG", "-o", "%t") if owner not in ("", job) else ""
            if "R" in state.split():
                refuse(f"job {owner} still runs in {run_dir()}; two must not share it: scancel {owner} or set RUN_DIR")
            if not state or waited > whole(setting("RETRY_SECONDS")):  # a job on a node that SLURM lost may never end
                path.write_text(f"{job}\n")
                return 0
        if not waited:
            say(f"job {owner} has not ended yet; waiting for its end")
        time.sleep(1)
        waited += 1


def job_id() -> str:
    """SLURM's id of this job. A task of an array has its own."""
    return setting("JOB") or setting("SLURM_JOB_ID")


def ask_slurm(*command: str) -> str:
    """What a command of SLURM says, with times as `moment` reads them; empty where it fails."""
    told = dict(os.environ, SLURM_TIME_FORMAT="standard")
    try:
        done = subprocess.run(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        return done.stdout.decode(errors="replace")
    except OSError:
        return ""


def moment(text: str) -> int:
    """Epoch seconds of a time of SLURM; 0 where there is none."""
    found = re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text)
    return int(time.mktime(time.strptime(found.group(), "%Y-%m-%dT%H:%M:%S"))) if found else 0


def job_end() -> int:
    """Print when SLURM ends this job, in epoch seconds of this node's clock; nothing for a job without a limit."""
    shown = ask_slurm("scontrol", "show", "job", "-o", job_id()).partition(" EndTime=")[2].partition(" ")[0]
    end = moment(ask_slurm("squeue", "-h", "-j", job_id(), "-o", "%e")) or moment(shown)
    if not end:
        return 0
    now = moment(ask_slurm("scontrol", "show", "config").partition("\n")[0])  # Configuration data as of ...
    ahead = int(time.time()) - now if now else 0
    if abs(ahead) < CLOCK_SECONDS:
        ahead = 0
    else:
        host = socket.gethostname()
        say(f"the clock of {host} is {ahead} s ahead of the controller's; the job's end is counted by it all the same")
    print(end + ahead)
    return 0


def stalled() -> int:
    """Print why there is no progress; nothing where there is some. Before the first step set-up's limit holds."""
    ended, beat = attempt_dir() / "ended", run_dir() / "heartbeat"
    start, limit = whole(setting("START_SECONDS")), whole(setting("STALL_SECONDS"))
    if ended.exists():
        if _age(ended) > whole(setting("END_SECONDS")):
            print("the driver ended, its step did not")
    elif not of_this_attempt(beat):
        if time.time() - whole(setting("STARTED")) > start:
            print(f"no first heartbeat within START_SECONDS={start}")
    else:
        told, age = read_json(beat), _age(beat)
        median = told.get("median_step_seconds")  # of this attempt's steps
        limit = max(limit, start if median is None else 5 * (whole(median) + 1))
        if age > limit:
            print(f"no heartbeat for {age} s (limit {limit} s, step {told.get('step', '')})")
    return 0


def _age(path: Path) -> int:
    return int(time.time() - path.stat().st_mtime)


def record() -> int:
    """Write down this attempt in attempts.tsv, and print its number in the chain."""
    add("attempts.tsv", setting("CHAIN"), setting("SLURM_JOB_ID"), setting("STARTED"), best_step(), attempt_dir().name)
    print(len(of_chain("attempts.tsv")))
    return 0


def reason_of(line: "list[str]") -> str:
    """Why the attempt of a line of attempts.tsv ended; empty where that is not written down."""
    return line[REASON] if len(line) > REASON else ""


def close_last(folder: str, reason: str, detail: str) -> None:
    """Write down why the attempt in the last line of attempts.tsv ended, if it is that of `folder`."""
    path, lines = run_dir() / "attempts.tsv", table("attempts.tsv")
    if not lines or (lines[-1] + [folder])[FOLDER] != folder:
        return
    lines[-1] = [*lines[-1][:COLUMNS], folder, str(int(time.time())), reason, flat(detail)[:500]]
    scratch = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        scratch.write_text("".join("\t".join(line) + "\n" for line in lines))
        scratch.replace(path)
    except OSError as problem:
        sys.stderr.write(f"warning: the reason ({reason}) was not written: {problem}\n")


def close_killed() -> None:
    """Give a reason to an earlier attempt whose batch script was killed before it could write one."""
    lines = table("attempts.tsv")
    if not lines or len(lines[-1]) != FOLDER + 1 or lines[-1][FOLDER] == Path(setting("ATTEMPT_DIR")).name:
        return
    folder = lines[-1][FOLDER]
    if not (run_dir() / "attempts" / folder / "term").exists():
        close_last(folder, NODE_LOST, "the batch script was killed without a signal before")
    elif lines[-1][1] == setting("SLURM_JOB_ID"):
        close_last(folder, PREEMPTED, "SLURM sent TERM and started the job again")
    else:
        close_last(folder, ASKED, "SLURM sent TERM and did not start the job again")


def may_continue() -> int:
    """Whether the chain may have another attempt: not after MAX_ATTEMPTS, nor after two that saved nothing new.

    Attempts that SLURM ended do not count. Of those that saved nothing, only the run's own failures count, and attempts
    that had the whole time of their job.
    """
    close_killed()
    attempts = [line for line in of_chain("attempts.tsv") if reason_of(line) not in BY_SLURM]
    own = [line for line in attempts if reason_of(line) in OWN_TIME]
    best = best_step()
    if len(attempts) >= whole(setting("MAX_ATTEMPTS")):
        say(f"stopping: {len(attempts)} attempts are the maximum (MAX_ATTEMPTS); sbatch again to start a new chain")
        return EXIT_NO
    if len(own) >= 2 and best <= whole(own[-2][3]):
        say(f"stopping: the last two attempts saved no new step beyond {best}; their logs are in {run_dir()}/attempts/")
        return EXIT_NO
    return 0


def called_off() -> int:
    """Print why SLURM sends TERM to the batch script: asked (scancel), wall, preempted or node lost.

    The job's state is COMPLETING in all four cases. SLURM writes the cause into the job's log, which is our stderr.
    """
    pattern = r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ (.*?)\*\*\*"
    said = re.findall(pattern, tail(Path("/proc/self/fd/2")))
    end = whole(setting("NEMO_ADA_JOB_END"))
    if not said:
        print(WALL if end and time.time() >= end - 2 else PREEMPTED)
    elif not said[-1]:
        print(ASKED)
    else:
        print(next((reason for words, reason in CANCELLED if words in said[-1]), PREEMPTED))
    return 0


def tail(path: Path) -> str:
    """The last TAIL_BYTES of a file; empty where there is none."""
    if not path.is_file():  # a terminal or a pipe
        return ""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def why() -> int:
    """Write down why this attempt is about to end: SLURM may kill the batch script as soon as the step has ended."""
    close_last(attempt_dir().name, *_why("interrupted"))
    return 0


def ended() -> int:
    """Write down why this attempt ended, and print what the chain does now.

    The answers: end (with the exit code), called-off (SLURM or the user ended the job), again, later (a cause that time
    mends), without (as a new job, without the unhealthy nodes).

    Variables:
        CALLED_OFF: what `called-off` said, where SLURM sent TERM to the batch script.
        STALL: what the watchdog said.
        USERS_STOP: 1 where a stop file that is not ours ended the run.
    """
    state, status = _verdict(), read_json(run_dir() / "status.json")
    reason, detail = _why(state)
    close_last(attempt_dir().name, reason, detail)
    stall = f" ({setting('STALL')})" if setting("STALL") else ""
    steps = f"step {status.get('step', 0)} of {status.get('max_steps', '?')}"
    say(f"attempt {setting('ATTEMPT')} ended: {state}{stall}, {steps}; reason: {reason}")
    for path in sorted(attempt_dir().glob("judged-*")):
        for line in read_json(path).get("said", []):
            say(f"node {path.name[len('judged-') :]}: {flat(line)}")
    found = (path for depth in range(5) for path in run_dir().glob("*/" * depth + "offline-run-*"))
    offline = next(found, None)
    if offline is not None:
        say(f"W&B recorded offline; where there is internet: wandb sync {offline.parent}/offline-run-*")
    code = 0
    if state == "done":
        answer = "end"
    elif setting("CALLED_OFF"):
        answer = "called-off"
    elif reason in (NO_SPACE, LOCK):
        answer = "later"
    elif state == "unhealthy" and leave_out():
        answer, code = "end", EXIT_NO
    elif state == "failed" and reason == OWN:
        log = attempt_dir() / f"node-{setting('NODE_NAMES').partition(' ')[0]}.log"
        say("\n".join([f"not continuing: see {log}", *tail(log).splitlines()[-20:]]))
        answer, code = "end", EXIT_NO
    elif setting("USERS_STOP"):
        say("ended by a stop file that was not ours: not continuing (the file is removed; a new submission goes on)")
        answer = "end"
    else:
        answer = "without" if state == "unhealthy" else "again"
    print(answer)
    return code


def _why(state: str) -> "tuple[str, str]":
    head = setting("NODE_NAMES").partition(" ")[0]
    log, last, bad = tail(attempt_dir() / f"node-{head}.log"), last_error(head), bad_nodes()
    called = setting("CALLED_OFF")
    if state == "done":
        return DONE, ""
    if setting("USERS_STOP"):
        return ASKED, "a stop file that was not ours"
    if called:
        return called, "SLURM sent TERM to the batch script"
    if bad:
        return NODE_LOST, "; ".join(f"{node}: {cause}" for node, cause in bad.items())
    srun = tail(attempt_dir() / "srun.log")
    left = LEFT.search(re.split("CANCELLED AT|Job step aborted", srun)[0])
    if state == "stopped" and not left:
        ours = tail(run_dir() / "STOP")
        return (PREEMPTED if "TERM" in ours else WALL), ours or "the run saved before the job's end"
    for reason, pattern in SAID:
        if pattern.search(log):
            return reason, last
    if state == "failed":
        return OWN, last
    if setting("STALL"):
        return OWN, setting("STALL")
    for reason, pattern in SRUN_SAID:
        found = pattern.search(srun)
        if found:
            return reason, next(line for line in srun.splitlines() if pattern.search(line))
    if left:  # srun then ended the other nodes, which looks like a preemption to them
        return OWN, last_error(left.group(1)) or left.group()
    if (attempt_dir() / "term").exists():
        return PREEMPTED, "SLURM sent TERM to the step, and the run did not save in time"
    return OWN, last or "the driver was killed"


def last_error(node: str) -> str:
    """The last line of a node's log that names an error; empty for none."""
    log = tail(attempt_dir() / f"node-{node}.log").splitlines()
    return ([""] + [line for line in log if re.search(r"\b(error|failed|interrupted): |Error: ", line)])[-1]


def bad_nodes() -> "dict[str, str]":
    """The nodes of this attempt that failed their health check, each with the cause that it gave."""
    return {
        path.name[len("bad-") :]: path.read_text(errors="replace").strip()
        for path in sorted(attempt_dir().glob("bad-*"))
        if ".tmp." not in path.name
    }


def of_this_attempt(path: Path) -> bool:
    """Whether a file was written by this attempt. The file server's clock decides."""
    try:
        return path.stat().st_mtime_ns >= (attempt_dir() / "canary").stat().st_mtime_ns
    except OSError:
        return False


def _verdict() -> str:
    """How the attempt ended: done, stopped, failed, interrupted or unhealthy."""
    status = run_dir() / "status.json"
    state = str(read_json(status).get("state", "")) if of_this_attempt(status) else ""
    if state != "done" and bad_nodes():
        return "unhealthy"
    try:
        code = (attempt_dir() / "driver.exit").read_text().strip()
    except OSError:
        code = ""
    if state in STATES:
        return state
    if code == "75":
        return "stopped"
    if state == "running" and code == "1":  # Ray ends a driver that lost its head node with 1, from outside Python
        return "interrupted"
    if code in ("0", "1", "2"):  # the driver ended by itself and left no state
        return "failed"
    return "failed" if (attempt_dir() / "refused").exists() else "interrupted"


def leave_out() -> int:
    """Write down the unhealthy nodes, so that the next job leaves them out. Exit code 1: no next job would help."""
    found = bad_nodes()
    for node, cause in found.items():
        say(f"node {node} is unhealthy: {cause}")
    again = sorted(set(found) & {line[2] for line in of_chain("left_out.tsv")})
    for node, cause in found.items():
        add("left_out.tsv", setting("CHAIN"), setting("SLURM_JOB_ID"), node, cause)
    causes = {line[2]: _kind(line[3]) for line in of_chain("left_out.tsv")}
    nodes = setting("NODE_NAMES").split()
    if again:
        say(f"stopping: SLURM gave this job {', '.join(again)}, which --exclude had left out; ask your site why")
        return EXIT_NO
    if len(nodes) > 1 and set(nodes) <= set(found) and len({_kind(cause) for cause in found.values()}) == 1:
        say("stopping: every node of the job gives the same cause, so the config or the site is wrong, not a node")
        return EXIT_NO
    if len(causes) > whole(setting("MAX_LEFT_OUT")):
        same = "All gave the same cause: look at the config and the site. " if len(set(causes.values())) == 1 else ""
        say(
            f"stopping: {len(causes)} nodes were unhealthy ({', '.join(sorted(causes))}), MAX_LEFT_OUT is "
            f"{setting('MAX_LEFT_OUT')}. {same}Submit again to start a new chain"
        )
        return EXIT_NO
    if setting("REQUEUE") == "none":
        say(f"REQUEUE=none: submit {setting('SCRIPT')} again with --exclude={','.join(sorted(causes))}")
        return EXIT_NO
    return 0


def _kind(cause: str) -> str:
    """A cause without its numbers: nodes that lack different amounts of memory have the same cause."""
    return re.sub(r"[\d.]+", "#", cause)


def options() -> int:
    """Print sbatch's options for the next job, one per line.

    They are those of this job as squeue shows them, then those of the first submission, then --exclude: sbatch takes
    the last one of a kind, and a bad node must stay left out.

    Variables:
        NEMO_ADA_OPTIONS: options of the first submission, one per line.
        NODE_NAMES: the nodes of this job.
        LATER: seconds until the next job may start.
        LEAD: seconds before the end at which the header of the script asks for USR1.
    """
    shown = "|".join(["<this job's>"] * 7)
    if setting("DRY_RUN") != "1":
        shown = ask_slurm("squeue", "-h", "-j", job_id(), "-o", "%l|%a|%P|%q|%v|%x|%f").rstrip("\n")
    # A constraint may hold a |, so it is the last field.
    limit, account, partition, qos, reservation, excluded, constraint = (shown.split("|", 6) + [""] * 7)[:7]
    given = [word for word in setting("NEMO_ADA_OPTIONS").splitlines() if word]
    kept = {
        "time": limit,
        "job-name": setting("SLURM_JOB_NAME"),
        "account": account,
        "partition": partition,
        "qos": qos,
        "reservation": reservation,
        "constraint": constraint,
        "mem": setting("SLURM_MEM_PER_NODE"),
        "mem-per-cpu": setting("SLURM_MEM_PER_CPU"),
        "mem-per-gpu": setting("SLURM_MEM_PER_GPU"),
    }
    print(f"--dependency=afterany:{job_id()}")
    print(f"--nodes={len(setting('NODE_NAMES').split())}")
    if setting("LATER"):
        print(f"--begin=now+{setting('LATER')}")
    for name, value in kept.items():
        if not _absent(value):
            print(f"--{name}={value}")
    task = setting("SLURM_ARRAY_TASK_ID")
    others = [word for word in given if _excluded(word) is None and not re.match(r"--array=|-a", word)]
    if task:
        print(f"--array={task}")
    lead = _lead(limit)
    if lead and not any(word.startswith("--signal") for word in others):
        print(f"--signal=B:USR1@{lead}")
    for word in others:
        print(word)
    lists = [excluded, *(_excluded(word) for word in given), *(line[2] for line in of_chain("left_out.tsv"))]
    names = [part for text in lists if text and not _absent(text) for part in split_hosts(text)]
    if names:
        print(f"--exclude={','.join(dict.fromkeys(names))}")
    return 0


def _lead(limit: str) -> int:
    """Seconds before its end at which the next job wants USR1. 0: the header of the script is right.

    squeue does not show what sbatch was told, so the signals of this chain count. They must leave half of the job: an
    earlier one was the user's. Without one, so must the header's lead.
    """
    seconds, header = _seconds(limit), int(setting("LEAD") or 0)
    seen = [re.search(SIGNALLED, line[-1]) for line in of_chain("attempts.tsv")]
    leads = [int(found.group(1)) for found in seen if found]
    leads = [lead for lead in leads if not seconds or 2 * lead <= seconds]
    if leads:
        return max(min(leads), 1)
    return seconds // 4 if seconds and 2 * header > seconds else 0


def _seconds(limit: str) -> int:
    """Seconds of [days-][hours:]minutes:seconds, as squeue shows a time limit. 0 for none."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit.strip())
    if found is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _absent(value: str) -> bool:
    return value.strip() in ("", "(null)", "N/A")


def _excluded(word: str) -> "str | None":
    """The list of hosts of an --exclude option; None for another option."""
    found = re.match(r"(?:--exclude=|-x)(.*)", word)
    return found[1] if found else None


def split_hosts(text: str) -> "list[str]":
    """ "n1,n[2-3,5]" as ["n1", "n[2-3,5]"]: commas in brackets do not separate."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]


DECISIONS = {
    "arguments": arguments,
    "submission": submission,
    "space": space,
    "claim": claim,
    "record": record,
    "may-continue": may_continue,
    "job-end": job_end,
    "stalled": stalled,
    "called-off": called_off,
    "why": why,
    "ended": ended,
    "options": options,
}


def main(words: "list[str]") -> int:
    """Run one decision; its exit code."""
    if not words or words[0] not in DECISIONS:
        print(__doc__, file=sys.stderr)
        return 64
    return int(DECISIONS[words[0]](*words[1:]))  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
