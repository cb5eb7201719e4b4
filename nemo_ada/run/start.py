"""The one way to start a process: no module of the working folder comes first, and it gets a listed environment.

Python puts the working folder first on the import path of `python -m` and `python -c`, and Ray does so for its actors.
There a file json.py of a download, or of another user in a shared folder, would run in place of the library. So every
Python gets -P. A child gets the variables of LISTED. What else it needs is named where it starts, or by the user in
NEMO_ADA_PASS: secrets of this process are nothing for it.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, SubprocessError, TimeoutExpired
from typing import Any

from nemo_ada.run.redaction import drop_secrets

__all__ = (
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "Popen",
    "SubprocessError",
    "TimeoutExpired",
)  # for those who may not import subprocess
NO_PROGRAMS = ("-c", "core.fsmonitor=false")  # a foreign checkout names no program for git to run
SAFE = {"PYTHONSAFEPATH": "1"}  # as -P, also for the processes that a process starts
PASS = "NEMO_ADA_PASS"  # names of more variables, between blanks
CODE = Path(__file__).resolve().parents[2]
PACKAGE = CODE / "slurm" / "package"  # of a checkout: a folder that has nothing but a link to this package
PYTHON_NEEDS = (
    r"PATH|HOME|USER|LOGNAME|SHELL|TZ|LANG|LANGUAGE|LC_\w+|TMPDIR|LD_\w+|PYTHON\w*|VIRTUAL_ENV|CONDA_\w+|COVERAGE_\w+"
    r"|(?:OMP|MKL|OPENBLAS)_\w+|NEMO_ADA_\w+"
)
LISTED = (
    rf"{PYTHON_NEEDS}|TERM|PWD|HOSTNAME|XDG_\w+|(?:KMP|NUMEXPR|MALLOC|NUMBA|JAX|OPAL|OMPI|PMIX?|UCX|SLURM|UV)_\w+|CC|CXX"
    r"|(?:NEMO|NRL|MEGATRON|NVTE|TE|CUDA|CUDNN|NVIDIA|NCCL|GLOO|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|VLLM|FLASHINFER|RAY"
    r"|TOKENIZERS|TRANSFORMERS|SAFETENSORS|HF|HUGGINGFACE|DATASETS|TQ)_\w+|CUDNN|RANK|WORLD_SIZE|LOCAL_RANK"
    r"|MASTER_(?:ADDR|PORT)|WANDB_(?:MODE|DIR|CACHE_DIR|DATA_DIR|BASE_URL|ENTITY|SILENT)"
    r"|(?i:https?|all|no)_(?i:proxy)|SSL_CERT_\w+|(?:REQUESTS|CURL)_CA_BUNDLE"
)
"""Names of variables that Python, its packages, NeMo-RL and the libraries of GPUs and networks read."""


def make_environment(*secrets: str, listed: str = LISTED, **more: str) -> dict[str, str]:
    """Return the environment of a child.

    Args:
        *secrets: names of secret variables that the child needs.
        listed: pattern of the names of variables that it may have.
        **more: variables in addition.
    """
    named = {*secrets, *os.environ.get(PASS, "").split()}
    kept = {name: value for name, value in drop_secrets(os.environ).items() if re.fullmatch(listed, name)}
    kept |= {name: os.environ[name] for name in named & os.environ.keys()}
    path, installed = read_users_path(), str(CODE) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    if (
        not installed
        and {str(CODE), find_import_path()} & {*sys.path}
        and not {str(CODE), find_import_path()} & {*path}
    ):
        path.append(find_import_path())  # else this interpreter finds the package by itself, and so does the child
    return {**kept, "PYTHONPATH": os.pathsep.join(path), **more}


def find_import_path() -> str:
    """Return the folder from which another interpreter imports this package.

    A checkout has more than the package, and often it is somebody's working folder: any module in it would be found.
    """
    return str(PACKAGE if (PACKAGE / "nemo_ada").is_dir() else CODE)


def read_users_path() -> list[str]:
    """Return the folders of PYTHONPATH without empty entries, which mean the working folder."""
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def make_python_command(interpreter: Path | str, *words: object) -> list[str]:
    """Return the command of an interpreter that finds no module in the working folder."""
    return [str(interpreter), "-P", *map(str, words)]


def run(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with a listed environment, and no input."""
    given = {"env": make_environment(), "check": False, **options}
    if "input" not in given:
        given.setdefault("stdin", DEVNULL)
    return subprocess.run(list(map(str, command)), **given)


def begin(command: Sequence[object], **options: Any) -> Popen[Any]:
    """`subprocess.Popen` with a listed environment."""
    return Popen(list(map(str, command)), **{"env": make_environment(), **options})


@contextmanager
def limit_environment(*secrets: str, **more: str) -> Iterator[None]:
    """Within the block this process itself has a listed environment: a library starts the children, such as Ray."""
    before, now = dict(os.environ), make_environment(*secrets, **more)
    for name in before.keys() - now.keys():
        del os.environ[name]
    os.environ.update(now)
    try:
        yield
    finally:
        for name in now.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)


@contextmanager
def join_named_cluster(services: Any) -> Iterator[None]:
    """Within the block Ray joins a cluster that RAY_ADDRESS names, and else none.

    By itself it would take the one of any process of this machine whose command line says so, and of a file in /tmp.
    The environment of this job would go there.

    Args:
        services: the module ray._private.services.
    """
    before = services.find_gcs_addresses, services.find_bootstrap_address
    services.find_gcs_addresses = functools.cache(set)  # Ray's own has a cache, too, which ray.init clears
    services.find_bootstrap_address = lambda *_: None
    try:
        yield
    finally:
        services.find_gcs_addresses, services.find_bootstrap_address = before


@contextmanager
def leave_out_working_folder(job_config: Any) -> Iterator[None]:
    """Within the block Ray does not put the working folder on its workers' import path, where it would come first.

    Args:
        job_config: the class ray.job_config.JobConfig.
    """
    described = job_config._get_proto_job_config

    def without(self: Any) -> Any:
        if self._py_driver_sys_path[-1:] == [os.getcwd()]:  # Ray appends it behind the folder of the script
            self._py_driver_sys_path.pop()
        return described(self)

    job_config._get_proto_job_config = without
    try:
        yield
    finally:
        job_config._get_proto_job_config = described
