"""Find NeMo-RL, Megatron's sources and the interpreters of a rehearsal, and list what is missing.

`find` looks for a checkout and the interpreters of `make rehearsal-env`, `find_on_gpu` for NeMo-RL with a GPU, and
`use_own_environment` takes the environment in which this process runs. Each gives an `Installation`, which has the
environment variables of the processes that a rehearsal starts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nemo_ada.errors import UserError
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.cards import H100
from nemo_ada.rules.facts.config_file import EXAMPLES, HOME
from nemo_ada.rules.facts.site import find_project, read_site_setting
from nemo_ada.run.start import find_import_path, make_environment, read_users_path, run
from nemo_ada.run.start import make_python_command as interpreter

CACHE = find_project() / ".cache" / "rehearsal"
POLICY, ENGINE, GYM = "NEMO_ADA_POLICY_PYTHON", "NEMO_ADA_VLLM_PYTHON", "NEMO_ADA_GYM_PYTHON"
BRIDGE, MEGATRON, AUTOMODEL = "MEGATRON_BRIDGE_HOME", "MEGATRON_LM_HOME", "NEMO_AUTOMODEL_HOME"
AUTOMODEL_SUBMODULE = "3rdparty/Automodel-workspace/Automodel"
SUBMODULE = "3rdparty/Megatron-Bridge-workspace/Megatron-Bridge"
CONTAINER = "NEMO_RL_VENV_DIR"
"""NVIDIA's container of NeMo-RL sets it. It has an environment for each kind of worker there."""
MAKE = f"run `make rehearsal-env {HOME}=/path/to/RL`"

ENVIRONMENT: Mapping[str, str] = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray stays on the loopback device
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
ON_A_CPU: Mapping[str, str] = {
    "NRL_REFIT_BUFFER_MEMORY_RATIO": "1e-5",  # the small model then needs several buffers, as a large model does
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(CACHE / "pycache"),
    "RAY_worker_niceness": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "TORCH_CUDA_ARCH_LIST": "9.0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


ON_ONE_GPU: Mapping[str, str] = {
    "NEMO_ADA_REHEARSAL_ON_GPU": "1",
    "NCCL_SOCKET_IFNAME": "lo",  # there may be no network
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_DEEP_GEMM_WARMUP": "skip",  # it compiles 1,419 kernels for FP8: a quarter of them took 260 s
}


@dataclass(frozen=True, slots=True)
class Installation:
    """What a rehearsal runs on this machine.

    Attributes:
        home: NeMo-RL's checkout.
        bridge: Folder of Megatron-Bridge for PYTHONPATH.
        megatron: Folder of megatron-core for PYTHONPATH.
        policy: Python interpreter of the driver and the policy workers.
        engine: Python interpreter of the vLLM workers.
        gym: Python interpreter of NeMo-Gym's servers. None where the config has none.
        automodel: Folder of NeMo Automodel for PYTHONPATH. None where the learner does not need it.
        stand_ins: Whether anything is replaced. Otherwise this is NeMo-RL's own environment.
        gpu: Whether the processes compute on this machine's GPU.
        card: CUDA's name of that GPU. A dry run pretends to have this one.
        extra: More environment variables of a run's processes.
    """

    home: Path
    bridge: Path
    megatron: Path
    policy: Path
    engine: Path
    gym: Path | None = None
    automodel: Path | None = None
    stand_ins: bool = True
    gpu: bool = False
    card: str = H100.name
    extra: Mapping[str, str] = field(default_factory=dict)

    def environment(self, *, name: str, gpus: int, events: Path, conversions: Path) -> dict[str, str]:
        """Environment variables of a run's processes.

        Args:
            name: Name of the run, which its files in shared memory carry.
            gpus: Number of GPUs that the machine pretends to have.
            events: File for the events.
            conversions: Folder for models in Megatron's format.
        """
        if not self.stand_ins:
            path = os.pathsep.join([find_import_path(), *read_users_path()])
            return make_environment(PYTHONPATH=path, PYTHONSAFEPATH="", NEMO_ADA_REHEARSAL_EVENTS=str(events))
        startup = Path(__file__).parent / "startup"
        homes = (self.home, self.megatron, self.bridge, self.automodel or Path())
        parts = (startup, find_import_path(), *(part for part in homes if part != Path()))
        sources = [str(part) for part in parts]
        inherited = make_environment(PYTHONSAFEPATH="")  # a server of NeMo-Gym imports what lies beside it
        inherited.pop("RAY_ADDRESS", None)
        return {
            **inherited,
            **self._settings(),
            **({HOME: str(self.home)} if self.home != Path() else {}),
            **({POLICY: str(self.policy), ENGINE: str(self.engine)} if self.home != Path() else {}),
            **({GYM: str(self.gym)} if self.gym else {}),
            "PYTHONPATH": os.pathsep.join([*sources, *read_users_path()]),
            "NEMO_ADA_REHEARSAL": name,
            "NEMO_ADA_REHEARSAL_GPUS": str(gpus),
            "NEMO_ADA_REHEARSAL_EVENTS": str(events),
            "NRL_MEGATRON_CHECKPOINT_DIR": str(conversions),
            **self.extra,
        }

    def _settings(self) -> dict[str, str]:
        """Variables of the libraries, and a token for the Ray of these processes, which nobody else has."""
        return {**ENVIRONMENT, **({} if self.gpu else ON_A_CPU), "RAY_AUTH_TOKEN": secrets.token_hex(32)}

    def plain_environment(self) -> dict[str, str]:
        """Environment variables of a process that runs without stand-ins."""
        users = read_users_path() if self.gpu else []  # on a CPU each interpreter has all that it needs
        path = os.pathsep.join([find_import_path(), *users])
        return make_environment(**{**self._settings(), "PYTHONPATH": path})


def use_own_environment() -> Installation:
    """NeMo-RL's own environment, in which this process runs.

    Raises:
        UserError: NeMo-RL cannot be imported here.
    """
    if importlib.util.find_spec("nemo_rl") is None:
        raise UserError(
            "NeMo-RL cannot be imported here; run this inside its container or environment with GPUs, or with "
            "--dry-run on a CPU"
        )
    python = Path(sys.executable)
    return Installation(Path(read_site_setting(HOME) or "."), Path(), Path(), python, python, stand_ins=False)


def find_on_gpu() -> Installation:
    """NeMo-RL with a GPU: its own container, in which this process runs, or a checkout and this interpreter.

    Raises:
        UserError: torch sees no GPU, or NeMo-RL is not here.
    """
    python = Path(sys.executable)
    look = (
        "import json, torch\n"
        "capability = '.'.join(map(str, torch.cuda.get_device_capability()))\n"
        "print(json.dumps([torch.cuda.get_device_name(), capability]))"
    )
    path = os.pathsep.join([find_import_path(), *read_users_path()])
    done = run(interpreter(python, "-c", look), capture_output=True, text=True, env=make_environment(PYTHONPATH=path))
    if done.returncode:
        raise UserError(
            f"--gpu: torch of {python} sees no GPU; run this on a machine with one (recipes/guide/first_gpu_hour.md), "
            "or add --dry-run for the same slices at a small size on this CPU"
        )
    card, capability = json.loads(done.stdout.splitlines()[-1])
    extra = {**ON_ONE_GPU, "TORCH_CUDA_ARCH_LIST": capability}
    if os.environ.get(CONTAINER):
        return replace(use_own_environment(), home=Path(), stand_ins=True, gpu=True, card=card, extra=extra)
    # `find` looks there first.
    os.environ.setdefault(POLICY, str(python))
    os.environ.setdefault(ENGINE, str(python))
    return replace(find(), gpu=True, card=card, extra=extra)


def find(*, gym: bool = False, automodel: bool = False) -> Installation:
    """Find everything on this machine.

    Args:
        gym: Whether NeMo-Gym's interpreter is needed.
        automodel: Whether the learner is DTensor v2, which needs NeMo Automodel.

    Raises:
        UserError: It lists all that is missing and how to get it.
    """
    missing: list[str] = []
    home = Path(read_site_setting(HOME) or ".missing")
    if not (home / EXAMPLES).is_dir():
        missing.append(f"{HOME}: no checkout of NeMo-RL v0.7.0 there; clone it and set the variable")
    bridge = _find_source(BRIDGE, home / SUBMODULE, CACHE / "Megatron-Bridge", "src/megatron/bridge", missing)
    submodule = bridge / "3rdparty/Megatron-LM"
    megatron = _find_source(MEGATRON, submodule, CACHE / "Megatron-LM", "megatron/core", missing)
    policy = _find_interpreter(POLICY, "policy", missing)
    engine = _find_interpreter(ENGINE, "vllm", missing)
    parts = None
    if automodel:
        parts = _find_source(AUTOMODEL, home / AUTOMODEL_SUBMODULE, CACHE / "Automodel", "nemo_automodel", missing)
    servers = _find_interpreter(GYM, "gym", missing, " GYM=1") if gym else None
    if missing:
        raise UserError("a rehearsal needs more than is here:\n  " + "\n  ".join(missing))
    return Installation(home, bridge / "src", megatron, policy, engine, servers, parts)


def _find_source(variable: str, submodule: Path, cached: Path, package: str, missing: list[str]) -> Path:
    """Return the folder that contains `package`: the variable's, else the submodule's, else the cached clone."""
    named = os.environ.get(variable)
    candidates = [Path(named)] if named else [submodule, cached]
    for candidate in candidates:
        if (candidate / package).is_dir():
            return candidate
    advice = f"`git submodule update --init --recursive` in {HOME}, or set {variable} to a clone"
    missing.append(f"{variable}: {package} is not below {' or '.join(map(str, candidates))}; {advice}")
    return candidates[0]


def _find_interpreter(variable: str, name: str, missing: list[str], option: str = "") -> Path:
    """Return the interpreter that the variable names, else that of `make rehearsal-env`."""
    path = Path(os.environ.get(variable) or _find_cache() / name / "bin" / "python")
    if not path.is_file():
        missing.append(f"{variable}: no interpreter at {path}; {MAKE[:-1]}{option}`")
    return path


def _find_cache() -> Path:
    """Return the folder of `make rehearsal-env` with the stack of the checkout's version, else the usual one."""
    own = CACHE.with_name(f"{CACHE.name}-{version.find_version().name}")
    return own if own.is_dir() else CACHE


def main() -> None:
    """Print both interpreters. Print what is missing instead, with exit code 2. `make rehearsal-env` ends with this."""
    try:
        installed = find()
    except UserError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(2)
    sys.stdout.write(f"policy interpreter {installed.policy}\nvLLM interpreter {installed.engine}\n")


if __name__ == "__main__":
    main()
