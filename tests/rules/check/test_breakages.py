"""Ways to break a config: each is refused under its key, and the message says what would work."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_ada.config.parsing import find_divisors
from nemo_ada.config.values import Values
from nemo_ada.rules.bounds import BOUNDS
from nemo_ada.rules.check import gpu
from nemo_ada.rules.check.capacity import check_checkpoint_disk
from nemo_ada.rules.check.command import examine_nemo_rl as check
from nemo_ada.rules.check.site import check_site
from nemo_ada.rules.data import PUBLISHED
from nemo_ada.rules.facts import attributes, hub, upstream
from nemo_ada.rules.facts.checkout import Checkout
from nemo_ada.rules.facts.memory import compute_checkpoint_bytes
from nemo_ada.rules.facts.models import TABLE, ModelShape
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.finding import choose_exit_code
from nemo_ada.rules.learners import check_other_adapters
from nemo_ada.rules.precision import list_rollout_parallel_sizes
from nemo_ada.rules.rulebook import apply_model_rules

sys.path.insert(0, str(Path(__file__).parent))
from recipes import EXPERTS, FP8_ROLLOUT, FP8_TRAINING, changed, read

LEARNER, VLLM = "policy.megatron_cfg", "policy.generation.vllm_cfg"
OPTIMIZER, CORRECTION = f"{LEARNER}.optimizer", "loss_fn.use_importance_sampling_correction"
KWARGS, SHARE = "policy.generation.vllm_kwargs", f"{VLLM}.gpu_memory_utilization"
TP, PP, CP = (f"{LEARNER}.{word}_parallel_size" for word in ("tensor_model", "pipeline_model", "context"))
EP, VLLM_TP = f"{LEARNER}.expert_model_parallel_size", f"{VLLM}.tensor_parallel_size"
ETP, VLLM_PP = f"{LEARNER}.expert_tensor_parallel_size", f"{VLLM}.pipeline_parallel_size"
VLLM_EP = f"{VLLM}.expert_parallel_size"
OUTER = [f"{LEARNER}.num_layers_in_{end}_pipeline_stage" for end in ("first", "last")]
NODES, BATCH = "cluster.num_nodes", "policy.train_global_batch_size"
MULTIPLE, PACKING = "policy.make_sequence_length_divisible_by", "policy.sequence_packing.enabled"
PRECISE = f"{OPTIMIZER}.use_precision_aware_optimizer"
PACK, FUSED = "policy.sequence_packing.train_mb_tokens", "policy.sequence_packing.fuse_loss"
SAVES, KEEP = "checkpointing.checkpoint_dir", "checkpointing.keep_top_k"
VALIDATION, POSITIONS = "data.validation.dataset_name", "policy.hf_config_overrides.max_position_embeddings"

STAGES = EXPERTS | {"policy.model_name": "Qwen/Qwen3-235B-A22B", NODES: 16, TP: 2, PP: 8, CP: 2, MULTIPLE: 8, EP: 16}
STAGES[VLLM_TP] = 16

SMALL = {"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 6}
SMALL |= {"num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 4096}

# (key, a value that it cannot have, a part of the remedy, where needed what else is set)
WRONG_VALUES = [
    ("policy.logprob_batch_size", 2, "set logprob_batch_size=1"),
    ("loss_fn.force_on_policy_ratio", True, "policy.train_global_batch_size=2048"),
    (FUSED, True, "set it to false", {PP: 2}),
    (FUSED, True, "set it to false", FP8_TRAINING),
    (FUSED, True, "HybridEP", EXPERTS | {f"{LEARNER}.moe_flex_dispatcher_backend": "hybridep"}),
    (MULTIPLE, 2, "4 would work"),
    (BATCH, 600, "2048 would work"),
    (BATCH, 1, "2048 would work"),
    ("policy.max_total_sequence_length", 8192, "4096 would work"),
    (f"{VLLM}.max_model_len", 2048, "3072 would work"),
    (VLLM_TP, 8, "1, 2 or 4"),
    ("policy.logprob_chunk_size", 1024, "defer_fp32_logits=true"),
    (f"{OPTIMIZER}.bf16", False, "agree"),
    (EP, 2, "set it to 1"),
    ("data.train.output_key", "answer", "problem, gt"),
    ("data.default.system_prompt_file", "no/such.txt", "absolute path"),
    ("reinforce_ada", {"preset": "ada_seq_balance", "budget": {"max_samples": 2048}}, "raise it to 4096"),
    ("reinforce_ada", {"presett": "ada_seq_balance"}, "did you mean reinforce_ada.preset"),
    (SHARE, 0.2, "larger share"),
    (f"{LEARNER}.enabled", False, "set it to true"),
    (SHARE, 2, "must be a number above 0, at most 0.92; 0.8 would work"),
    (SHARE, 0.95, "0.8 would work"),
    ("policy.generation.temperature", -1, "above 0; 1.0 would work"),
    ("policy.generation.temperature", math.nan, "1.0 would work"),
    ("policy.generation.top_p", 1.5, "at most 1"),
    (f"{OPTIMIZER}.lr", 1, "at most 0.001; 1.0e-6 would work"),
    (f"{OPTIMIZER}.lr", "fast", "1.0e-6 would work"),
    ("grpo.max_num_steps", -1, "a whole number of 1 or more; 400 would work"),
    ("grpo.max_num_steps", True, "400 would work"),
    ("grpo.val_period", -5, "-1 or more"),
    ("checkpointing.save_period", 0, "50 would work"),
    ("run_dir", " ", "runs/NAME would work"),
    ("policy.model_name", "Qwen/Qwen2.5-Math-7BB", "nemo-ada prepare CONFIG"),
    ("policy.tokenizer.name", "Qwen/Qwen2", "nemo-ada prepare CONFIG"),
    ("policy.tokenizer.name", "{tmp}", "no tokenizer.json"),
    ("data.train.data_path", "RLHFlow/reinforce_ada_esy_prompt", "nemo-ada prepare CONFIG"),
    ("data.train.data_path", "{tmp}/no.parquet", "is not there; name a file"),
    ("data.default.env_name", "math", "add it"),
    ("run_dir", "{tmp}/file/run", "set RUN_ROOT"),
    ("logger.wandb_enabled", True, "export WANDB_API_KEY"),
    (PACKING, False, "set it to true", {CP: 2, MULTIPLE: 16}),
    (MULTIPLE, 4, "16 would work", {CP: 2}),
    (MULTIPLE, 2, "of 4 (2 * CP 2); 4 would work", {TP: 1, CP: 2, f"{LEARNER}.sequence_parallel": False}),
    ("policy.train_micro_batch_size", 3, "1, 2, 4", {PACKING: False, "policy.logprob_batch_size": 3}),
    (TP, 7, "18944 feed-forward columns do not divide by TP 7; 1, 2 or 4",
     {"cluster.gpus_per_node": 7, MULTIPLE: 7, PACK: 3080}),
    (TP, 8, "1, 2 or 4 would work", {MULTIPLE: 8}),
    (TP, 4, "1 or 2 would work", {"policy.model_name": "Qwen/Qwen2.5-Math-1.5B"}),
    (PP, 8, "1, 2, 4, 7 or 14", {TP: 1, MULTIPLE: 1}),
    (PP, 8, "num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage", STAGES),
    (OUTER[0], 5, "PP 1, 2, 4", {TP: 1, PP: 4}),
    (OUTER[0], 10, "which must divide", STAGES | {OUTER[1]: 10}),
    (f"{VLLM}.precision", "fp8", "tensor_parallel_size=1 would work",
     FP8_ROLLOUT | {"policy.model_name": "Qwen/Qwen2.5-72B", VLLM_TP: 2, NODES: 8, PP: 4}),
    (CORRECTION, False, "set it to true", FP8_ROLLOUT),
    (CORRECTION, None, "set it to true", FP8_TRAINING),
    (f"{LEARNER}.fp8_cfg.fp8", "hybrid", "'e4m3'", FP8_TRAINING),
    (f"{LEARNER}.fp8_cfg.fp8_recipe", "tensorwise", "'blockwise'", FP8_TRAINING),
    (f"{LEARNER}.fp8_cfg.fp8_param", True, "False", FP8_TRAINING),
    (f"{LEARNER}.env_vars.NVTE_FP8_BLOCK_SCALING_FP32_SCALES", None, 'set it to "1"', FP8_TRAINING),
    (PRECISE, True, "use_distributed_optimizer=true", {f"{OPTIMIZER}.use_distributed_optimizer": False}),
    (f"{LEARNER}.freeze_moe_router", False, "True", EXPERTS),
    (f"{LEARNER}.moe_router_dtype", "fp32", "'fp64'", EXPERTS),
    (f"{LEARNER}.moe_router_load_balancing_type", "aux_loss", "'none'", EXPERTS),
    (EP, 64, "16 or 32 would work", EXPERTS),
    (EP, 24, "128 experts do not divide by EP 24; 1, 2, 4, 8",
     EXPERTS | {NODES: 3, "grpo.num_prompts_per_step": 510, BATCH: 2040}),
    ("policy.model_name", "half/model", "lacks model.safetensors", {TP: 2}),
    (VALIDATION, "AIME2026", "nemo-ada prepare CONFIG", {"grpo.val_period": 5}),
    (SAVES, "/proc/x", "set RUN_ROOT", {KEEP: 1}),
    (SAVES, "{tmp}", "keep fewer", {KEEP: 10**6}),
    (SAVES, "/dev/shm/x", "shared folder", {KEEP: 1, "policy.model_name": "Qwen/Qwen2.5-Math-1.5B", TP: 2}),
]  # fmt: skip
# (changes, the key that must be named, a part of the remedy)
BREAKAGES = [
    ({"cluster.gpus_per_node": 6}, NODES, "cluster.num_nodes=2"),
    ({CP: 3, MULTIPLE: 24}, NODES, "cluster.num_nodes=3, 6 or 9"),
    ({VLLM_PP: 3}, VLLM_TP, "do not divide"),
    (EXPERTS | {ETP: 8}, EP, "do not divide by EP 8 * expert TP 8"),
    (
        {"grpo.async_grpo": {"enabled": True, "max_trajectory_age_steps": 1}, f"{VLLM}.enable_prefix_caching": False},
        "policy.generation.colocated.enabled",
        "the engine needs GPUs of its own",
    ),
    (
        {TP: 1, PACK: 65536, f"{LEARNER}.activation_checkpointing": False},
        "policy.train_micro_batch_size",
        "activation_checkpointing=true",
    ),
    ({PACK: 2**18, f"{LEARNER}.sequence_parallel": False}, "policy.train_micro_batch_size", "sequence_parallel=true"),
    ({"reinforce_ada.budget": {"max_seconds": 1}}, "reinforce_ada.budget.max_seconds", "`nemo-ada plan CONFIG`"),
    ({"grpo.val_period": 5}, "data.validation", "dataset_name: AIME2024 would work"),
    (
        {"policy.generation.colocated": {"enabled": False}},
        "policy.generation.colocated.resources.gpus_per_node",
        "set enabled to true",
    ),
]
BREAKAGES += [({**dict(*others), key: value}, key, remedy) for key, value, remedy, *others in WRONG_VALUES]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A cache as `nemo-ada prepare` leaves it, half a model, and the parts of a checkout that are read."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "file").touch()
    for name in (*TABLE, "half/model"):
        cached = folder / f"hub/models--{name.replace('/', '--')}"
        files = cached / "snapshots/1"
        files.mkdir(parents=True)
        (cached / "refs").mkdir()
        (cached / "refs/main").write_text("1")
        for file in ("config.json", "tokenizer.json", *(("model.safetensors",) if name in TABLE else ())):
            (files / file).write_text(json.dumps(SMALL))
    for name in PUBLISHED:
        (folder / "datasets" / name.replace("/", "___")).mkdir(parents=True)
        (folder / "datasets" / name.replace("/", "___") / "train.arrow").touch()
    checkout(folder)
    return folder


def checkout(folder):
    """A NeMo-RL in which each function that the hooks replace is a line, and each attribute that they read."""
    functions = {}
    for point in (*upstream.PATCH_POINTS, upstream.SAMPLE_ROLLOUT):
        result = ", ".join("12" if "2 values" in point.returns else "1")
        functions.setdefault(point.origin, []).append(
            f"def {point.name}({', '.join(point.parameters)}):\n    return {result}\n"
        )
    functions[upstream.ACTORS] = [
        f"class {actor}:\n"
        + "".join(f"    def {method}({', '.join(parameters)}): ...\n"
                  for method, parameters in upstream.list_methods(actor, of_batches=False).items())
        + "".join(f"    {name}: int\n" for reader in (*attributes.COLLECTOR_OF_GROUPS, *attributes.BUFFER)
                  for name in sorted(attributes.list_reads(reader)) if reader.of.endswith(f".{actor}")
                  and name not in upstream.list_methods(actor, of_batches=False))
        for actor in upstream.METHODS
    ]  # fmt: skip
    for module, texts in functions.items():
        path = (folder / module.replace(".", "/")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(texts))


@pytest.fixture(autouse=True)
def offline(site, monkeypatch):
    for name, value in {"HF_HOME": site, "HF_HUB_OFFLINE": 1, "NEMO_RL_HOME": site, "NEMO_ADA_SITE": "/none"}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("RUN_ROOT", "WANDB_API_KEY", "WANDB_MODE", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("netrc.netrc", lambda file=None: SimpleNamespace(authenticators=lambda host: None))


def everything(changes, tmp=""):
    filled = {k: v.replace("{tmp}", str(tmp)) if isinstance(v, str) else v for k, v in changes.items()}
    config = changed(filled)
    found = check(config, site=True)
    if any(finding.key in BOUNDS or finding.key == "run_dir" for finding in found if finding.level == "error"):
        return found
    return [*found, *check_site(Values(config))]


def errors(changes, tmp=""):
    return [finding for finding in everything(changes, tmp) if finding.level == "error"]


WORKING = {
    "bf16": {},
    "fp8 training": FP8_TRAINING | {PRECISE: None},
    "fp8": FP8_ROLLOUT,
    "experts": EXPERTS,
    "pipeline": {TP: 2, PP: 2},
    "forced ratio": {"loss_fn.force_on_policy_ratio": True, BATCH: 2048, "policy.logprob_batch_size": 2},
    "outer stages": STAGES | dict.fromkeys(OUTER, 11),
    "more positions": dict.fromkeys(
        ("policy.max_total_sequence_length", f"{VLLM}.max_model_len", POSITIONS, PACK), 8192
    ),
    "a number as text": {f"{OPTIMIZER}.lr": "1e-6"},
    "sizes left to their defaults": dict.fromkeys(
        (CP, EP, ETP, VLLM_TP, VLLM_PP, VLLM_EP, "policy.logprob_batch_size")
    ),
}


@pytest.mark.parametrize("changes", WORKING.values(), ids=WORKING)
def test_a_valid_recipe_has_no_errors(changes):
    assert errors(changes) == []
    fits = {finding.key for finding in check(changed(changes)) if finding.level == "ok"}
    assert {"policy.model_name", "policy.train_micro_batch_size", SHARE} <= fits


def test_an_environment_of_the_users_own_is_taken_with_its_class(site, monkeypatch):
    """The module is looked for where the job will look, and is not run."""
    own = {"data.default.env_name": "mine", "env.mine": {"class": "my_reward.Mine"}}
    assert [(f.key, "there is no module my_reward" in f.message) for f in errors(own, site)] == [
        ("env.mine.class", True)
    ]
    (site / "my_reward.py").write_text("raise SystemExit\n\n\nclass Mine:\n    pass\n")
    monkeypatch.syspath_prepend(str(site))
    assert errors(own, site) == []
    other = {"data.default.env_name": "mine", "env.mine": {"class": "my_reward.Yours"}}
    assert [f.message.endswith("defines no Yours") for f in errors(other, site)] == [True]


def test_the_value_that_a_message_recommends_works():
    assert [key for key, (bound, works) in BOUNDS.items() if not bound.holds(works)] == []


@pytest.mark.parametrize(("changes", "key", "remedy"), BREAKAGES)
def test_a_broken_constraint_is_found_under_its_key_with_a_remedy(changes, key, remedy, site):
    found = errors(changes, site)
    assert {finding.key for finding in found} == {key}
    assert any(remedy in finding.message for finding in found), [finding.message for finding in found]
    assert choose_exit_code(found) == 2


MANY_BATCHES = {"grpo.use_dynamic_sampling": True, "grpo.dynamic_sampling_max_gen_batches": 6}


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"policy.model_name": "Qwen/Qwen3-4B"}, "policy.tokenizer.chat_template_kwargs.enable_thinking", "thinks"),
        ({"reinforce_ada": None}, "reinforce_ada", "NeMo-RL's own"),
        ({SHARE: 0.26}, SHARE, "larger share"),
        ({"checkpointing.enabled": False}, "checkpointing.enabled", "set it to true"),
        (
            {f"{LEARNER}.enabled": False, "policy.dtensor_cfg.enabled": True},
            "policy.dtensor_cfg.enabled",
            "not checked",
        ),
        ({"policy.generation.max_new_tokens": 2049}, "policy.generation.max_new_tokens", "max_new_tokens=2048"),
        (
            {
                "data.max_input_seq_length": 3072,
                "policy.generation.max_new_tokens": 3072,
                f"{VLLM}.max_model_len": 3072,
            },
            "policy.generation.max_new_tokens",
            "data.max_input_seq_length=1536",
        ),
        (MANY_BATCHES | {"reinforce_ada.budget": {"max_samples": 4096}}, "grpo.use_dynamic_sampling", "7 times"),
        ({f"{KWARGS}.max_num_seqs": 128}, f"{KWARGS}.max_num_seqs", f"{KWARGS}.max_num_seqs=512 would work"),
        ({"loss_fn.positive_example_nll_weight": 0.1}, "loss_fn.positive_example_nll_weight", "has no effect"),
    ],
)
def test_what_may_work_is_a_warning(changes, key, said):
    found = everything(changes)
    told = [finding for finding in found if finding.key == key and finding.level != "ok"]
    assert [(finding.level, said in finding.message) for finding in told] == [("warning", True)]
    assert not [finding for finding in found if finding.level == "error"]


@pytest.mark.parametrize("section", ["dtensor_cfg", "automodel_cfg"], ids=["v0.7.0", "v0.8.0"])
def test_the_other_learner_is_known_under_both_names(section):
    policy = {"megatron_cfg": {"enabled": True}, section: {"enabled": True, "lora_cfg": {"enabled": True}}}
    assert [finding.key for finding in check_other_adapters(Values({"policy": policy}))] == [
        f"policy.{section}.lora_cfg.enabled"
    ]
    policy["megatron_cfg"]["enabled"] = False
    (finding,) = apply_model_rules(Values({"policy": policy}))
    assert (finding.level, finding.key) == ("warning", f"policy.{section}.enabled")


def test_tp_accuracy_can_be_waived_knowingly(monkeypatch):
    monkeypatch.setenv("NRL_IGNORE_TP_ACCURACY_CHECK", "1")
    found = check(changed({"policy.logprob_batch_size": 2}))
    assert [finding for finding in found if finding.key == "policy.logprob_batch_size"] == []


@pytest.mark.parametrize(("room", "level"), [(3.9, "warning"), (4.1, "ok")])
def test_the_disk_needs_room_for_the_kept_checkpoints_and_the_one_being_written(room, level, tmp_path, monkeypatch):
    recipe, shape = read({"checkpointing.checkpoint_dir": str(tmp_path), "checkpointing.keep_top_k": 3})
    free = room * compute_checkpoint_bytes(recipe, shape)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=free))
    assert [finding.level for finding in check_checkpoint_disk(recipe, shape)] == [level]


def test_adapters_of_no_layer_that_exists_have_no_checkpoint_to_make_room_for():
    """A rule of LoRA names the layer. This one divided by zero once."""
    adapters = {"enabled": True, "dim": 8, "alpha": 8, "target_modules": ["q_proj"]}
    recipe, shape = read({f"policy.megatron_cfg.peft.{name}": value for name, value in adapters.items()})
    assert not list(check_checkpoint_disk(recipe, shape))


def a_model(folder, **shape):
    """A folder with a small model's shape and a tokenizer."""
    (folder / "config.json").write_text(json.dumps(SMALL | shape))
    (folder / "tokenizer.json").touch()
    return str(folder)


def test_an_unknown_model_is_read_from_its_folder_or_the_cache(site, tmp_path):
    assert {finding.key for finding in errors({"policy.model_name": a_model(tmp_path)})} == {TP}
    weights = site / "hub/models--half--model/snapshots/1/model.safetensors"
    weights.touch()
    try:
        assert {finding.key for finding in errors({"policy.model_name": "half/model"})} == {TP}
    finally:
        weights.unlink()


@pytest.mark.parametrize(
    ("answer", "level", "said"),
    [("there", "ok", "on the hub"), ("gated", "error", "HF_TOKEN"), ("missing", "error", "mend the name"),
     ("no answer", "error", "where there is internet")],
)  # fmt: skip
def test_what_is_not_in_the_cache_is_asked_of_the_hub(answer, level, said, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "ask_hub", lambda name, kind: answer)
    found = next(f for f in everything({"policy.tokenizer.name": "a/b"}) if f.key == "policy.tokenizer.name")
    assert found.level == level and said in found.message


def test_a_nemo_rl_that_the_hooks_do_not_fit_is_refused(tmp_path, monkeypatch):
    checkout(tmp_path)
    utils = tmp_path / "nemo_rl/algorithms/utils.py"
    utils.write_text(utils.read_text().replace("return 1, 2", "return 1, 2, 3, 4"))
    rollouts = tmp_path / "nemo_rl/experience/rollouts.py"
    rollouts.write_text(rollouts.read_text().replace("task_to_env", "environments", 1))
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    found = [finding for finding in everything({}) if finding.key == "NEMO_RL_HOME" and finding.level == "error"]
    assert all("recipes/upstream/contract.py" in finding.message for finding in found)
    returned, parameters = sorted(finding.message for finding in found)
    assert "calculate_baseline_and_std_per_prompt returns 4 values, expected 2 values or 3 values" in returned
    assert "run_multi_turn_rollout takes" in parameters and "environments" in parameters


def test_gyms_function_is_judged_where_gym_is_used(tmp_path):
    checkout(tmp_path)
    assert list(upstream.find_misfits(Checkout(tmp_path), Loop.ASYNC)) == []
    assert list(upstream.find_misfits(Checkout(tmp_path), gym=True)) == [
        "nemo_rl.experience.rollouts.run_async_nemo_gym_rollout does not exist"
    ]
    with (tmp_path / "nemo_rl/experience/rollouts.py").open("a") as rollouts:
        for name, first in (
            ("run_async_nemo_gym_rollout", "policy_generation"),
            ("run_nemo_gym_rollout_sync", "engine"),
        ):
            rollouts.write(
                f"\n\ndef {name}({first}, input_batch, tokenizer, task_to_env, generation_config):\n    pass\n"
            )
    (found,) = upstream.find_misfits(Checkout(tmp_path), gym=True)
    assert "run_nemo_gym_rollout_sync" in found and "engine" in found, "main's loop calls this one"
    assert list(upstream.find_misfits(Checkout(tmp_path))) == []


def test_a_rollout_over_gym_that_wants_more_is_refused(tmp_path):
    """v0.8.0's wants the responses per prompt, which is known. Others would end in a TypeError after set-up."""
    checkout(tmp_path)
    with (tmp_path / "nemo_rl/experience/rollouts.py").open("a") as rollouts:
        for name, more in (
            ("run_async_nemo_gym_rollout", "num_generations"),
            ("run_nemo_gym_rollout_sync", "num_generations_per_prompt, wanted"),
        ):
            first = "policy_generation, input_batch, tokenizer, task_to_env, generation_config"
            rollouts.write(f"\n\ndef {name}({first}, {more}, greedy=False):\n    pass\n")
    (found,) = upstream.find_misfits(Checkout(tmp_path), gym=True)
    assert found.endswith("run_nemo_gym_rollout_sync wants wanted, which nobody here knows")


LATER_CONTROLLER = {
    "algorithms/single_controller.py": """
class SingleControllerActor:
    def __init__(self, master_config, actor_args, setup_timing_metrics): ...
    def ping(self): ...
    def run(self): ...
""",
    "algorithms/single_controller_utils/setup.py": """
class SingleControllerActorArgs:
    rollout_manager: int
    advantage_estimator: int
    save_state: int
    gen_handle: int
    trainer_handle: int
    env_handles: int
""",
    "algorithms/single_controller_utils/config.py": """
class AdvantageConfig:
    reward_field: str = "total_reward"
    token_mask_field: str = "token_mask"
    mask_sample_field: str = "mask_sample"
""",
    "experience/interfaces.py": """
class Completion:
    message_log: int
    env_extras: int
    truncated: int
    reward: int

class PromptGroupRecord:
    metadata: int
    completions: int
    rollout_metrics: int
""",
    "experience/rollout_manager.py": """
class AsyncRolloutImpl:
    def run_rollout(self, input_sample, *, rollout_ids=None): ...
    def _run_single_rollout(self, input_sample, traj_idx): ...
    def _aggregate_rollout_metrics(self, completions, all_sample_metrics): ...

class RolloutManager:
    def __init__(self, impl):
        self._impl, self._weight_version = impl, 0
    def run_rollout(self, input_sample, *, rollout_ids=None): ...
    def generate_and_push(self, input_sample, *, target_step=None, inflight_registry=None, lineage_group_id=None): ...
""",
}
"""The outlines of v0.8.0's files that the plug-in relies on (recipes/guide/single_controller.md)."""


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        (None, "", "", None),
        ("experience/rollout_manager.py", "traj_idx", "completion", "_run_single_rollout takes"),
        ("experience/rollout_manager.py", "def generate_and_push", "def push", "generate_and_push does not exist"),
        ("experience/interfaces.py", "env_extras", "extras", "Completion has no field env_extras"),
        ("algorithms/single_controller_utils/config.py", "mask_sample_field", "mask", "no field mask_sample_field"),
        ("algorithms/single_controller_utils/setup.py", "SingleControllerActorArgs", "Args", "does not exist"),
    ],
)
def test_a_newer_single_controller_is_named_where_the_plug_in_s_points_differ(tmp_path, file, old, new, named):
    checkout(tmp_path)
    for name, text in LATER_CONTROLLER.items():
        path = tmp_path / "nemo_rl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new) if name == file else text)
    found = list(upstream.find_misfits(Checkout(tmp_path), Loop.CONTROLLER))
    assert found == [] if named is None else len(found) == 1 and named in found[0]


def test_fewer_gpus_than_the_config_wants_are_refused():
    found = gpu.weigh_findings([], 4, Values(changed({})))
    assert [(f.level, f.key, "4 would work" in f.message) for f in found] == [("error", "cluster.gpus_per_node", True)]
    assert gpu.weigh_findings([], 8, Values(changed({}))) == []


def test_apex_is_asked_for_only_where_it_is_used(monkeypatch):
    fused = Values(changed({f"{LEARNER}.gradient_accumulation_fusion": True}))
    assert [finding.key for finding in gpu.weigh_findings([], 8, fused)] == [f"{LEARNER}.gradient_accumulation_fusion"]
    monkeypatch.setattr(gpu, "FUSED_KERNEL", "json")  # a module that can be imported
    assert gpu.weigh_findings([], 8, fused) == []


def test_fp8_blocks_must_fit_the_key_value_width_too(tmp_path):
    model = a_model(tmp_path, hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_key_value_heads=4)
    narrow = FP8_ROLLOUT | {"policy.model_name": model, VLLM_TP: 4, f"{KWARGS}.max_num_seqs": 2048}
    found = errors(narrow)  # 4096 / 4 fits blocks of 128, 256 / 4 does not
    assert [finding.key for finding in found] == [f"{VLLM}.precision"]
    assert "tensor_parallel_size=1 or 2 would work" in found[0].message
    assert errors(narrow | {VLLM_TP: 2}) == []


def test_a_published_config_json_gives_the_shape_of_the_table():
    published = {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
                 "moe_intermediate_size": 768, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
                 "num_hidden_layers": 48, "vocab_size": 151936, "max_position_embeddings": 40960, "num_experts": 128,
                 "num_experts_per_tok": 8, "tie_word_embeddings": False}  # fmt: skip
    assert ModelShape.from_hf_config(published) == TABLE["Qwen/Qwen3-30B-A3B"]


@pytest.mark.parametrize(("model", "tp", "padded"), [("Qwen/Qwen2.5-Math-7B", 4, 152064), ("Qwen/Qwen3-4B", 8, 152576)])
def test_the_vocabulary_is_padded_to_a_multiple_of_128_by_tp(model, tp, padded):
    assert TABLE[model].padded_vocab(tp) == padded
    assert padded % (128 * tp) == 0


@pytest.mark.parametrize(
    ("capability", "cuda", "said"),
    [((8, 0), "12.9", "need Hopper"), ((9, 0), "12.8", "12.9 or newer"), ((9, 0), "13.0", "Transformer Engine"),
     ((9, 0), "13.1", "too old")],
)  # fmt: skip
def test_fp8_needs_hopper_a_new_cuda_and_transformer_engine(capability, cuda, said, monkeypatch):
    code = "raise SystemExit(1)" if said == "Transformer Engine" else "print(False, 'too old')"
    monkeypatch.setattr(gpu, "PROBE_ENGINE", code)
    torch = SimpleNamespace(
        cuda=SimpleNamespace(get_device_capability=lambda index: capability), version=SimpleNamespace(cuda=cuda)
    )
    found = list(gpu._check_fp8(torch))
    assert [finding.level for finding in found] == ["warning"]
    assert said in found[0].message
    used = gpu.weigh_findings(found, 8, Values(changed(FP8_TRAINING)))
    assert [finding.level for finding in used] == ["error"]
    assert "without -fp8" in used[0].message
    assert gpu.weigh_findings(found, 8, Values(changed({}))) == found


def test_transformer_engine_is_looked_for_where_megatrons_workers_run(tmp_path, monkeypatch):
    worker = tmp_path / "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker/bin/python"
    worker.parent.mkdir(parents=True)
    worker.write_text("#!/bin/sh\necho True\n")
    worker.chmod(0o755)
    monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path))
    found = list(gpu._check_transformer_engine())
    assert [finding.level for finding in found] == ["ok"] and "MegatronPolicyWorker" in found[0].message


# From the published sizes: model, parameters (10^9), TP, even PP up to 8, FP8 rollout TP.
SIZES = [
    ("Qwen/Qwen2.5-Math-1.5B", 1.54, [1, 2], [1, 2, 4], [1, 2]),
    ("Qwen/Qwen2.5-Math-7B", 7.62, [1, 2, 4], [1, 2, 4], [1, 2, 4]),
    ("Qwen/Qwen3-4B-Instruct-2507", 4.02, [1, 2, 4, 8], [1, 2, 4], [1, 2, 4]),
    ("meta-llama/Llama-3.2-3B-Instruct", 3.21, [1, 2, 4, 8], [1, 2, 4], [1, 2, 4, 8]),
    ("meta-llama/Llama-3.1-8B-Instruct", 8.03, [1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]),
    ("Qwen/Qwen2.5-32B", 32.8, [1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]),
    ("meta-llama/Llama-3.3-70B-Instruct", 70.6, [1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]),
    ("Qwen/Qwen2.5-72B", 72.7, [1, 2, 4, 8], [1, 2, 4, 8], [1]),
    ("Qwen/Qwen3-30B-A3B", 30.5, [1, 2, 4], [1, 2, 4, 8], [1, 2]),
    ("Qwen/Qwen3-235B-A22B", 235.1, [1, 2, 4], [1, 2], [1, 2, 4]),
]


@pytest.mark.parametrize(("model", "billions", "tp", "pp", "fp8"), SIZES)
def test_parameters_and_parallel_sizes_are_the_published_ones(model, billions, tp, pp, fp8):
    shape, powers = TABLE[model], (1, 2, 4, 8)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert [n for n in find_divisors(shape.heads, shape.kv) if n in powers] == tp
    assert [n for n in find_divisors(shape.layers) if n in powers] == pp
    assert [n for n in list_rollout_parallel_sizes(shape, 8) if n in tp] == fp8


@pytest.mark.parametrize(("prompts", "told"), [(2048, True), (64, False)])
def test_the_default_engine_is_pointed_to_the_faster_one_where_many_responses_run_at_once(prompts, told):
    changes = {f"{VLLM}.async_engine": False, f"{KWARGS}.scheduler_cls": None, "grpo.num_prompts_per_step": prompts}
    changes |= {"policy.model_name": "Qwen/Qwen2.5-Math-1.5B", TP: 1, f"{LEARNER}.sequence_parallel": False}
    changes["reinforce_ada"] = {"preset": "grpo", "sampling": {"scheduler": "rounds"}}
    found = [
        one.message for one in check(changed(changes)) if one.key == f"{VLLM}.async_engine" and one.level == "warning"
    ]
    assert any("faster.md" in text for text in found) is told
