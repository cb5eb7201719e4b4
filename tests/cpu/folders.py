"""Tiny Hugging Face models with a tokenizer of their own, as a user brings them. Nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHAT = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
TEXT = [f"{n:03d}{'ab'[n % 2]} is {n % 4}, and then the number {n}." for n in range(300)]
VOCABULARY = 384
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": VOCABULARY, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "initializer_range": 0.2,
}  # fmt: skip


def write_tokenizer(folder: Path, chat: bool = True) -> None:
    """A byte-level BPE of some 300 tokens, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    bpe.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>")
    if chat:
        fast.chat_template = CHAT
    fast.save_pretrained(folder)


def write_model(folder: Path, kind: str, *, tied: bool = False, seed: int = 0, **changes: Any) -> Path:
    """A random model of an architecture (`llama`, `qwen2`, `qwen3`, ...) and its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = SIZES | ({"hidden_size": 128} if kind == "qwen2" else {}) | changes  # a Qwen2's heads are as wide together
    config = AutoConfig.for_model(kind, tie_word_embeddings=tied, eos_token_id=1, bos_token_id=0, **sizes)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # transformers starts biases at 0 and norms at 1
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder
