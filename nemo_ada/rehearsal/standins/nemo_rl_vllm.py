"""NeMo-RL's vLLM worker on a CPU: its questions to a GPU, and the version of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("vLLM's questions to a GPU", "answers for the pretended GPUs")

LAST_ALLOWED = "5.11.0"


@REPLACEMENTS.after(
    "nemo_rl.models.generation.vllm.vllm_backend",
    "VllmInternalWorkerExtension.report_device_id",
    why="The worker names its GPU by the id that the policy worker of the same bundle names.",
)
def _replace_device_id(names: Names) -> None:
    def report_device_id(self: Any) -> str:
        from nemo_rl.utils.nvml import get_device_uuid

        return str(get_device_uuid(0))  # the only GPU of this worker: Ray names one in CUDA_VISIBLE_DEVICES

    names.put("VllmInternalWorkerExtension.report_device_id", report_device_id)


@REPLACEMENTS.after(
    "nemo_rl.models.generation.vllm.vllm_backend",
    "VllmInternalWorkerExtension",
    why="vLLM refuses an extension that names a method of its worker; NeMo-RL main does, for its sparse refit.",
)
def _drop_second_synchronize_device(names: Names) -> None:
    extension = names.get("VllmInternalWorkerExtension")
    if "synchronize_device" in vars(extension):
        del extension.synchronize_device


@REPLACEMENTS.after(
    "vllm.model_executor.models.utils",
    "AutoWeightsLoader._check_skipped_aliases",
    why="vLLM 0.32 wants a tied weight in the same call as its twin; DTensor v2's refit may give them in two. "
    "NeMo-RL's own vLLM does not ask.",
)
def _allow_twins_apart(names: Names) -> None:
    names.put("AutoWeightsLoader._check_skipped_aliases", lambda self, loaded: None)


@REPLACEMENTS.during(
    "nemo_rl.models.policy",
    why="It refuses the newer transformers that vLLM's CPU build needs; the code that it guards is for other models.",
)
@contextmanager
def _pretend_older_transformers() -> Iterator[None]:
    import transformers

    actual = transformers.__version__
    newer = tuple(int(part) for part in actual.split(".")[:2]) >= (5, 12)
    with patch.object(transformers, "__version__", LAST_ALLOWED if newer else actual):
        yield
