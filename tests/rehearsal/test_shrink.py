"""What shrinks and what must not: parallel kinds, updates per step, divisibility, the path's switches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_ada.errors import UserError
from nemo_ada.rehearsal import installation, model
from nemo_ada.rehearsal.problems import SIZE
from nemo_ada.rehearsal.shrink import LENGTH, OF_A_STEP, STAGE_LAYERS, Layout, Shrinker, shrink
from nemo_ada.rehearsal.standins import pynvml
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.single_controller import check_controller_needs, check_controller_sizes

ROOT = Path(__file__).resolve().parents[2]


def small(config: dict[str, Any], tmp_path: Path) -> tuple[Shrinker, Layout]:
    return shrink(config, model=tmp_path / "model", data=tmp_path / "data", out=tmp_path / "run", steps=3)


def config(**learner: Any) -> dict[str, Any]:
    sizes = {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
             "expert_model_parallel_size": 1}  # fmt: skip
    return {
        "grpo": {"num_prompts_per_step": 512, "num_generations_per_prompt": 4, "max_num_steps": 400, "val_period": 50},
        "policy": {
            "model_name": "Qwen/Qwen2.5-Math-7B", "tokenizer": {"name": "Qwen/Qwen2.5-Math-7B"},
            "train_global_batch_size": 512, "train_micro_batch_size": 4, "logprob_batch_size": 8,
            "max_total_sequence_length": 3072, "precision": "bfloat16",
            "megatron_cfg": {"enabled": True, "optimizer": {"lr": 1e-6, "min_lr": 1e-7}, **sizes, **learner},
            "sequence_packing": {"enabled": True, "train_mb_tokens": 6144},
            "generation": {"max_new_tokens": 2048, "vllm_cfg": {"async_engine": True, "tensor_parallel_size": 4}},
        },
        "cluster": {"num_nodes": 4, "gpus_per_node": 8},
        "checkpointing": {"enabled": True, "save_period": 10},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, Layout("megatron", 2, 1, 1, 1, 1)),
        ({"tensor_model_parallel_size": 1}, Layout("megatron", 1, 1, 1, 1, 2)),
        ({"pipeline_model_parallel_size": 8}, Layout("megatron", 2, 2, 1, 1, 1)),
        ({"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2}, Layout("megatron", 1, 2, 1, 1, 1)),
        ({"tensor_model_parallel_size": 1, "expert_model_parallel_size": 8}, Layout("megatron", 1, 1, 1, 2, 2)),
        ({"expert_model_parallel_size": 16, "pipeline_model_parallel_size": 8}, Layout("megatron", 2, 2, 1, 2, 1)),
    ],
)
def test_each_kind_of_parallelism_stays(sizes: dict[str, int], expected: Layout, tmp_path: Path) -> None:
    shrinker, layout = small(config(**sizes), tmp_path)
    assert layout == expected
    assert shrinker.get("cluster") == {"num_nodes": 1, "gpus_per_node": expected.world}
    assert (expected.tp * expected.dp) % expected.ep == 0


@pytest.mark.parametrize(
    ("stages", "expected"),
    [({"first": 11, "last": 11}, {"first": 1, "last": 3}), ({"first": 11}, {"first": 1}), ({"last": 11}, {"last": 1})],
)
def test_uneven_pipeline_stages_stay_uneven_and_hold_every_layer(
    stages: dict[str, int], expected: dict[str, int], tmp_path: Path
) -> None:
    keys = {f"num_layers_in_{which}_pipeline_stage": layers for which, layers in stages.items()}
    shrinker, layout = small(config(pipeline_model_parallel_size=8, **keys), tmp_path)
    learner = shrinker.get("policy.megatron_cfg")
    assert {which: learner[f"num_layers_in_{which}_pipeline_stage"] for which in stages} == expected
    assert layout.pp * STAGE_LAYERS == 4


def test_updates_per_step_stay_and_batches_divide(tmp_path: Path) -> None:
    shrinker, layout = small(config(tensor_model_parallel_size=1), tmp_path)
    rows = shrinker.get("grpo.num_prompts_per_step") * shrinker.get("grpo.num_generations_per_prompt")
    update = shrinker.get("policy.train_global_batch_size")
    assert rows // update == 4
    assert update % (layout.dp * shrinker.get("policy.train_micro_batch_size")) == 0


def test_a_batch_that_does_not_divide_stays_wrong(tmp_path: Path) -> None:
    wrong = config()
    wrong["policy"]["train_global_batch_size"] = 500
    shrinker, _ = small(wrong, tmp_path)
    assert shrinker.get("policy.train_global_batch_size") == 500


def test_the_path_is_not_changed(tmp_path: Path) -> None:
    shrinker, _ = small(config(), tmp_path)
    assert shrinker.get("policy.sequence_packing.enabled") is True
    assert shrinker.get("policy.generation.vllm_cfg.async_engine") is True
    assert shrinker.get("checkpointing.enabled") is True
    assert shrinker.get("policy.max_total_sequence_length") == LENGTH


def test_every_change_is_recorded_with_its_old_value(tmp_path: Path) -> None:
    shrinker, _ = small(config(context_parallel_size=2), tmp_path)
    told = {change.key: change for change in shrinker.changes}
    assert told["policy.megatron_cfg.tensor_model_parallel_size"].old == 4
    assert told["policy.megatron_cfg.context_parallel_size"].new == 1
    assert told["policy.precision"].why


def test_learning_rates_keep_their_ratio(tmp_path: Path) -> None:
    shrinker, _ = small(config(), tmp_path)
    optimizer = shrinker.get("policy.megatron_cfg.optimizer")
    assert optimizer["min_lr"] / optimizer["lr"] == pytest.approx(0.1)


def test_tokens_of_another_vocabulary_go_and_checkpoints_are_saved(tmp_path: Path) -> None:
    """NeMo-RL's recipes for Llama name end tokens, and its performance recipes save nothing."""
    own = config()
    own["policy"]["generation"]["stop_token_ids"] = [128009]
    own["checkpointing"]["enabled"] = False
    own["cluster"]["segment_size"] = 2  # GB200's, which would ask for two nodes
    shrinker, _ = small(own, tmp_path)
    assert shrinker.get("policy.generation.stop_token_ids") is None
    assert shrinker.get("checkpointing.enabled") is True and shrinker.get("cluster.segment_size") is None
    assert "policy.generation.stop_token_ids" in {change.key for change in shrinker.changes}


def test_a_config_without_a_learner_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"megatron_cfg\.enabled"):
        small({"policy": {"megatron_cfg": {"enabled": False}}}, tmp_path)


def test_dtensor_is_rehearsed_unpacked_in_both_versions(tmp_path: Path) -> None:
    dtensor = config(enabled=False)
    dtensor["policy"]["dtensor_cfg"] = {"enabled": True, "_v2": False, "tensor_parallel_size": 1}
    shrinker, layout = small(dtensor, tmp_path)
    assert layout == Layout("dtensor", 1, 1, 1, 1, 2)
    assert shrinker.get("policy.sequence_packing.enabled") is False
    dtensor["policy"]["dtensor_cfg"] |= {"_v2": True, "lora_cfg": {"enabled": True, "use_triton": True}}
    shrinker, second = small(dtensor, tmp_path)
    assert second == layout and shrinker.get("policy.dtensor_cfg.lora_cfg.enabled") is True
    assert shrinker.get("policy.dtensor_cfg.lora_cfg.use_triton") is False  # its kernels need a GPU
    dtensor["policy"]["automodel_cfg"] = dtensor["policy"].pop("dtensor_cfg")
    with pytest.raises(UserError, match=r"policy\.automodel_cfg"):
        small(dtensor, tmp_path)


def test_the_user_s_config_is_left_alone(tmp_path: Path) -> None:
    original = config()
    small(original, tmp_path)
    assert original == config()


OURS = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_every_config_of_ours_shrinks(path: Path, tmp_path: Path) -> None:
    try:
        full = load_config(path)
    except UserError as error:
        pytest.skip(str(error))
    shrinker, layout = small(full, tmp_path)
    rows = shrinker.get("grpo.num_prompts_per_step") * shrinker.get("grpo.num_generations_per_prompt")
    assert rows % shrinker.get("policy.train_global_batch_size") == 0
    assert layout.world <= 4


def test_an_engine_with_gpus_of_its_own_keeps_them(tmp_path: Path) -> None:
    apart = config()
    resources = {"gpus_per_node": 8, "num_nodes": 2}
    apart["policy"]["generation"]["colocated"] = {"enabled": False, "resources": resources}
    shrinker, layout = small(apart, tmp_path)
    assert (layout.world, layout.engines) == (2, 1)
    assert shrinker.get("cluster") == {"num_nodes": 1, "gpus_per_node": 3}
    assert shrinker.config["policy"]["generation"]["colocated"]["resources"] == {"gpus_per_node": 1, "num_nodes": None}


def test_the_refits_buffer_holds_each_tensor_of_the_small_model_but_not_all_of_them() -> None:
    free = pynvml.make_module().nvmlDeviceGetMemoryInfo(0).free
    half = int(free * float(installation.ON_A_CPU["NRL_REFIT_BUFFER_MEMORY_RATIO"])) // 2  # NeMo-RL fills two in turn
    largest = 4 * model.HIDDEN * max(SIZE, model.HEADS * model.HEAD, model.FFN)
    assert largest <= half < 5 * largest  # embedding, and a query and an output projection in each of two layers


def test_lora_on_megatron_stays_and_its_rate_is_smaller(tmp_path: Path) -> None:
    rates = []
    for section in ({}, {"peft": {"enabled": True, "dim": 32}}):
        shrinker, layout = small(config(**section), tmp_path)
        assert layout.learner == "megatron"
        assert shrinker.get("policy.megatron_cfg.peft") == section.get("peft")
        rates.append(shrinker.get("policy.megatron_cfg.optimizer.lr"))
    assert rates[1] < rates[0]


SECTION: dict[str, Any] = {
    "min_groups_for_streaming_train": 128, "max_inflight_prompts": 640, "max_buffered_rollouts": 640,
    "rollout_failure": {"replacement_reserve_prompts": 4}, "sampler": {"name": "in_order", "max_lookahead_versions": 4},
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"), [(SECTION, (8, 40, 40, 1)), ({"max_inflight_prompts": 256}, (2, 16, 4, None))]
)
def test_what_counts_the_prompts_of_a_step_keeps_its_ratio_to_them(
    given: dict[str, Any], expected: tuple[int, ...], tmp_path: Path
) -> None:
    """NeMo-RL has defaults for the single controller that are larger than a step of a rehearsal."""
    full = config() | {"async_rl": given}
    full["grpo"] |= {"num_prompts_per_step": 128}
    shrinker, _ = small(full, tmp_path)
    assert shrinker.get("grpo.num_prompts_per_step") == 8
    assert tuple(shrinker.get(key) for key in OF_A_STEP) == expected


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/methods/*.yaml")), ids=lambda path: path.stem)
def test_every_overlay_shrinks_to_sizes_that_its_loop_takes(path: Path, tmp_path: Path) -> None:
    full = load_config(ROOT / "configs" / "qwen2.5-math-1.5b.yaml", [str(path)])
    shrinker, _ = small(full, tmp_path)
    rules = (check_controller_needs, check_controller_sizes)
    assert [finding for rule in rules for finding in rule(shrinker) if finding.level == "error"] == []
    assert shrinker.get("grpo.num_prompts_per_step") <= 16
