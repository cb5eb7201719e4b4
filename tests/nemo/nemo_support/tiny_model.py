"""A character tokenizer and a Qwen2 of a few thousand weights: real Hugging Face parts that need no download."""

from __future__ import annotations

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

PAD, END, RIGHT, WRONG, HANGING = "<pad>", "<end>", "+", "-", "="
CHARACTERS = (RIGHT, WRONG, HANGING, *"0123456789", *"pv")


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, plus padding (id 0) and end of sequence (id 1)."""
    vocabulary = {token: index for index, token in enumerate((PAD, END, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)


def tiny_model(vocabulary_size: int, seed: int) -> Qwen2ForCausalLM:
    """A random causal model in float32; equal seeds give equal weights, and the global generator is left alone."""
    config = Qwen2Config(
        vocab_size=vocabulary_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def next_token_logprobs(model: Qwen2ForCausalLM, tokens_RT: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [R, T-1] of tokens 1..T-1 given what precedes each. Rows are right-padded and attention is
    causal, so no mask is needed: what a padding position yields is never read."""
    logits = model(tokens_RT, use_cache=False).logits[:, :-1].float()
    return torch.log_softmax(logits, dim=-1).gather(-1, tokens_RT[:, 1:].unsqueeze(-1)).squeeze(-1)
