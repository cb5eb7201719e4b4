"""What a user can get wrong in a configuration, and what the message says."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_ada.config import paths
from nemo_ada.config.load import (
    apply_overrides,
    backend_of,
    load_words,
    load_yaml,
    resolve_config,
)
from nemo_ada.config.paths import find_shipped, make_paths_whole
from nemo_ada.config.presets import merge_sections
from nemo_ada.cpu.settings import load_run
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation import benchmark

CPU = Path(__file__).resolve().parents[2] / "configs" / "cpu"
SUDOKU = CPU / "mini_sudoku.yaml"


@pytest.mark.parametrize("path", sorted(CPU.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_cpu_recipe_loads(path):
    overrides = ["+task.name=mini_sudoku"] if path.stem == "base" else []
    assert load_run(path, overrides).backend == "embedded"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("grpo.max_num_stepss=3", "unknown key grpo.max_num_stepss; did you mean grpo.max_num_steps?"),
        ("gpro.seed=1", "unknown key gpro; did you mean grpo?"),
        ("+lr=1", "unknown key lr; did you mean policy.megatron_cfg.optimizer.lr or base.lr?"),
        ("+seed=1", "unknown key seed; did you mean grpo.seed or task.seed?"),
        ("+preset=grpo", "unknown key preset; did you mean reinforce_ada.preset?"),
        ("+learning_rate=1", "did you mean policy.megatron_cfg.optimizer.lr"),
        ("grpo.steps=9", "did you mean grpo.max_num_steps"),
        ("reinforce_ada.max_responses=8", "did you mean reinforce_ada.sampling.max_responses?"),
        ("grpo.seed = 1", "without blanks around =, as grpo.seed=1"),
        (
            "reinforce_ada.samplin.wave_size=3",
            "unknown key reinforce_ada.samplin; did you mean reinforce_ada.sampling?",
        ),
        (
            "reinforce_ada.sampling.wave_sizes=3",
            "reinforce_ada.sampling.wave_sizes; did you mean reinforce_ada.sampling.wave_size?",
        ),
        (
            "reinforce_ada.sampling.exit.k_poz=3",
            "reinforce_ada.sampling.exit.k_poz; did you mean reinforce_ada.sampling.exit.k_pos?",
        ),
        ("task.sise=300", "unknown key task.sise; did you mean task.size?"),
        ("policy.megatron_cfg.tensor_model_parallel=2", "did you mean policy.megatron_cfg.tensor_model_parallel_size?"),
        ("reinforce_ada.preset=ada_seq_balanced", "no such preset; did you mean ada_seq_balance?"),
        ("reinforce_ada.sampling.exit.kind=balance", "no such choice; did you mean balanced?"),
        ("task.name=sudoku", "task.name=sudoku: no such choice; did you mean mini_sudoku?"),
        ("grpo.seed=x", "grpo.seed='x': it must be a whole number, such as 8"),
        ("grpo.num_prompts_per_step=-3", "grpo.num_prompts_per_step=-3: input should be greater than 0"),
        ("reinforce_ada.sampling.exit={kind: balanced, k_pos: 20, k_neg: 20}", "raise max_responses to at least 40"),
        ("reinforce_ada.preset=ada_est_ema", "every prompt would get 4 responses, which is GRPO"),
        ("reinforce_ada.sampling.wave_size=2", None),  # balanced(2, 2) cannot exit with less than a group
        ("reinforce_ada={preset: ada_seq_positive, sampling: {wave_size: 2}}", "raise wave_size to at least 4"),
        ("reinforce_ada={preset: grpo, sampling: {wave_size: 2}}", None),
        ("reinforce_ada={preset: grpo, budget: {max_seconds: 9}}", "bounds waves after the first"),
        ("reinforce_ada={preset: grpo, budget: {max_seconds: 9}, reserve_prompts: 4}", None),
        ("reinforce_ada={preset: grpo, sampling: {wave_size: 2}, budget: {max_seconds: 9}}", None),
        ("reinforce_ada={budget: {max_seconds: 9, seconds_quantile: 0.9}}", None),
        ("reinforce_ada.sampling.wave_size=64", "lower wave_size to 32 or raise max_responses to 64"),
        ("reinforce_ada.sampling.max_responses=8", None),
        ("reinforce_ada.sampling.max_responses=0", "sampling.max_responses=0: input should be greater than 0"),
        ("reinforce_ada.sampling.wave_size=x", "sampling.wave_size='x': it must be a whole number, such as 8"),
        ("reinforce_ada.sampling.wave_size=[8,0]", "sampling.wave_size.1=0: input should be greater than 0"),
        (
            "reinforce_ada.sampling.max_responses.time=3",
            "max_responses.time; did you mean reinforce_ada.sampling.max_responses.times?",
        ),
        (
            "policy.train_global_batch_size=77",
            "does not divide num_prompts_per_step * num_generations_per_prompt = 256",
        ),
        ("reinforce_ada.advantage={weighting: objective, normalize: std}", "set normalize: none"),
        ("reinforce_ada={preset: ada_est_ema, sampling: {min_responses: 6}}", "must lie between"),
        ("reinforce_ada={preset: ada_seq_log, sampling: {max_responses: 8}}", "raise reinforce_ada.sampling.max_resp"),
        ("grpo.num_generations_per_prompt=1", "(preset ada_single)"),
        ("a=[1", "override"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_work(override, message):
    if message is None:
        load_run(SUDOKU, [override])
        return
    with pytest.raises(UserError) as error:
        load_run(SUDOKU, [override])
    assert message in str(error.value)


def test_a_group_of_one_is_drawn_once():
    shrunk = "reinforce_ada={preset: ada_seq_lean, advantage: {baseline: shrunk}}"
    with pytest.raises(UserError, match="preset ada_single"):
        load_run(SUDOKU, [shrunk, "grpo.num_generations_per_prompt=1"])


SINGLE = "preset: ada_single"
SHRUNK = "preset: grpo, advantage: {baseline: shrunk}"
OBJECTIVE = "advantage: {weighting: objective}"
LINEAR = "advantage: {weighting: objective, objective: {kind: linear}, max_weight: 100}"


@pytest.mark.parametrize(
    ("section", "group", "remedy"),
    [
        # a mean over all prompts
        (f"{SINGLE}, estimator: {{kind: ema, per_prompt: false}}", 1, "set adaptive_prior to true"),
        (f"{SINGLE}, estimator: {{kind: ema, per_prompt: false, adaptive_prior: true}}", 1, None),
        ("preset: ada_est_ema, estimator: {per_prompt: false, adaptive_prior: true}", 8, "so it cannot allocate"),
        # a weight from an uncertain prediction
        (f"{SINGLE}, advantage: {{objective: {{kind: log}}}}", 1, "use the linear objective"),
        (f"{SHRUNK[:-1]}, objective: {{kind: power}}}}", 4, "use the linear objective"),
        ("preset: ada_est_ema, advantage: {baseline: shrunk}", 8, "allocation.exponent=0"),
        ("preset: ada_est_ema, advantage: {baseline: shrunk, objective: {kind: linear}}", 8, "allocation.exponent=0"),
        (
            "preset: ada_est_ema, advantage: {baseline: shrunk, objective: {kind: linear}}, "
            "sampling: {allocation: {kind: power, exponent: 0}}",
            8,
            None,
        ),
        # labels decide which groups or how many responses there are
        (f"{SINGLE}, reserve_prompts: 8", 1, "set reserve_prompts to 0"),
        (f"{SHRUNK}, reserve_prompts: 8", 4, "set reserve_prompts to 0"),
        ("preset: ada_seq_balance, advantage: {baseline: shrunk}", 4, "exit.kind=fixed"),
        ("preset: ada_seq_positive, advantage: {baseline: shrunk}", 4, "exit.kind=fixed"),
        (f"{SHRUNK}, sampling: {{exit: {{kind: fixed, n: 8}}, wave_size: 8, max_responses: 8}}", 4, "exit.kind=fixed"),
        (f"{SHRUNK}, sampling: {{wave_size: 3, max_responses: 8}}", 4, "exit.kind=fixed"),
        (f"{SHRUNK}, sampling: {{wave_size: 2}}", 4, None),
        # a choice or an allocation that the weights do not undo
        (f"preset: ada_est_ema, sampling: {{min_responses: 1}}, {LINEAR}", 8, "set min_responses to at least 2"),
        (f"preset: ada_est_ema, sampling: {{min_responses: 2}}, {LINEAR}", 8, None),
    ],
)
def test_settings_that_would_not_do_what_they_say_are_refused(section, group, remedy):
    overrides = [f"reinforce_ada={{{section}}}", f"grpo.num_generations_per_prompt={group}"]
    if remedy is None:
        load_run(SUDOKU, overrides)
        return
    with pytest.raises(UserError, match=remedy):
        load_run(SUDOKU, overrides)


def test_own_keys_override_a_preset_and_another_kind_replaces_its_whole_section():
    base = {"sampling": {"kind": "a", "x": 1, "y": 2}, "z": 3}
    assert merge_sections(base, {"sampling": {"x": 5}}) == {"sampling": {"kind": "a", "x": 5, "y": 2}, "z": 3}
    assert merge_sections(base, {"sampling": {"kind": "b", "w": 1}})["sampling"] == {"kind": "b", "w": 1}


def test_a_file_that_cannot_be_a_configuration_is_refused(tmp_path):
    cases = {"list.yaml": "- 1\n", "broken.yaml": "a: [1\n", "binary.yaml": b"\xff\xfe\x00", "empty.yaml": ""}
    for name, content in cases.items():
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(UserError, match=name):
            load_yaml(path)
    with pytest.raises(UserError, match="cannot read the configuration"):
        load_yaml(tmp_path / "missing.yaml")


def test_a_bare_name_leads_to_the_yaml_of_that_name():
    with pytest.raises(UserError, match=r"configs/qwen2\.5-math-7b\.yaml"):
        load_yaml(Path("qwen2.5-math-7b"))


def test_an_overlay_is_no_whole_configuration():
    with pytest.raises(UserError):
        backend_of(resolve_config(load_words(CPU.parent / "methods" / "lora.yaml")))


def test_defaults_merge_in_order_and_a_cycle_is_an_error(tmp_path):
    (tmp_path / "a.yaml").write_text("x: 1\ny: 1\n")
    (tmp_path / "b.yaml").write_text("defaults: [a.yaml]\ny: 2\n")
    assert load_yaml(tmp_path / "b.yaml") == {"x": 1, "y": 2}
    (tmp_path / "a.yaml").write_text("defaults: b.yaml\n")
    with pytest.raises(UserError, match="lead back to itself"):
        load_yaml(tmp_path / "b.yaml")


def test_an_unknown_backend_is_refused():
    config = load_yaml(SUDOKU)
    config["backend"] = "nemo-rl"
    with pytest.raises(UserError, match="did you mean nemo_rl"):
        backend_of(config)


@pytest.mark.parametrize(
    "number", ["1e-8", "-2E5", "1.5e3", "1.e-6", ".5e+1", "0.1", "7", "1e", "e5", "1e-8x", "v1e-8"]
)
def test_numbers_are_those_that_nemo_rl_reads(tmp_path, number):
    (tmp_path / "config.yaml").write_text(f"eps: {number}\n")
    read = load_yaml(tmp_path / "config.yaml").eps
    expected = OmegaConf.load(tmp_path / "config.yaml").eps
    assert (type(read), read) == (type(expected), expected)


@pytest.mark.parametrize(
    ("config", "backend"),
    [
        ({"cluster": {}, "data": {}, "policy": {"megatron_cfg": {}}}, "nemo_rl"),
        ({"task": {"name": "jsonl"}, "policy": {"megatron_cfg": {}}}, "embedded"),
        ({"cluster": {}, "backend": "embedded"}, "embedded"),
    ],
)
def test_the_back_end_is_told_by_the_sections_where_nobody_names_it(config, backend):
    """NeMo-RL's own YAML has no key `backend`."""
    assert backend_of(config) == backend


def test_prompt_files_are_found_beside_and_above_the_yaml_that_the_config_builds_on(tmp_path, monkeypatch):
    """A job may start in an empty folder, as a pod of Kubernetes does."""
    base = tmp_path / "project" / "configs" / "common"
    base.mkdir(parents=True)
    (base / "boxed.txt").write_text("box it")
    (base / "rl.yaml").write_text(
        "data: {default: {system_prompt_file: configs/common/boxed.txt, prompt_file: no.txt}}"
    )
    own, empty = tmp_path / "mine.yaml", tmp_path / "empty"
    own.write_text(f"defaults: {base / 'rl.yaml'}\n")
    empty.mkdir()
    monkeypatch.chdir(empty)
    found = make_paths_whole(resolve_config(load_yaml(own)), [own])["data"]["default"]
    assert found == {"system_prompt_file": str(base / "boxed.txt"), "prompt_file": "no.txt"}
    monkeypatch.chdir(tmp_path / "project")
    assert make_paths_whole(resolve_config(load_yaml(own)), [own])["data"]["default"] == found


def test_a_section_marked_override_replaces_its_parents(tmp_path):
    """NeMo-RL's grpo_multiple_datasets.yaml puts a list where its parent has a mapping."""
    (tmp_path / "base.yaml").write_text("data: {train: {path: a, key: b}, shuffle: true}\nx: {y: 1}\n")
    (tmp_path / "own.yaml").write_text(
        "defaults: base.yaml\ndata:\n  _override_: true\n  train: [{path: c}]\nx: {z: 2}\n"
    )
    assert load_yaml(tmp_path / "own.yaml") == {"data": {"train": [{"path": "c"}]}, "x": {"y": 1, "z": 2}}
    (tmp_path / "second.yaml").write_text("x: {_override_: true, w: 3}\n")
    (tmp_path / "two.yaml").write_text("defaults: [base.yaml, second.yaml]\n")
    assert load_yaml(tmp_path / "two.yaml").x == {"w": 3}
    assert load_words(tmp_path / "base.yaml", [str(tmp_path / "second.yaml")]).x == {"w": 3}


def test_overlays_merge_in_order_overrides_come_last_and_the_run_gets_their_names(tmp_path):
    (tmp_path / "model.yaml").write_text("run_dir: runs/model\nlog: ${run_dir}/logs\nx: {y: 1, z: 1}\n")
    (tmp_path / "one.yaml").write_text("x: {y: 2}\n")
    (tmp_path / "two.yml").write_text("defaults: one.yaml\nx: {z: 3}\n")
    (tmp_path / "named.yaml").write_text("run_dir: runs/own\n")
    words = [str(tmp_path / "one.yaml"), "x.y=9", str(tmp_path / "two.yml")]
    loaded = resolve_config(load_words(tmp_path / "model.yaml", words))
    assert loaded == {"run_dir": "runs/model-one-two", "log": "runs/model-one-two/logs", "x": {"y": 9, "z": 3}}
    for named, folder in (([str(tmp_path / "named.yaml")], "runs/own"), ([words[0], "run_dir=a"], "a")):
        assert load_words(tmp_path / "model.yaml", named).run_dir == folder
    (tmp_path / "list.yaml").write_text("x: [1]\n")
    with pytest.raises(UserError, match=r"model\.yaml .*list\.yaml: Cannot merge"):
        load_words(tmp_path / "model.yaml", [str(tmp_path / "list.yaml")])
    with pytest.raises(UserError, match=r"cannot read the configuration .*none\.yaml"):
        load_words(tmp_path / "model.yaml", [str(tmp_path / "none.yaml")])


def test_an_overlay_of_a_cluster_method_works_on_the_cpu():
    grpo8 = SUDOKU.parents[1] / "methods" / "grpo8.yaml"
    run = load_run(SUDOKU, [str(grpo8)])
    assert (run.grpo.num_generations_per_prompt, run.run_dir.endswith("-grpo8")) == (8, True)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("x=~/sums.jsonl", str(Path("~/sums.jsonl").expanduser())),
        ("x=runs/läuf", "runs/läuf"),
        ("x=runs/日本", "runs/日本"),
        ("x=runs/lr=1e-6", "runs/lr=1e-6"),
        ("x= Answer:", " Answer:"),
        ("x=Answer: ", "Answer: "),
        ("x=  two  words", "  two  words"),
        ("x=\\nline\n", "\\nline\n"),
        (r"x=Put it into \boxed{}.", r"Put it into \boxed{}."),
        (r"x=Think first, then put it into \boxed{}", r"Think first, then put it into \boxed{}"),
        ("x=think, then answer", "think, then answer"),
        ("x=<|eot|>", "<|eot|>"),
        ("x=it's", "it's"),
        ("+y=a=b", "a=b"),
        ('x="one,two"', "one,two"),
        ("x= 5", 5),
        ("x=5", 5),
        ("x=1e-6", 1e-6),
        ("x=null", None),
        ("x=[1,2]", [1, 2]),
        ("x={a: 1}", {"a": 1}),
    ],
)
def test_usual_values_are_taken_as_they_are_written(word, value):
    config = OmegaConf.to_container(apply_overrides(OmegaConf.create({"x": "text"}), [word]))
    assert config[word.partition("=")[0].strip("+")] == value


@pytest.mark.parametrize("word", ["x=[1", "x={a: 1", "x='open", "x=1,2", "x=a,b"])
def test_an_unfinished_value_and_several_values_are_refused(word):
    with pytest.raises(UserError, match="override"):
        apply_overrides(OmegaConf.create({"x": "text"}), [word])


def test_a_text_key_keeps_its_blanks_down_to_the_run():
    run = load_run(SUDOKU, ["run_dir=runs/lr=1e-6 läuf "])
    assert str(run.run_dir) == "runs/lr=1e-6 läuf "


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["configs/cpu/mini-sudoku.yaml"], "configs/cpu/mini_sudoku.yaml"),
        (["configs/cpu/mini_sudoko.yaml"], "configs/cpu/mini_sudoku.yaml"),
        (["mini_sudoku"], "configs/cpu/mini_sudoku.yaml"),
        (["configs/qwen2.5_math_7b.yaml"], "configs/qwen2.5-math-7b.yaml"),
        (["configs/cpu/mini_sudoku.yaml", "configs/methods/ada_single.yaml"], "configs/methods/ada-single.yaml"),
        (["configs/cpu/mini_sudoku.yaml", "single.yaml"], "configs/methods/ada-single.yaml"),
        (["grpo.seed=1", "configs/cpu/mini_sudoku.yaml"], "name the YAML first"),
    ],
)
def test_a_yaml_that_nobody_has_gets_the_name_of_one_like_it(words, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=meant):
        load_words(Path(words[0]), words[1:])
    assert (Path(__file__).resolve().parents[2] / meant).is_file() or "YAML" in meant


def test_files_of_a_wheel_are_found_in_any_folder(tmp_path, monkeypatch):
    """A wheel has them inside the package. Evaluation looked beside it, where nothing is."""
    for name in ("eval/mine.yaml", "methods/fp8.yaml"):
        file = tmp_path / "package" / "shipped" / "configs" / name
        file.parent.mkdir(parents=True)
        file.write_text("defaults: x/examples/configs/recipes/llm.yaml\n")
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "package")
    monkeypatch.chdir(tmp_path)
    assert list(benchmark.list_presets()) == ["mine"]
    assert find_shipped(Path("configs/methods/fp8.yaml")).is_file()
    (tmp_path / "configs/eval").mkdir(parents=True)
    (tmp_path / "configs/eval/mine.yaml").write_text("")
    assert benchmark.list_presets()["mine"].is_relative_to(tmp_path / "package"), "a working folder may be anybody's"


def test_a_name_that_is_a_number_is_refused_with_quotes_that_work():
    recipe = Path(__file__).parents[2] / "configs" / "cpu" / "mini_sudoku.yaml"
    with pytest.raises(UserError, match=r"run_dir=20261127: it must be text; quotes"):
        load_run(recipe, ["run_dir=20261127"])
    assert load_run(recipe, ["run_dir='20261127'"]).run_dir == "20261127"
