"""What a token costs on the host: NeMo-RL's synchronous vLLM engine, its asynchronous one, and that with few messages.

    python recipes/benchmarks/bench_host_cost.py [--responses 256 ...] [--tokens 300] [--rounds 3]
    python recipes/benchmarks/bench_host_cost.py --responses 64 256 1024 --engines few graphs --work --out FOLDER

Real engines on a model of one layer with random weights, so that almost all of a token's cost is the host's. They take
turns in each round, with equal requests (log-probabilities, as NeMo-RL asks for them), and the table has the medians of
the rounds: CPU microseconds per token of each process, and tokens per second. On a machine with a GPU the engines run
there, beside one with CUDA graphs for more responses (`--model FOLDER` for another model's config.json).

`--work` adds what limits: the share of time that the GPU is busy and its kernels by time (torch's profiler, 20 steps,
and NVML), and what each process of Python does while it decodes, waits apart from work, in microseconds per token
(py-spy, where it is at hand). `--out` keeps every row as soon as it is there, so a time limit loses nothing, and
`--read FOLDER` makes the tables of what it has.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import engine_pace as pace
import torch
from device_work import tables as device_tables
from measure import measure
from python_work import table as work_table

from nemo_ada.errors import UserError
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.rehearsal import observe
from nemo_ada.rehearsal.report import Events
from nemo_ada.rules.facts.models import ModelShape
from nemo_ada.run.files import claim_folder, json_of, remove

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
NAMES = {pace.SYNC: "synchronous (NeMo-RL's default)", pace.ASYNC: "asynchronous", pace.FEW: "with few messages",
         pace.GRAPHS: "and with more CUDA graphs"}  # fmt: skip
EVENTS = "events.jsonl"
GIB = 2**30


def spec_of(folder: Path, arguments: argparse.Namespace) -> pace.PaceSpec:
    """Return what is measured. All responses have equal lengths."""
    model = arguments.model
    if model is None:
        model = folder / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(SMALL))
    longest = pace.PROMPT_TOKENS + arguments.tokens
    engine = {
        "dtype": "bfloat16", "skip_tokenizer_init": True, "max_num_seqs": max(arguments.responses),
        "enable_prefix_caching": False, "enforce_eager": not torch.cuda.is_available(),
    }  # fmt: skip
    if torch.cuda.is_available():
        shape = ModelShape.from_hf_config(json_of(model / "config.json"))
        each = 4 * shape.layers * shape.kv_width  # keys and values of a token, two bytes each
        need = each * max(arguments.responses) * (longest + 32)  # with the last block, and one that is in use elsewhere
        engine |= {"gpu_memory_utilization": 0.08, "kv_cache_memory_bytes": max(need, GIB)}
    lengths = LengthModel(median=arguments.tokens, sigma=0.0, max_new_tokens=arguments.tokens)
    return pace.PaceSpec(
        str(model), tuple(arguments.responses), longest, lengths, engine, tuple(arguments.engines),
        rounds=arguments.rounds, work=arguments.work,
    )  # fmt: skip


def table(events: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """Return the medians of all rounds, and each engine's pace over that of the asynchronous one, or of the first."""
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = defaultdict(list)
    for event in events:
        if event["event"] == "pace":
            each = 1e6 / event["tokens"]
            cpu = event["cpu"]
            found[event["engine"], event["responses"]].append(
                (cpu["front"] * each, cpu.get("core", 0.0) * each, event["tokens"] / event["seconds"])
            )
    medians = {key: [statistics.median(column) for column in zip(*rounds, strict=True)]
               for key, rounds in found.items()}  # fmt: skip
    engines = {engine: None for engine, _ in medians}
    base = pace.ASYNC if pace.ASYNC in engines else next(iter(engines), "")
    lines = [
        f"| engine | responses | front end, CPU us/token | core, CPU us/token | tokens/s | / {names.get(base)} |",
        "|---|---|---|---|---|---|",
    ]
    for engine, count in medians:
        front, core, speed = medians[engine, count]
        ratio = f"{speed / medians[base, count][2]:.2f}" if (base, count) in medians else ""
        lines.append(f"| {names[engine]} | {count} | {front:.1f} | {core:.1f} | {speed:,.0f} | {ratio} |")
    return "\n".join(lines)


def report(folder: Path) -> str:
    """Return the tables of what a folder has. Raises UserError where nothing was measured."""
    events = Events.read(folder / EVENTS).lines
    if not any(event["event"] == "pace" for event in events):
        raise UserError(f"{folder}: {EVENTS} has no measurement; name a folder that --out has filled")
    names = {event["engine"]: NAMES.get(event["engine"], event["engine"]) for event in events if "engine" in event}
    found = [table(events, names)]
    if any(event["event"] == "device" for event in events):
        found.append(device_tables(events, folder, names))
    if any(event.get("shares") for event in events):
        found.append(work_table([event for event in events if event["event"] == "work"], names))
    return "\n\n".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, nargs="+", default=[256])
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", help=f"{', '.join(pace.ENGINES)}, or a scheduler: module.Class")
    parser.add_argument("--work", action="store_true", help="also what the GPU does, and Python (needs py-spy)")
    parser.add_argument("--model", type=Path, help="folder with a config.json; its weights are not read")
    parser.add_argument("--out", type=Path, help="an empty folder, or one of this program, for every row")
    parser.add_argument("--read", type=Path, help="make the tables of such a folder, and measure nothing")
    arguments = parser.parse_args()
    if arguments.read is not None:
        print(report(arguments.read))
        return
    if arguments.engines is None:
        arguments.engines = [name for name in pace.ENGINES if name != pace.GRAPHS or torch.cuda.is_available()]
    for name in arguments.engines:
        if name not in pace.ENGINES and "." not in name:
            raise UserError(f"--engines {name}: take some of {', '.join(pace.ENGINES)}, or a scheduler: module.Class")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.out is not None:
            folder = arguments.out.resolve()
            held = claim_folder(folder, "bench_host_cost.py", "--out")
            remove(folder / EVENTS)
        os.environ |= {observe.FILE: str(folder / EVENTS), "VLLM_LOGGING_LEVEL": "WARNING"}
        os.environ |= {} if torch.cuda.is_available() else ON_A_CPU
        spec = folder / "spec.json"
        spec.write_text(spec_of(folder, arguments).as_json())
        if pace.main(spec):
            raise UserError("an engine ended with an error; its messages stand above")
        print(report(folder))
        if arguments.out is not None:
            held.close()


if __name__ == "__main__":
    measure(main)
