"""`nemo-ada check` on files: both kinds of YAML, and what cannot be looked at here."""

import json
import os
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.config.values import Values
from nemo_ada.rules import data, setup
from nemo_ada.rules.check import gpu, site, verifier
from nemo_ada.rules.check.command import examine, examine_nemo_rl
from nemo_ada.rules.check.site import check_mounts
from nemo_ada.rules.facts.site import read_site_setting
from nemo_ada.rules.finding import choose_exit_code
from nemo_ada.rules.rewards import OUR_CLASS
from nemo_ada.verify import judge
from nemo_ada.verify.selftest import VerifierSelfTestError

sys.path.insert(0, str(Path(__file__).parent))
from recipes import changed

ROOT = Path(__file__).parents[3]
BUILT_ON_NEMO_RL = ROOT / "configs/qwen2.5-math-7b.yaml"
CPU_RUN = ROOT / "configs/cpu/jsonl.yaml", f"task.path={ROOT / 'recipes/data/chain_sum.jsonl'}"
needs_checkout = pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME is not set")


def cache(folder):
    return f"base.cache_dir={folder}"


@needs_checkout
def test_overrides_reach_the_checks():
    found = examine(BUILT_ON_NEMO_RL, ["policy.max_total_sequence_length=8192"], verifier=False)
    assert "policy.max_total_sequence_length" in {finding.key for finding in found if finding.level == "error"}


def test_a_checkout_that_is_missing_or_wrong_is_named_with_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("NEMO_ADA_SITE", str(tmp_path / "none.env"))
    monkeypatch.delenv("NEMO_RL_HOME", raising=False)
    found = examine(BUILT_ON_NEMO_RL, verifier=False)
    assert choose_exit_code(found) == 2
    assert "set NEMO_RL_HOME to a checkout of NeMo-RL v0.7.0" in found[0].message
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    found = examine(BUILT_ON_NEMO_RL, verifier=False)
    assert choose_exit_code(found) == 2
    assert f"NEMO_RL_HOME={tmp_path} is no checkout of NeMo-RL: it has no folder examples/configs" in found[0].message
    assert "export NEMO_RL_HOME=/path/to/RL" in found[0].message


def test_a_cpu_recipe_passes_and_its_own_limits_are_seen(tmp_path):
    def found(*overrides):
        path, data_file = CPU_RUN
        return examine(path, [data_file, cache(tmp_path), *overrides], verifier=False)

    assert choose_exit_code(found()) == 0
    broken = found("policy.megatron_cfg.tensor_model_parallel_size=3")
    assert [finding.level for finding in broken] == ["error"]
    assert "1 or 2 would work" in broken[0].message
    misspelled = found("+grpo.num_prompt_per_step=3")
    assert misspelled[0].key == "grpo.num_prompt_per_step"
    assert "did you mean grpo.num_prompts_per_step" in misspelled[0].message
    for folder in ("run_dir=", "run_dir='  '"):
        assert "runs/NAME would work" in found(folder)[0].message and choose_exit_code(found(folder)) == 2


def test_gpu_checks_say_that_they_were_skipped_where_there_is_none():
    found, gib = gpu.examine_node(Values({}))
    if gib is not None:
        pytest.skip("this machine has a GPU")
    assert {finding.key for finding in found} == {"gpu.driver", "gpu.memory", "gpu.fp8"}
    assert {finding.message for finding in found} == {"skipped: no GPU"}
    assert choose_exit_code(found) == 0


def test_the_columns_of_a_local_file_are_read(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"problem": "1+1", "answer": "2"}) + "\n")

    def keys(output):
        values = Values({"data": {"train": {"data_path": str(path), "input_key": "problem", "output_key": output}}})
        return [(finding.level, finding.key) for finding in data.check_dataset(values)]

    assert keys("answer") == [("ok", "data.train.data_path")]
    assert keys("gt") == [("error", "data.train.output_key")]
    path.write_text("\n" + path.read_text())
    assert keys("answer") == [("ok", "data.train.data_path")]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("set.jsonl", {"problem": "<image>Find x", "answer": "2", "images": ["a.png"]}, "an image, a video or a sound"),
        ("set.json", {"columns": ["problem", "answer"], "data": [["1+1", "2"]]}, "a table in JSON"),
    ],
)
def test_what_nemo_rl_would_drop_or_not_read_is_said(name, content, told, tmp_path):
    (tmp_path / name).write_text(json.dumps(content) + "\n")
    train = {"data_path": str(tmp_path / name), "input_key": "problem", "output_key": "answer"}
    (found,) = data.check_dataset(Values({"data": {"train": train}}))
    assert found.level == "error" and told in found.message
    if name == "set.jsonl":
        (found,) = data.check_dataset(Values({"data": {"train": train | {"processor": data.MEDIA_PROCESSOR}}}))
        assert found.level == "ok"


def as_downloaded(place, form):
    """A data set of two records as it lies on hubs; returns what `data_path` names."""
    rows = [{"problem": "1+1", "answer": "2"}, {"problem": "1+2", "answer": "3"}]
    table, folder = pa.Table.from_pylist(rows), place / "set"
    (folder / "data").mkdir(parents=True)
    lines = [json.dumps(row) + "\n" for row in rows]
    if form == "shards":
        for number in range(2):
            pq.write_table(table.slice(number, 1), folder / "data" / f"train-0000{number}-of-00002.parquet")
        pq.write_table(pa.Table.from_pylist([{"other": 1}]), folder / "data" / "test-00000-of-00001.parquet")
    if form == "pattern":
        for number, line in enumerate(lines):
            (folder / "data" / f"part-{number}.jsonl").write_text(line)
        return folder / "data" / "part-*.jsonl"
    if form == "arrow":
        with pa.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as stream:
            stream.write_table(table)
    if form in ("zst", "zst in a folder"):
        file = folder / "train.jsonl.zst"
        file.write_bytes(pa.compress("".join(lines).encode(), codec="zstd", asbytes=True))
        return file if form == "zst" else folder
    if form == "test only":
        (folder / "data" / "test-0.jsonl").write_text(lines[0])
    return folder


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("shards", None), ("pattern", None), ("arrow", None), ("zst in a folder", None),
        ("zst", "NeMo-RL reads .json, .jsonl, .parquet, .arrow, .csv"), ("test only", "no files of the split 'train'"),
    ],
)  # fmt: skip
def test_a_data_set_for_nemo_rl_is_read_as_it_lies_on_a_hub(form, told, tmp_path):
    keys = {"input_key": "problem", "output_key": "answer"}
    path = str(as_downloaded(tmp_path, form))
    found = list(data.check_dataset(Values({"data": {"train": {"data_path": path} | keys}})))
    assert [finding.level for finding in found] == ["ok" if told is None else "error"]
    assert told is None or told in found[0].message
    if told is None:
        missing = list(
            data.check_dataset(Values({"data": {"train": {"data_path": path} | keys | {"output_key": "gt"}}}))
        )
        assert [(finding.level, finding.key) for finding in missing] == [("error", "data.train.output_key")]
        few = {"data": {"train": {"data_path": path} | keys}, "grpo": {"num_prompts_per_step": 3}}
        assert "has 2 records for training, a step draws 3" in next(iter(setup.check_training_set(Values(few)))).message


@pytest.mark.parametrize(
    ("grpo", "said"),
    [
        ({"max_num_epochs": 1}, "1 epochs of them make 5 steps, and the run ends there, before grpo.max_num_steps=500"),
        ({"max_num_epochs": 99}, "set max_num_epochs to 100 or more"),
        ({"max_num_epochs": 100}, None),
        ({"max_num_epochs": 1, "max_num_steps": 5}, None),
        ({"max_num_epochs": 1, "async_grpo": {"enabled": True}}, None),  # that loop counts no epochs
    ],
)
def test_more_steps_than_the_data_gives_are_said(grpo, said, tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text('{"input": "1+1", "output": "2"}\n' * 11)
    config = {
        "data": {"train": {"data_path": str(path)}},
        "grpo": {"max_num_steps": 500, "num_prompts_per_step": 2} | grpo,
    }
    found = [(finding.level, finding.key, finding.message) for finding in setup.check_training_set(Values(config))]
    assert [finding[:2] for finding in found] == [("warning", "grpo.max_num_epochs")] * (said is not None)
    assert said is None or said in found[0][2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory; name a .jsonl, .json or .parquet file that exists"),
        ("", "is empty; write one JSON object per line"),
        ("\n \n", "is empty; write one JSON object per line"),
        ("[1]\n", "does not begin with a JSON object"),
        ("{'problem': 1}\n", "does not begin with a JSON object"),
    ],
)
def test_a_local_file_without_a_record_says_what_is_wrong(content, message, tmp_path):
    path = tmp_path / "set.jsonl"
    if content is not None:
        path.write_text(content)
    found = list(data.check_dataset(Values({"data": {"train": {"data_path": str(path)}}})))
    assert [(finding.level, finding.key) for finding in found] == [("error", "data.train.data_path")]
    assert message in found[0].message


def test_the_sites_file_is_read_where_the_environment_says_nothing(tmp_path, monkeypatch):
    for name in ("CONTAINER", "RUN_ROOT", "NEMO_RL_HOME"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "site.env"
    file.write_text(
        f"# CONTAINER=no\nCONTAINER=/nowhere.sqsh   # the image\nexport RUN_ROOT='{tmp_path}'\nHF_HOME=$HOME/x\n"
    )
    monkeypatch.setenv("NEMO_ADA_SITE", str(file))
    assert [read_site_setting(name) for name in ("CONTAINER", "RUN_ROOT", "HF_HOME", "MOUNTS")] == [
        "/nowhere.sqsh", str(tmp_path), os.path.expandvars("$HOME/x"), "",
    ]  # fmt: skip
    assert [finding.level for finding in site.check_image()] == ["error"]
    for saves, place in (
        ({"checkpointing.checkpoint_dir": "runs/x/checkpoints"}, f"{tmp_path} (RUN_ROOT)"),
        (
            {"checkpointing.checkpoint_dir": f"{tmp_path}/other/grpo"},  # RUN_ROOT moves a run, and no folder elsewhere
            f"{tmp_path}/other ",
        ),
    ):
        (tmp_path / "other").mkdir(exist_ok=True)
        config = changed({"run_dir": "runs/x", **saves})
        disk = next(f for f in examine_nemo_rl(config) if f.key == "checkpointing.checkpoint_dir")
        assert f"free at {place}" in f"{disk.message} "
    monkeypatch.setenv("RUN_ROOT", "/")
    assert read_site_setting("RUN_ROOT") == "/"


def test_the_checkout_of_the_sites_file_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("NEMO_RL_HOME", "set so that it is restored")
    monkeypatch.delenv("NEMO_RL_HOME")
    (tmp_path / "RL").mkdir()
    (tmp_path / "site.env").write_text(f"NEMO_RL_HOME={tmp_path / 'RL'}\n")
    monkeypatch.setenv("NEMO_ADA_SITE", str(tmp_path / "site.env"))
    assert f"NEMO_RL_HOME={tmp_path / 'RL'} is no checkout" in examine(BUILT_ON_NEMO_RL, verifier=False)[0].message


def test_the_assumed_gpu_is_said(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(changed({})))
    said = [finding for finding in examine(path, verifier=False) if finding.key == "gpu.memory"]
    assert [finding.level for finding in said] == ["skipped"] and "assumed to be H100-80GB" in said[0].message


def test_an_image_file_must_exist(tmp_path, monkeypatch):
    def found(image):
        monkeypatch.setenv("CONTAINER", str(image))
        return [(finding.level, finding.key) for finding in site.check_image()]

    assert found(tmp_path / "image.sqsh") == [("error", "CONTAINER")]
    (tmp_path / "image.sqsh").touch()
    assert found(tmp_path / "image.sqsh") == [("ok", "CONTAINER")]
    monkeypatch.setenv("NEMO_ADA_SITE", "/none")
    for image in ("nvcr.io/nvidia/nemo-rl:v0.7.0", ""):
        assert found(image) == [("skipped", "CONTAINER")]


@pytest.mark.long
def test_the_verifier_is_tried_and_one_that_fails_is_an_error(monkeypatch):
    assert [(finding.level, finding.key) for finding in verifier.check_verifier()] == [("ok", "verifier")]
    for problem in (VerifierSelfTestError("judged 1 as 2"), ImportError("no math-verify")):
        monkeypatch.setattr(judge, "MathVerifier", Mock(side_effect=problem))
        assert [(f.level, f.key, str(problem) in f.message) for f in verifier.check_verifier()] == [
            ("error", "verifier", True)
        ]


@pytest.mark.parametrize(("override", "code"), [([], 0), (["policy.data_parallel_size=0"], 2)])
def test_the_exit_code_and_the_json_agree(override, code, tmp_path):
    made = CliRunner().invoke(app, ["check", "--json", "--no-verifier", *map(str, CPU_RUN), cache(tmp_path), *override])
    assert made.exit_code == code, made.output
    assert json.loads(made.stdout)["exit_code"] == code


def test_a_job_with_other_nodes_is_named_beside_other_errors(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(changed({"grpo.num_prompts_per_step": -1})))
    made = CliRunner().invoke(app, ["check", "--json", "--no-verifier", "--nodes", "77", str(path)])
    assert made.exit_code == 2, made.output
    keys = {finding["key"] for finding in json.loads(made.stdout)["findings"] if finding["level"] == "error"}
    assert "--nodes" in keys and len(keys) > 1


@pytest.mark.parametrize("key", ["policy.model_name", "policy.tokenizer.name"])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("file", "text"),
    [("modeling_x.py", "x = 1"), ("inner/tool.py", ""), ("config.json", '{"auto_map": {"AutoModel": "m.M"}}'),
     ("tokenizer_config.json", '{"auto_map": {}}'), ("config.json", "{}")],
)  # fmt: skip
def test_a_model_that_brings_code_is_named(tmp_path, monkeypatch, key, cached, file, text):
    folder = tmp_path / "model"
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text(text)
    monkeypatch.setattr(site.hub, "find_snapshot", lambda name: folder if name == "org/model" else None)
    section, _, inner = key.removeprefix("policy.").partition(".")
    name = "org/model" if cached else str(folder)
    config = {"policy": {"model_name": "org/other", section: {inner: name} if inner else name}}
    found = list(site.check_model_code(Values(config)))
    if text == "{}":
        assert found == []
        return
    assert [(finding.level, finding.key) for finding in found] == [("warning", key)]
    assert file in found[0].message and "trust_remote_code" in found[0].message


def test_a_reward_of_the_users_is_tried_on_the_first_reference(tmp_path, monkeypatch):
    (tmp_path / "own_cluster_reward.py").write_text("def fails(response, answer):\n    raise KeyError(answer)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"problem": "1+1", "answer": "2"}) + "\n")
    train = {"data_path": str(path), "output_key": "answer"}
    values = {"data": {"default": {"env_name": "ada_math"}, "train": train}}
    values["env"] = {"ada_math": {"reward": "own_cluster_reward:fails"}}
    (found,) = setup.check_references(Values(values))
    assert (found.level, found.key) == ("error", "env.ada_math.reward")
    assert "KeyError: '2'" in found.message and "own_cluster_reward.py:2" in found.message
    values["env"]["ada_math"]["reward"] = "own_cluster_reward:other"
    (found,) = setup.check_references(Values(values))
    assert "has no such name; it has fails" in found.message


@pytest.mark.parametrize(
    ("verifier", "kinds"), [("math", ["several; first in line 2", "control; first in line 3"]), ("exact", ["control"])]
)
def test_references_that_the_runs_judge_can_hardly_compare_are_counted_with_the_first_line(tmp_path, verifier, kinds):
    path = tmp_path / "set.jsonl"
    rows = [{"problem": f"{n}?", "answer": text} for n, text in enumerate(["3", "5 or 6", "\x08oxed{5}", *"123456789"])]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mine = {"data_path": str(path), "env_name": "mine", "output_key": "answer"}
    own = {"mine": {"class": OUR_CLASS, "verifier": verifier}}
    splits = ({"train": [mine]}, {"validation": mine})
    of_nemo_rl = [list(setup.check_references(Values({"data": split, "env": own}))) for split in splits]
    words = [f"task.path={path}", f"task.verifier={verifier}", cache(tmp_path)]
    of_cpu = [one for one in examine(CPU_RUN[0], words, verifier=False) if one.key == "task.path"]
    keys = ("data.train.0.data_path", "data.validation.data_path", "task.path")
    for found, key in zip([*of_nemo_rl, of_cpu], keys, strict=True):
        assert [(one.level, one.key) for one in found] == [("warning", key)] * len(kinds)
        assert all(kind in one.message for one, kind in zip(found, kinds, strict=True))


def test_more_prompts_than_the_data_has_and_a_threshold_of_one_are_said(tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps({"problem": f"{n}+1=", "answer": n + 1}) + "\n" for n in range(30)))
    found = examine(CPU_RUN[0], [f"task.path={path}", cache(tmp_path)], verifier=False)
    (said,) = [one for one in found if one.key == "grpo.num_prompts_per_step"]
    assert said.level == "warning" and "the data has 12 for training" in said.message
    found = examine(
        CPU_RUN[0], [f"task.path={path}", cache(tmp_path), "reinforce_ada.positive_threshold=1.0"], verifier=False
    )
    assert any("all would be on one side" in one.message for one in found if one.level == "error")


@pytest.mark.parametrize(
    ("config", "ray", "keys"),
    [
        ({}, "", []),
        ({}, "disabled", ["RAY_AUTH"]),
        ({"env": {"should_use_nemo_gym": True}}, "", ["env.should_use_nemo_gym"]),
        (
            {"policy": {"generation": {"vllm_cfg": {"expose_http_server": True}}}},
            "",
            ["policy.generation.vllm_cfg.expose_http_server"],
        ),
    ],
)
def test_what_answers_anyone_is_a_warning(config, ray, keys, monkeypatch):
    monkeypatch.setenv("RAY_AUTH", ray)
    found = list(site.check_open_ports(Values(config)))
    assert [one.key for one in found] == keys and all(one.level == "warning" for one in found)


def test_what_a_job_reads_and_its_container_does_not_see_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data behind a link and a YAML lie in folders of the user; MOUNTS has to have them at their own paths."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "train.jsonl").write_text("{}\n")
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my.yaml").touch()
    cache = tmp_path / "cache"
    cache.mkdir()
    values = Values(
        {"run_dir": str(tmp_path / "runs"), "data": {"train": {"data_path": f"{tmp_path}/data/train.jsonl"}}}
    )

    def missing(mounts_: str) -> set[str]:
        monkeypatch.setenv("MOUNTS", mounts_)
        found = list(check_mounts(values, [tmp_path / "mine" / "my.yaml"]))
        assert all(finding.level == "error" and finding.key == "MOUNTS" for finding in found)
        return {path for finding in found for path in re.findall(rf"{tmp_path}/([\w./]+?)[: ]", finding.message)[:1]}

    monkeypatch.setenv("HF_HOME", str(cache))
    monkeypatch.setenv("CONTAINER", "")
    assert missing("") == set(), "bare nodes see everything"
    monkeypatch.setenv("CONTAINER", "/image.sqsh")
    everything = {"mine/my.yaml", "data/train.jsonl", "disk/train.jsonl", "cache"}
    assert missing("") == everything
    one, two = (f"{tmp_path}/{name}:{tmp_path}/{name}" for name in ("mine", "data"))
    assert missing(f"{one},{two}:ro") == {"disk/train.jsonl", "cache"}, "the link's other end has to be there, too"
    assert missing(f"{tmp_path}:/elsewhere") == everything, "the job looks at its own path"
    assert missing(f"{tmp_path}:{tmp_path}") == set() == missing(str(tmp_path))
    monkeypatch.setenv("MOUNTS", f"{tmp_path},/nowhere:/data")
    (finding,) = check_mounts(values, [])
    assert finding.level == "warning" and "/nowhere is not on this machine" in finding.message
