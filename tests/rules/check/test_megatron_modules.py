"""Parameters per GPU against Megatron-core's own modules, built on the meta device.

torch's fake process group stands for the other ranks, so that every tensor-, pipeline- and expert-parallel rank of the
published layouts can be built here: GPTModel with the local layer spec, weights without storage. The estimate's
weights, gradients and optimizer states are multiples of this count.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.rules.facts.memory import list_stages

sys.path.insert(0, str(Path(__file__).parent))
from recipes import LAYOUTS, read

TOLERANCE = 1e-5  # the final norm is left out of the estimate

BUILD = """
import json, sys
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore
from nemo_ada.cpu.learner import shim

def count(case, rank):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=case["gpus"])
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"],
        expert_model_parallel_size=case["ep"], expert_tensor_parallel_size=1, create_gloo_process_groups=False,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(0, inference_rng_tracker=True)
    experts = dict(
        num_moe_experts=case["experts"], moe_router_topk=case["top_k"], moe_ffn_hidden_size=case["ffn"],
        moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather",
    ) if case["experts"] else {}
    config = TransformerConfig(
        num_layers=case["layers"], hidden_size=case["hidden"], ffn_hidden_size=case["ffn"],
        num_attention_heads=case["heads"], num_query_groups=case["kv"], kv_channels=case["head_dim"],
        normalization="RMSNorm", activation_func=torch.nn.functional.silu, gated_linear_unit=True,
        add_bias_linear=False, add_qkv_bias=case["qkv_bias"], qk_layernorm=case["qk_norm"],
        tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"],
        expert_model_parallel_size=case["ep"], expert_tensor_parallel_size=1,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, bf16=True, use_cpu_initialization=True,
        perform_initialization=False, persist_layer_norm=False, gradient_accumulation_fusion=False, **experts,
    )
    with torch.device("meta"):
        model = GPTModel(
            config=config,
            transformer_layer_spec=get_gpt_layer_local_spec(
                num_experts=case["experts"] or None, qk_layernorm=case["qk_norm"], normalization="RMSNorm"
            ),
            vocab_size=case["padded_vocab"], max_sequence_length=4096, position_embedding_type="rope",
            pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
            parallel_output=True, share_embeddings_and_output_weights=case["tied"],
        )
    found = sum(parameter.numel() for parameter in model.parameters())
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    return found

shim.install()
cases = json.load(sys.stdin)
print(json.dumps({name: [count(case, rank) for rank in case["ranks"]] for name, case in cases.items()}))
"""


def described(changes):
    """What the child needs of a case: the layout, the shape, the first and the last stage's first rank."""
    config, shape = read(changes)
    names = ("layers", "hidden", "ffn", "heads", "kv", "head_dim", "qkv_bias", "qk_norm", "tied", "experts", "top_k")
    last = config.gpus // config.learner.pp * (config.learner.pp - 1)
    return {name: getattr(shape, name) for name in names} | {
        "tp": config.learner.tp, "pp": config.learner.pp, "ep": config.learner.ep, "gpus": config.gpus,
        "padded_vocab": shape.padded_vocab(config.learner.tp), "ranks": [0] if config.learner.pp == 1 else [0, last],
    }  # fmt: skip


@pytest.fixture(scope="module")
def megatron():
    """Case -> parameters on a rank of the first and of the last stage."""
    pytest.importorskip("megatron.core")
    done = subprocess.run(
        [sys.executable, "-c", BUILD], input=json.dumps({name: described(case) for name, case in LAYOUTS.items()}),
        capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", LAYOUTS)
def test_a_rank_holds_as_many_parameters_as_megatrons_own_modules(case, megatron):
    config, shape = read(LAYOUTS[case])
    estimated = [held.total for held, _, _ in list_stages(config, shape)]
    assert estimated == pytest.approx(megatron[case], rel=TOLERANCE)
