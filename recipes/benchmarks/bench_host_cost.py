"""What a token costs on the host: NeMo-RL's synchronous vLLM engine, its asynchronous one, and that with few messages.

    python recipes/benchmarks/bench_host_cost.py [--responses 256 ...] [--tokens 300] [--rounds 3]

Real engines on a model of one layer with random weights, so that almost all of a token's cost is the host's. They take
turns in each round, with equal requests (log-probabilities, as NeMo-RL asks for them), and the table has the medians of
the rounds: CPU microseconds per token of each process, and tokens per second. On a machine with a GPU the engines run
there, beside one with CUDA graphs for more responses (`--model FOLDER` for another model's config.json). `--work` adds
what each process does while it decodes, waits apart from work, in microseconds per token.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import engine_pace as pace
import torch
from measure import measure
from python_work import table as work_table

from nemo_ada.errors import UserError
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.rehearsal import observe
from nemo_ada.run.json_lines import parse_line

SMALL = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 2048,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
ON_A_CPU = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "2", "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}  # fmt: skip
NAMES = {pace.SYNC: "synchronous (NeMo-RL's default)", pace.ASYNC: "asynchronous", pace.FEW: "with few messages"}
NAMES |= {pace.GRAPHS: "and with more CUDA graphs"} if torch.cuda.is_available() else {}


def spec_of(folder: Path, arguments: argparse.Namespace) -> pace.PaceSpec:
    """Return what is measured. All responses have equal lengths."""
    model = arguments.model
    if model is None:
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(SMALL))
    longest = pace.PROMPT_TOKENS + arguments.tokens
    engine = {
        "dtype": "bfloat16", "skip_tokenizer_init": True, "max_num_seqs": max(arguments.responses),
        "enable_prefix_caching": False, "enforce_eager": not torch.cuda.is_available(),
    }  # fmt: skip
    if torch.cuda.is_available():
        engine |= {"gpu_memory_utilization": 0.08, "kv_cache_memory_bytes": 8 << 30}
    lengths = LengthModel(median=arguments.tokens, sigma=0.0, max_new_tokens=arguments.tokens)
    return pace.PaceSpec(
        str(model), tuple(arguments.responses), longest, lengths, engine, tuple(NAMES), rounds=arguments.rounds,
        work=arguments.work,
    )  # fmt: skip


def table(events: Path) -> str:
    """Return the medians of all rounds, and each engine's pace over that of the asynchronous one."""
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = defaultdict(list)
    for line in events.read_bytes().splitlines():
        event = parse_line(line)
        if event["event"] == "pace":
            each = 1e6 / event["tokens"]
            cpu = event["cpu"]
            found[event["engine"], event["responses"]].append(
                (cpu["front"] * each, cpu.get("core", 0.0) * each, event["tokens"] / event["seconds"])
            )
    medians = {key: [statistics.median(column) for column in zip(*rounds, strict=True)]
               for key, rounds in found.items()}  # fmt: skip
    lines = [
        "| engine | responses | front end, CPU us/token | core, CPU us/token | tokens/s | / asynchronous |",
        "|---|---|---|---|---|---|",
    ]
    for engine, count in medians:
        front, core, speed = medians[engine, count]
        ratio = speed / medians[pace.ASYNC, count][2]
        lines.append(f"| {NAMES[engine]} | {count} | {front:.1f} | {core:.1f} | {speed:,.0f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, nargs="+", default=[256])
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", action="store_true", help="also what each process does: needs py-spy")
    parser.add_argument("--model", type=Path, help="folder with a config.json; its weights are not read")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {observe.FILE: str(folder / "events.jsonl"), "VLLM_LOGGING_LEVEL": "WARNING"}
        os.environ |= {} if torch.cuda.is_available() else ON_A_CPU
        spec = folder / "spec.json"
        spec.write_text(spec_of(folder, arguments).as_json())
        if pace.main(spec):
            raise UserError("an engine ended with an error; its messages stand above")
        print(table(folder / "events.jsonl"))
        if arguments.work:
            events = map(parse_line, (folder / "events.jsonl").read_bytes().splitlines())
            print()
            print(work_table([event for event in events if event["event"] == "work"], NAMES))


if __name__ == "__main__":
    measure(main)
