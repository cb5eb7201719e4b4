"""Arguments of every command: random options with nasty values, files that are missing, folders, binary or unreadable.

The options come from the commands themselves, so a new one is fuzzed without a line here. Left out: `status --watch`,
which waits for a run by design. Engines and servers are not reached.
"""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.core import TyperGroup

from tests.fuzz.harness import CASES, cases, check, command
from tests.fuzz.harness import VALUES as HARMFUL

ROOT = Path(__file__).resolve().parents[2]
UNDECODABLE = os.fsdecode(b"caf\xe9-\xff")
TRAPS = ["missing", "missing/file", "folder", "empty", "binary", "binary.jsonl", "binary.yaml", "binary.json",
         "text.jsonl", "text.yaml", "locked", "link", "loop", UNDECODABLE, "y" * 5000, "null", "zero",
         "/proc/self/mem", ".."]  # fmt: skip
TRIED = TRAPS if CASES else TRAPS[::6]
PLACES = [*TRAPS, ".", "run", "fine.jsonl", "fine.yaml", "rates.txt", "aime_like", "a=b", "math500=fine.jsonl",
          "owner/name", "http://127.0.0.1:9"]  # fmt: skip
NUMBERS = ["0", "-1", "1", "2", "3", "7", "1e3", "0.5", "-0.5", "nan", "inf", "-inf", "1e400", str(2**31), str(2**63),
           str(10**30), "9" * 5000, "0x10", "1_0", "", " "]  # fmt: skip
WORDS = ["x", "balanced", "positive", "fixed", "exact", "math", "judged", "chat", "8,4,4", "0.6,1.5", "1,nan", ",",
         "1e308,1e-308", "-1,-1", "medium", "04:00:00", "99-99:99:99", "ada_seq_lean", "grpo", "--help", "--", "-",
         "-v", "~x", "${x}"]  # fmt: skip
FINE = {"train": ["fine.yaml"], "check": ["fine.yaml", "--no-verifier"], "plan": ["fine.yaml"], "report": ["run"],
        "data": ["fine.jsonl", "--verifier", "exact"]}  # fmt: skip
QUICK = ["--seeds", "1", "--prompts", "2", "--preset", "grpo"]  # of `simulate`, which needs no argument


def groups(group, path=()):
    for name, listed in sorted(group.commands.items()):
        inner = listed.load() if hasattr(listed, "load") else listed
        if isinstance(inner, TyperGroup):
            yield from groups(inner, (*path, name))
        else:
            yield (*path, name), inner


def commands():
    from nemo_ada.cli.main import app

    return dict(groups(typer.main.get_command(app)))


COMMANDS = commands()


@pytest.fixture(autouse=True)
def a_folder_of_traps(tmp_path, monkeypatch):
    from nemo_ada.cli import data as cli_data
    from nemo_ada.cli import evaluate as cli_eval
    from nemo_ada.cpu import trainer

    def nothing(*_args, **_kwargs):
        raise SystemExit(0)

    monkeypatch.setattr(trainer, "Stack", nothing)
    for module in (cli_data, cli_eval):
        monkeypatch.setattr(module, "open_provider", nothing)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("empty", "locked"):
        (tmp_path / name).touch()
    (tmp_path / "locked").chmod(0)
    for name in ("binary", "binary.jsonl", "binary.yaml", "binary.json", UNDECODABLE):
        (tmp_path / name).write_bytes(bytes(range(256)) * 8)
    for name in ("text.jsonl", "text.yaml"):
        (tmp_path / name).write_text("the quick brown\nfox: [\n")
    (tmp_path / "link").symlink_to("missing")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("null", "zero"):  # by links, so that what is written beside them stays in this folder
        (tmp_path / name).symlink_to(f"/dev/{name}")
    (tmp_path / "rates.txt").write_text("0.5\n0.1\n")
    (tmp_path / "fine.yaml").write_text(
        (ROOT / "configs" / "cpu" / "base.yaml").read_text() + "task: {name: jsonl, path: fine.jsonl}\n"
    )
    (tmp_path / "fine.jsonl").write_text("".join(f'{{"problem": "{i}=", "answer": "{i}"}}\n' for i in range(20)))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\xfe\n[1]\n{"step": "x"}\n')


def required(path):
    params = COMMANDS[path].params
    return [text for p in params if p.required and p.opts[0].startswith("-") for text in (p.opts[0], "fine.jsonl")]


ANY = st.one_of(st.sampled_from(PLACES), st.sampled_from(NUMBERS), st.sampled_from(WORDS), st.text(max_size=8))


def kinds(path):
    """Parameter -> its annotation, as text."""
    found = inspect.get_annotations(inspect.unwrap(COMMANDS[path].callback))
    return {name: str(kind).partition("typer.")[0] for name, kind in found.items()}


def fitting(kind):
    """Values that pass the parser of an option of this kind, for the most part."""
    beyond = st.integers(min_value=2**31).map(str)  # in between, `simulate` rightly takes its time
    numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(-9, 40).map(str), beyond)
    own = {"int": numbers, "float": st.one_of(numbers, st.floats().map(repr)), "Path": st.sampled_from(PLACES)}
    chosen = next((values for name, values in own.items() if name in kind), st.sampled_from(WORDS + PLACES))
    return st.one_of(*[chosen] * 5, ANY)


@st.composite
def lines(draw):
    path = draw(st.sampled_from(sorted(COMMANDS)))
    params = [p for p in COMMANDS[path].params if "--watch" not in p.opts]
    options = [p for p in params if p.opts[0].startswith("-")]
    fine = ["run"] if path[-1] == "compare" else FINE.get(path[0], [] if path[0] == "simulate" else ["fine.jsonl"])
    made = [*fine, *required(path)] if draw(st.integers(0, 3)) else []
    made += [draw(ANY) for _ in range(draw(st.integers(0, len(params) - len(options) + 1)) if not made else 0)]
    made += QUICK if path[0] == "simulate" else []
    for _ in range(draw(st.integers(0, 4)) if options else 0):
        option = draw(st.sampled_from(options))
        value = draw(fitting(kinds(path)[option.name]))
        name = draw(st.sampled_from([option.opts[0]] * 9 + [option.opts[0] + "x"]))
        made += draw(st.sampled_from([[name, value], [f"{name}={value}"], [name, value], [name]]))
    return [*path, *(text.replace("\0", "") for text in made)]


@given(arguments=lines())
@cases(20)
def test_any_command_line_ends_with_a_result_or_a_message(arguments):
    codes = (0, 2, 3) if arguments[0] == "check" else (0, 2)
    check(command(arguments, "command lines"), codes=codes)


@pytest.mark.parametrize("path", sorted(COMMANDS), ids="-".join)
def test_a_place_that_holds_nothing_useful_is_refused_as_an_argument_and_survived_as_an_option(path):
    second = ["run"] if path[-1] == "compare" else []
    codes = (
        (0, 2) if path in (("eval", "run"), ("allow",)) else (2,)
    )  # an engine reads the model; any file may be allowed
    for place in TRIED if path != ("simulate",) else []:
        check(command([*path, place, *second, *required(path)], "places"), codes=codes)
    named = [p.opts[0] for p in COMMANDS[path].params if "Path" in kinds(path)[p.name]]
    start = QUICK if path[0] == "simulate" else FINE.get(path[0], ["fine.jsonl"])
    for option in (option for option in named if option.startswith("--")):
        for place in TRIED:
            codes = (0, 2, 3) if path[0] == "check" else (0, 2)
            check(command([*path, *start, *required(path), option, place], "places"), codes=codes)


def test_no_such_command():
    for arguments in ([], ["nope"], ["--nope"], ["data"], ["eval"], ["data", "nope"], [""], ["\u202e"]):
        check(command(arguments, "commands"))


STEP = {"time/sampling": 2.0, "time/update": 1.0, "time/refit": 0.1, "engine_steps": 40, "ada/tokens_drawn": 900,
        "ada/samples_drawn": 64, "ada/live_rows": 20, "ada/pass_rate": 0.4,
        "ada/zero_signal_groups_if_grpo": 0.3}  # fmt: skip


@given(name=st.sampled_from([*STEP, "step"]), value=HARMFUL, other=st.sampled_from(["config", "state", "evaluations"]),
       held=HARMFUL)  # fmt: skip
@cases(3)
def test_a_plan_from_a_damaged_run_says_what_is_damaged(name, value, other, held):
    run = Path("earlier")
    (run / "checkpoints" / "step_000003").mkdir(parents=True, exist_ok=True)
    records = [{"step": step, **STEP} for step in range(1, 6)]
    records[2][name] = value
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    texts = {
        "config": yaml.safe_dump({"grpo": {"num_prompts_per_step": held}, "reinforce_ada": {"preset": "grpo"}}),
        "state": json.dumps({"sampler": {"latency": {"lengths": held}}}),
        "evaluations": json.dumps({"step": 2, "time/evaluation": held}) + "\n",
    }
    files = {"config": "config.yaml", "state": "checkpoints/step_000003/state.json", "evaluations": "evaluations.jsonl"}
    for key, file in files.items():
        (run / file).write_text(texts[key]) if key == other else (run / file).unlink(missing_ok=True)
    few = ["grpo.num_prompts_per_step=4", "policy.generation.max_new_tokens=20", "--run", "earlier"]
    check(
        command(["plan", "fine.yaml", *few], "damaged runs"), said=["metrics.jsonl", "config.yaml", "evaluations.jsonl"]
    )
