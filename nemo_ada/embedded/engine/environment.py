"""The process settings that the in-process vLLM engine needs, applied before vLLM is imported.

vLLM and torch read these variables once, while they are imported, so they cannot be constructor arguments. Measured on
two cores: `VLLM_ENABLE_V1_MULTIPROCESSING=0` saves two interpreters that would each import vLLM (25 s to ready against
12 s), `TORCHDYNAMO_DISABLE=1` saves the C++ compilation of sampler helpers that `enforce_eager` does not cover (2 to
15 s in the first call), and one OpenMP thread keeps the engine from fighting the learner for the cores.
"""

from __future__ import annotations

import logging
import os
import sys

from nemo_ada.errors import InvariantError

ENVIRONMENT: dict[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Variables of a process that holds an engine. Also usable as the `env_vars` of a Ray actor's runtime environment."""


def prepare_process() -> None:
    """Set `ENVIRONMENT` in this process; call it before anything imports vLLM.

    A torch that is already imported is told directly (one thread, no dynamo), because it no longer looks at the
    variables. Raises InvariantError when vLLM was imported under other settings.
    """
    stale = sorted(name for name, value in ENVIRONMENT.items() if os.environ.get(name) != value)
    if "vllm" in sys.modules and "VLLM_ENABLE_V1_MULTIPROCESSING" in stale:
        raise InvariantError(f"vLLM was imported before the engine could set {', '.join(stale)} in this process")
    os.environ.update(ENVIRONMENT)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)
    if "torch._dynamo" in sys.modules:
        import torch._dynamo

        torch._dynamo.config.disable = True
