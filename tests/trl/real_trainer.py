"""Runs TRL's GRPOTrainer on a small model, in TRL's interpreter. Writes what test_trl.py compares into a JSON file."""

import json
import sys
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from nemo_ada.trl import AdaRollout

WORDS = ["<pad>", "<eos>", *"0123456789"]
TEXTS = [f"{i} {j}" for i in range(10) for j in range(10)]
GROUP, PROMPTS, STEPS = 4, 6, 3


def tokenizer():
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left", chat_template=template
    )


def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def reward(completions, limit, **_):
    """1 where the first word of the completion is a digit below the limit."""
    texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
    first = [(text.split() or [""])[0] for text in texts]
    return [float(word.isdigit() and int(word) < below) for word, below in zip(first, limit, strict=True)]


class Recording(GRPOTrainer):
    """Keeps the batches that the loss gets."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        mask = batch.get("tool_mask", torch.ones_like(batch["completion_mask"])) * batch["completion_mask"]
        self.batches.append({
            "advantages": batch["advantages"].tolist(),
            "tokens": mask.sum(1).tolist(),
            "wanted": self.ada.advantages if self.ada else None,
        })  # fmt: skip
        return batch


def train(section, group, steps=STEPS, chat=False, texts=TEXTS):
    rows = [
        {"prompt": [{"role": "user", "content": text}] if chat else text, "limit": i % 9}
        for i, text in enumerate(texts)
    ]
    ada = AdaRollout(reward, section) if section else None
    size = group + 1 if ada else group
    options = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, per_device_train_batch_size=size * PROMPTS,
        gradient_checkpointing=False, num_generations=size, max_completion_length=4, max_steps=steps,
        shuffle_dataset=False, loss_type="dapo", scale_rewards="none", beta=0.0, learning_rate=1e-2, seed=7,
        logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True, eval_strategy="no",
        per_device_eval_batch_size=size, num_generations_eval=size,
        lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = Recording(
        model(), ada.rewards if ada else reward, options, train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:2]), processing_class=tokenizer(),
        rollout_func=ada.rollout if ada else None,
    )  # fmt: skip
    trainer.ada, trainer.batches = ada, []
    trainer.train()
    trained, trainer.batches = trainer.batches, []
    weights = torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    evaluation = trainer.evaluate()
    return {
        "batches": trained, "weights": weights.tolist(), "logged": logged,
        "eval": {key: value for key, value in evaluation.items() if "reward" in key},
    }  # fmt: skip


def main():
    results = {
        "trl": train(None, GROUP, steps=1),
        "grpo": train({"preset": "grpo"}, GROUP, steps=1),
        "balance": train({"preset": "ada_seq_balance"}, GROUP),
        "chat": train({"preset": "ada_seq_lean"}, GROUP, chat=True),
        "estimation": train({"preset": "ada_est_ema"}, 8, texts=TEXTS[::10]),  # prompts come again
        "single": train({"preset": "ada_single", "estimator": {"kind": "ema"}}, 1),
    }
    Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
