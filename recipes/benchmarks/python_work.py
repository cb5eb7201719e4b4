"""What the processes of an engine do while it decodes: shares of time by part, and waits apart from work.

CPU seconds cannot tell work from a wait that spins: vLLM's core and its workers wait for each other in a loop of
`sched_yield`, which costs a core as much as work does. py-spy samples the stacks of a process from outside, a hundred
times a second, and leaves out threads that sleep. Each sample belongs to the first part one of whose frames it has.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from nemo_ada.run import start

RATE = 100  # samples per second
PARTS: Mapping[str, tuple[str, ...]] = {
    "waits": (
        "sched_yield",
        "acquire_read",
        "acquire_write",
        "dequeue",
        "poll (",
        "select (",
        "wait (",
        "recv",
        "synchronize (",
        "get_output (",
        "_to_list (",
        "tolists (",  # for the GPU, and then for what it has copied
    ),
    "schedule": ("schedule (vllm/v1/core",),
    "update_from_output": ("update_from_output (",),
    "messages": ("process_output_socket", "process_input_socket", "encode (", "process_outputs ("),
    "sampler": ("sample_tokens (", "_sample (", "sampler"),
    "model": ("_model_forward (", "forward ("),
    "worker": ("execute_model (",),
}
"""Part -> words of its frames, `function (file)`. What has none of them is `other`."""
TOOL = "py-spy"


class Recording:
    """Samples some processes until it is stopped."""

    def __init__(self, folder: Path, of: str, processes: Mapping[str, int], seconds: float) -> None:
        """Start py-spy for each process. Nothing is sampled where py-spy is not there.

        Args:
            folder: Where the samples go.
            of: What is sampled, the first word of the files' names.
            processes: Name -> process id.
            seconds: How long to sample, rounded up.
        """
        self.seconds = math.ceil(seconds)
        tool = shutil.which(TOOL, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        processes = {} if tool is None else processes
        self._files = {name: folder / f"{of}-{name}.stacks.txt" for name in processes}
        for file in self._files.values():
            file.unlink(missing_ok=True)
        self._running = [
            start.begin(
                [tool, "record", "--pid", str(pid), "--duration", str(self.seconds), "--rate", str(RATE), "--format",
                 "raw", "--function", "--nonblocking", "--output", str(self._files[name])],
                stdout=DEVNULL, stderr=DEVNULL,
            )
            for name, pid in processes.items()
        ]  # fmt: skip

    def shares(self) -> dict[str, dict[str, float]]:
        """Wait until all have ended. Return the share of time of each part, by process; a sleep is in none.

        A process that could not be sampled is not there.
        """
        for process in self._running:
            process.wait()
        found = {}
        for name, file in self._files.items():
            with suppress(FileNotFoundError):  # py-spy may not look
                counts = count_parts(file.read_text(encoding="utf-8").splitlines())
                found[name] = {part: round(count / (RATE * self.seconds), 4) for part, count in counts.items()}
        return found


def count_parts(lines: Sequence[str]) -> Counter[str]:
    """Count samples by part. A line is a stack, frames from the outermost on with `;` between, and its samples."""
    counts: Counter[str] = Counter()
    for line in lines:
        stack, _, samples = line.rpartition(" ")
        counts[next((part for part, words in PARTS.items() if any(word in stack for word in words)), "other")] += int(
            samples
        )
    return counts


def table(events: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """Return microseconds of each part per token, by engine and process."""
    parts = [*PARTS, "other"]
    lines = [f"| engine | responses | process | {' | '.join(parts)} | work |", f"|{'---|' * (len(parts) + 4)}"]
    for event in events:
        for process, shares in event["shares"].items():
            lasted = max(event["seconds"], event["sampled"])  # what was sampled after the end was a sleep
            each = {part: 1e6 * shares.get(part, 0.0) * lasted / event["tokens"] for part in parts}
            cells = " | ".join(f"{each[part]:.1f}" for part in parts)
            work = sum(each.values()) - each["waits"]
            lines.append(f"| {names[event['engine']]} | {event['responses']} | {process} | {cells} | {work:.1f} |")
    return "\n".join(lines)
