"""The configs over NeMo-Gym, which build on NeMo-RL's own recipe of examples/nemo_gym.

1. `check` finds no error in them, with a data set of requests, and `plan` says what its forecast leaves out.
2. The fragment that both share changes something in every key.
3. Each setting that NeMo-RL or Gym would refuse later is an error under its key.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_ada.config.values import Values
from nemo_ada.lab.plan.command import PlanOptions, make_plan
from nemo_ada.rules import rulebook
from nemo_ada.rules.check.command import examine
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.facts.nemo_config import RolloutFacts
from nemo_ada.rules.method import compute_reward_range
from tests.nemo.nemo_support.compat import MODULE, why_not_importable

CONFIGS = Path(__file__).parents[2] / "configs"
RECIPES = [CONFIGS / f"qwen3-4b-instruct-2507-gym-{name}.yaml" for name in ("math", "tools")]
OF_A_SITE = {"policy.megatron_cfg.gradient_accumulation_fusion"}  # apex has to be installed
pytestmark = pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME (v0.7.0) is not set")
every_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


@pytest.fixture
def data(tmp_path):
    """Overrides that name a data set of requests."""
    row = {
        "responses_create_params": {"input": [{"role": "user", "content": "1 + 1?"}]},
        "agent_ref": {"type": "responses_api_agents", "name": "some_agent"},
        "expected_answer": "2",
    }
    (tmp_path / "rows.jsonl").write_text((json.dumps(row) + "\n") * 200)
    return [f"data.{split}.data_path={tmp_path / 'rows.jsonl'}" for split in ("train", "validation")]


@every_recipe
def test_check_finds_no_error(path, data):
    found = examine(path, data, verifier=False, site=False)
    assert [one for one in found if one.level == "error" and one.key not in OF_A_SITE] == []
    columns = next(one for one in found if one.key == "data.train.data_path")
    assert columns.level == "ok" and "responses_create_params, agent_ref" in columns.message


@every_recipe
def test_plan_says_what_its_forecast_leaves_out(path, data):
    plan = make_plan(path, data, PlanOptions("04:00:00", steps=3, compare=False))
    assert any("Add the seconds of agents, tools and verifiers" in warning for warning in plan.warnings)


def test_a_response_may_fill_the_context_over_all_its_turns():
    values = Values(load_config(RECIPES[1]))
    rollout = RolloutFacts.of(values)
    assert (rollout.longest, rollout.max_new, rollout.max_prompt) == (8192, 2048, 6144)


def test_every_key_of_the_fragment_changes_something():
    from tests.configs.test_cluster_configs import idle_keys, merged

    parents = [Path(os.environ["NEMO_RL_HOME"]) / "examples/nemo_gym/grpo_workplace_assistant_nemotron_nano_v2_9b.yaml"]
    under = OmegaConf.merge(*[merged(path) for path in (*parents, CONFIGS / "common" / "rl.yaml")])
    assert list(idle_keys(under, OmegaConf.load(CONFIGS / "common" / "gym.yaml"))) == []


REFUSED = [
    ("policy.generation.vllm_cfg.async_engine=false", "policy.generation.vllm_cfg.async_engine", "HTTP server needs"),
    ("policy.generation.vllm_cfg.expose_http_server=false", "policy.generation.vllm_cfg.expose_http_server", "HTTP"),
    ("policy.generation.backend=sglang", "policy.generation.backend", "vLLM's HTTP server only"),
    ("policy.generation.top_k=20", "policy.generation.top_k", "set it to null"),
    ("policy.generation.stop_strings=[x]", "policy.generation.stop_strings", "set it to null"),
    ("grpo.max_val_samples=16", "grpo.max_val_samples", "all rows of its set"),
    ("data.default.processor=math_hf_data_processor", "data.train.processor", "reads requests"),
    ("data.train.dataset_name=ResponseDataset", "data.train.dataset_name", "NemoGymDataset"),
    ("data.default.env_name=math", "data.train.env_name", "needs nemo_gym"),
    ("env.nemo_gym.config_paths=[]", "env.nemo_gym.config_paths", "returns token ids"),
    (
        "env.nemo_gym.config_paths=[responses_api_models/vllm_model/configs/vllm_model_for_training.yaml]",
        "env.nemo_gym.config_paths",
        "names no environment",
    ),
    ("env.should_use_nemo_gym=false", "env.should_use_nemo_gym", "set env.should_use_nemo_gym=true"),
    ("env.should_use_nemo_gym=no_idea", "env.should_use_nemo_gym", "must be true or false"),
    (
        "env.nemo_gym.is_trajectory_collection=true",
        "env.nemo_gym.is_trajectory_collection",
        "trains nothing; set it to false",
    ),
    ("env.nemo_gym.config_paths=text", "env.nemo_gym.config_paths", "must be a list"),
]


@pytest.mark.parametrize(("override", "key", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_would_fail_later_is_an_error_now(data, override, key, message):
    config = load_config(RECIPES[0], [*data, override])
    found = [one for one in rulebook.apply_rules(config) if one.level == "error" and one.key == key]
    assert any(message in one.message for one in found)


@pytest.mark.parametrize(
    ("known", "level"),
    [(None, "warning"), ({"repetition_penalty": 1.0}, None), ({"repetition_penalty": 1.1}, "error")],
)
def test_a_models_own_penalty_does_not_reach_the_samples_unseen(data, tmp_path, known, level):
    """vLLM's HTTP server takes it from the model's folder, and the learner knows nothing of it."""
    model = tmp_path / "model"
    if known is not None:
        model.mkdir()
        (model / "generation_config.json").write_text(json.dumps(known))
    key = "policy.generation.vllm_kwargs.generation_config"
    config = load_config(RECIPES[0], [*data, f"{key}=auto", f"policy.model_name={model}"])
    found = [one.level for one in rulebook.apply_rules(config) if one.key == key]
    assert found == ([level] if level else [])


def test_the_asynchronous_loop_takes_gym(data):
    loop = ["grpo.async_grpo.enabled=true", "grpo.async_grpo.max_trajectory_age_steps=1"]
    found = rulebook.apply_rules(load_config(RECIPES[0], [*data, *loop]))
    assert not [one for one in found if one.level == "error" and ("gym" in one.key or one.key == loop[0][:-5])]


def test_gyms_files_may_be_named_by_absolute_paths(data):
    paths = [
        "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml",
        "resources_servers/a/configs/a.yaml",
    ]
    absolute = ",".join(f"/opt/Gym/{path}" for path in paths)
    config = load_config(RECIPES[0], [*data, f"env.nemo_gym.config_paths=[{absolute}]"])
    assert not [one for one in rulebook.apply_rules(config) if one.key == "env.nemo_gym.config_paths"]


def test_a_shrunk_baseline_takes_rewards_that_effort_levels_shape(data):
    effort = "+env.nemo_gym.effort_levels={low_string: x, low_weight: 1.0, low_ub: 9}"
    plain, shaped = (load_config(RECIPES[0], [*data, *more, "+reinforce_ada.advantage.baseline=shrunk"])
                     for more in ([], [effort]))  # fmt: skip
    errors = [[one.key for one in rulebook.apply_rules(config) if one.level == "error"] for config in (plain, shaped)]
    assert errors[0] == errors[1]
    low, high = compute_reward_range(Values(shaped))
    assert compute_reward_range(Values(plain)) == (0, 1) and low < -10 and high == 2


def test_a_data_set_without_requests_says_who_writes_one(tmp_path):
    (tmp_path / "set.jsonl").write_text('{"problem": "1 + 1?", "gt": "2"}\n')
    config = load_config(RECIPES[0], [f"data.train.data_path={tmp_path / 'set.jsonl'}"])
    found = [one for one in rulebook.apply_rules(config) if one.key == "data.train.data_path" and one.level == "error"]
    (columns,) = [one.message for one in found if "no column 'responses_create_params'" in one.message]
    assert "ng_prepare_data" in columns


@pytest.mark.nemo_rl
@every_recipe
def test_nemo_rl_itself_loads_it(path, data):
    """Its own recipe beneath lacks a key that its loop asks for."""
    if reason := why_not_importable():
        pytest.skip(reason)
    grpo = importlib.import_module(MODULE)
    loaded = importlib.import_module("nemo_ada.nemo.launch.command").load(path, data)
    assert grpo.MasterConfig(**loaded).policy["megatron_cfg"]["enabled"] is True
