"""Make the model of a rehearsal, its tokenizer, and the log-probabilities that Hugging Face computes with a small one.

The model has the classes of its family and random weights. On a GPU it has the real shape, in BF16.
This runs in the policy interpreter, without stand-ins:

    python -m nemo_ada.rehearsal.model SPEC.json FOLDER LOGPROBS.pt
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.rehearsal.problems import PIECES, SIZE, SPECIAL
from nemo_ada.rules.facts.models import TABLE, ModelShape, find_shape
from nemo_ada.run.files import json_of

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
HEAD, HEADS, HIDDEN, FFN, EXPERTS, TOP_K = 64, 4, 128, 128, 4, 2
ROWS, TOKENS = 8, 24
# A model with random weights almost never says its end token, so each response would be cut at the longest length. The
# loss leaves out rows that were cut, and over NeMo-Gym a turn that is cut ends the agent's work. So a rehearsal would
# have no gradient. These families have no bias of the output that could raise one token, so we make one out of the
# first hidden coordinate: each token's embedding has STEADY there, and no layer adds to it. After the final norm it is
# nearly the same at every position, whatever the text says. The end token's output weight on it, END_BIAS, then raises
# that token's logit everywhere, and responses end after about ten tokens.
STEADY, END_BIAS = 1.0, 10.0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The model of a rehearsal.

    Attributes:
        family: `model_type` of transformers.
        shape: Its sizes.
        small: Whether it is small. Then its weights make responses end, and Hugging Face computes with it in FP32.
    """

    family: str
    shape: ModelShape
    small: bool

    @classmethod
    def of(cls, model_name: str, *, layers: int, positions: int) -> ModelSpec:
        """Return the small model for a model of the table or a local folder. Raises UserError for any other."""
        full = require_shape(model_name)
        kv = HEADS if full.kv == full.heads else 2
        experts, top_k = (EXPERTS, TOP_K) if full.experts else (0, 0)
        shape = ModelShape(HIDDEN, FFN, HEADS, kv, layers, SIZE, positions, HEAD, full.tied, experts, top_k)
        return cls(require_family(model_name, full), shape, small=True)

    @classmethod
    def full(cls, model_name: str, layers: int) -> ModelSpec:
        """Return a model of the real shape, but for its number of layers. Raises UserError as `of`."""
        shape = require_shape(model_name)
        return cls(require_family(model_name, shape), replace(shape, layers=layers), small=False)


def require_shape(model_name: str) -> ModelShape:
    """Return the shape of a model of the table or of a local folder. Raises UserError for any other."""
    found = find_shape(model_name)
    if found is None:
        raise UserError(
            f"policy.model_name={model_name}: its shape is not known; a folder with its config.json works for "
            f"{', '.join(FAMILIES)}, and the layout of another one can be rehearsed with one of {', '.join(TABLE)}"
        )
    return found[0]


def require_family(model_name: str, shape: ModelShape) -> str:
    """Return the model's `model_type` of transformers. Raises UserError for a family that cannot be rehearsed."""
    local = Path(model_name) / "config.json"
    if local.is_file():
        family = str(json_of(local).get("model_type"))
        if family not in FAMILIES:
            raise UserError(f"policy.model_name={model_name}: {family} is not one of {', '.join(FAMILIES)}")
        return family
    if shape.experts:
        return "qwen3_moe"
    return "qwen3" if shape.qk_norm else "qwen2" if shape.qkv_bias else "llama"


def write_model(spec: ModelSpec, tokens: Sequence[str], folder: Path, logprobs: Path) -> None:
    """Save the model, its tokenizer and the log-probabilities of fixed rows.

    Args:
        spec: Properties of the model.
        tokens: Texts of the tokens, by token id.
        folder: Hugging Face folder, which NeMo-RL, Bridge and vLLM read.
        logprobs: File for the rows' tokens and their log-probabilities, where the model is small.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    shape = spec.shape
    arguments: dict[str, Any] = {
        "vocab_size": shape.vocab, "hidden_size": shape.hidden, "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv,
        "max_position_embeddings": shape.positions, "tie_word_embeddings": shape.tied, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.1 if spec.small else 0.02,
    }  # fmt: skip
    if spec.family.startswith("qwen3"):
        arguments["head_dim"] = shape.head_dim
    if spec.family == "qwen3_moe":
        width = shape.ffn // 2 if spec.small else shape.ffn
        arguments |= {"num_experts": shape.experts, "num_experts_per_tok": shape.top_k, "moe_intermediate_size": width,
                      "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}  # fmt: skip
    if not spec.small:
        config = AutoConfig.for_model(spec.family, **arguments, dtype=torch.bfloat16)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        _make_tokenizer(tokens).save_pretrained(folder)
        return
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(spec.family, **arguments)).float()
    with torch.no_grad():
        embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embedding[:, 0] = output[:, 0] = STEADY
        output[2, 0] += END_BIAS
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):  # what a layer adds to the first coordinate
                weight[0] = 0.0
    model.save_pretrained(folder)
    _make_tokenizer(tokens).save_pretrained(folder)
    rows = torch.randint(len(SPECIAL), SIZE, (ROWS, TOKENS), generator=torch.Generator().manual_seed(1))
    model.train(False)
    with torch.no_grad():
        row_logprobs = torch.log_softmax(model(rows).logits[:, :-1], -1).gather(-1, rows[:, 1:, None]).squeeze(-1)
    torch.save({"tokens": rows, "logprobs": row_logprobs}, logprobs)


def _make_tokenizer(tokens: Sequence[str]) -> Any:
    """Return a tokenizer of whole words, with a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=SPECIAL[3]))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES.pattern), behavior="isolated")
    words.decoder = decoders.Fuse()
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **names)
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] }}\n{{ message['content'] or '' }}"
        "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant\n{% endif %}"
    )
    return tokenizer


def spec_as_json(spec: ModelSpec, tokens: Sequence[str]) -> str:
    """Return the content of SPEC.json, which `main` reads."""
    return json.dumps({"spec": asdict(spec), "tokens": list(tokens)})


def main(arguments: Sequence[str]) -> None:
    """Write the model that the arguments name."""
    content: Mapping[str, Any] = json_of(Path(arguments[0]))
    spec = ModelSpec(**{**content["spec"], "shape": ModelShape(**content["spec"]["shape"])})
    write_model(spec, content["tokens"], Path(arguments[1]), Path(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
