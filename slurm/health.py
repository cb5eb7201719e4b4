"""The health of a node: health.py before | links ADDRESS | after. node.sh calls it, and settings are its environment.

before: what would cost an hour to find out during a run. links: one all-reduce over the job's nodes, by NCCL where
there are GPUs (one per node, after a small product on every GPU), else by gloo. after: what the GPUs counted meanwhile.

Only errors of this job's time condemn a node. A GPU keeps its counters for days, so their growth is judged, and the
kernel's log since the job began. An error whose row was remapped was contained. Files in ATTEMPT_DIR:
    judged-NODE     JSON: what was read before and after, and what was said about it
    bad-NODE        a cause that takes the node out of the next job
    health-address  where the first node waits for the others
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

HELD_MIB = 2048  # more than that on a GPU is another job's
ANSWER_SECONDS = 20  # a driver that lost a GPU may not answer at all
COUNTERS = ("uuid", "memory.used", "ecc.errors.uncorrected.volatile.total")
REMAPPED = tuple(f"remapped_rows.{name}" for name in ("uncorrectable", "pending", "failure"))  # not with old drivers
FATAL = re.compile(r"\[ *([\d.]+)\].*NVRM: Xid .*: (48|62|64|74|79|95|119|120),")  # 94 is an error that was contained
NODES = os.environ["NODE_NAMES"].split()
ME = os.environ["SLURM_NODE"]
FOLDER = Path(os.environ["ATTEMPT_DIR"])


def setting(name: str) -> int:
    """A whole number of the environment."""
    return int(os.environ[name])


def put(name: str, text: str) -> None:
    """Write a file of the attempt that nobody reads half."""
    scratch = FOLDER / f"{name}.tmp.{ME}"
    scratch.write_text(text + "\n")
    scratch.replace(FOLDER / name)


def ask(*command: str) -> list[str]:
    """The lines that a command prints; none where it fails or does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def read_gpus() -> dict[str, dict[str, int | None]]:
    """The counters of each GPU by its UUID; None for what a GPU does not count."""
    for names in (COUNTERS + REMAPPED, COUNTERS):
        lines = ask("nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits")
        if lines:
            break
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    return {row[0]: {name: number(cell) for name, cell in zip(names[1:], row[1:], strict=False)} for row in rows}


def number(cell: str) -> int | None:
    """The number of a cell: yes and no are 1 and 0, and what is not counted ([N/A]) is None."""
    cell = {"yes": "1", "no": "0"}.get(cell.lower(), cell)
    return int(cell) if cell.isdigit() else None


def fatal_xid() -> str:
    """The last fatal GPU error that the kernel's log has of this job's time. Its stamps are seconds after boot."""
    began = float(Path("/proc/uptime").read_text().split()[0]) - (time.time() - setting("STARTED"))
    found = [line for line in ask("dmesg") if (match := FATAL.match(line)) and float(match[1]) >= began]
    return found[-1] if found else ""


def before() -> str:
    """The cause that makes this node unfit; empty for none. What was read is kept for `after`."""
    listed = [line for line in ask("nvidia-smi", "-L") if line.startswith("GPU")]
    gpus, xid = read_gpus(), fatal_xid()
    free = shutil.disk_usage("/tmp").free >> 30
    judged = {"listed": len(listed), "before": gpus, "xid": xid, "tmp_gib": free, "said": []}
    put(f"judged-{ME}", json.dumps(judged))
    if not shutil.which("nvidia-smi"):
        print(f"warning: no nvidia-smi on {ME}, so its GPUs were not checked")
    elif len(listed) < setting("GPUS_PER_NODE"):
        return f"nvidia-smi sees {len(listed)} GPUs, cluster.gpus_per_node is {setting('GPUS_PER_NODE')}"
    for index, gpu in enumerate(gpus.values()):
        if (gpu["memory.used"] or 0) > HELD_MIB:
            return f"GPU {index} already holds {gpu['memory.used']} MiB: another job's processes are left on it"
    modes = ask("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader")
    exclusive = [line for line in modes if "xclusive" in line]
    if exclusive:
        return f"GPUs are in {exclusive[0].strip()}, and vLLM and a learner share each: nvidia-smi -c DEFAULT"
    if xid:
        return f"the kernel log names a fatal GPU error: {xid}"
    if free < setting("MIN_TMP_GIB"):
        return f"/tmp has {free} GiB free, MIN_TMP_GIB is {setting('MIN_TMP_GIB')}"
    if len(NODES) > 1 and not list(Path("/sys/class/infiniband").glob("*")):
        print(f"warning: no InfiniBand or EFA device on {ME}: NCCL falls back to TCP without a word")
    return ""


def after() -> str:
    """The cause that makes this node unfit for the next job: the growth of its counters in this job's time."""
    judged = json.loads((FOLDER / f"judged-{ME}").read_text())
    listed = [line for line in ask("nvidia-smi", "-L") if line.startswith("GPU")]
    judged["after"], judged["xid"], cause = read_gpus(), fatal_xid(), ""
    for index, (uuid, old) in enumerate(judged["before"].items()):
        cause = judge(f"GPU {index}", old, judged["after"].get(uuid, old), judged["said"]) or cause
    if listed and len(listed) < judged["listed"]:
        cause = f"nvidia-smi saw {judged['listed']} GPUs before the run and sees {len(listed)} now"
    if judged["xid"]:
        cause = f"the kernel log names a fatal GPU error: {judged['xid']}"
    put(f"judged-{ME}", json.dumps(judged))
    return cause


def judge(gpu: str, old: dict[str, int | None], new: dict[str, int | None], said: list[str]) -> str:
    """The cause that a GPU's counters give, empty for none. What was contained is added to `said`."""
    grown = {}
    for name, value in new.items():
        start, end = old.get(name) or 0, value or 0
        grown[name] = end - start if end >= start else end  # a reset of the GPU sets counters to 0
    errors, rows = grown.get(COUNTERS[-1], 0), grown.get(REMAPPED[0], 0)
    if grown.get(REMAPPED[-1]):
        return f"{gpu} could not remap a row of its memory in this job's time"
    if errors and not rows:
        return f"{gpu} counted {errors} uncorrected ECC errors in this job's time, and remapped no row"
    if errors or rows:
        said.append(f"{gpu}: {errors} uncorrected ECC errors in this job's time, {rows} rows remapped: contained")
    return ""


def missing_nodes(store: Any, seconds: float) -> list[str]:
    """Nodes that have not put their name into the store in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        absent = [node for node in NODES if not store.check([node])]
        if not absent:
            return []
        time.sleep(0.2)
    return absent


def try_gpus(torch: Any) -> None:
    """A product on each GPU; raises where one does not compute or computes wrong."""
    for index in range(torch.cuda.device_count()):
        ones = torch.ones(1024, 1024, device=f"cuda:{index}")
        if float((ones @ ones).sum()) != 1024.0**3:
            raise ArithmeticError(f"GPU {index} computes a wrong product")


def meet(dist: Any, address: str, rank: int, seconds: float) -> Any:
    """The store that all nodes share. The first node opens it on a free port, and says where."""
    wait = timedelta(seconds=seconds)
    if rank == 0:
        store = dist.TCPStore(address, 0, is_master=True, timeout=wait, wait_for_workers=False)
        put("health-address", f"{address} {store.port}")
        return store
    deadline = time.monotonic() + seconds
    while not (FOLDER / "health-address").exists():
        if time.monotonic() > deadline:
            put(f"bad-{ME}", f"the first node {NODES[0]} gave no address for the all-reduce within {seconds:.0f} s")
            raise TimeoutError(f"{NODES[0]} gave no address")
        time.sleep(0.5)
    where, port = (FOLDER / "health-address").read_text().split()
    return dist.TCPStore(where, int(port), is_master=False, timeout=wait, wait_for_workers=False)


def links(address: str) -> bool:
    """Whether the sum over all nodes is right. A node that does not come gets bad-NODE."""
    import torch
    import torch.distributed as dist

    seconds, rank = setting("HEALTH_SECONDS"), NODES.index(ME)
    try:
        try_gpus(torch)
    except (ArithmeticError, RuntimeError) as problem:
        put(f"bad-{ME}", str(problem))
        raise
    store = meet(dist, address, rank, seconds)
    store.set(ME, "here")
    absent = missing_nodes(store, seconds)
    if absent:
        for node in absent if rank == 0 else []:
            put(f"bad-{node}", f"did not come to the all-reduce within {seconds} s")
        print(f"error: {', '.join(absent)} did not come within {seconds} s")
        return False
    backend, device = ("nccl", "cuda:0") if torch.cuda.is_available() else ("gloo", "cpu")
    group = dist.PrefixStore("sum", store)
    dist.init_process_group(backend, store=group, rank=rank, world_size=len(NODES), timeout=timedelta(seconds=seconds))
    value = torch.full((1 << 20,), float(rank + 1), device=device)
    dist.all_reduce(value)
    right = bool((value == len(NODES) * (len(NODES) + 1) / 2).all())
    print(f"all-reduce over {len(NODES)} node(s) by {backend}: {'right' if right else 'wrong sum'}")
    dist.barrier()
    dist.destroy_process_group()
    return right


def main(part: str, *words: str) -> int:
    """Exit code 0 where the node is healthy."""
    if part == "links":
        return 0 if links(*words) else 1
    cause = before() if part == "before" else after()
    if cause:
        print(f"error: {cause}")
        put(f"bad-{ME}", cause)
        if len(NODES) > 1 and part == "before":
            time.sleep(5)  # SLURM ends the other nodes with us: they write down their causes meanwhile
    return 1 if cause else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
