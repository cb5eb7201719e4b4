"""Check that engine and learner can run the model of a Hugging Face folder. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_ada.cpu.learner.shape import PolicyShape, list_hf_shapes
from nemo_ada.errors import UserError
from nemo_ada.run.files import read_json

CONFIG = "config.json"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
DTYPES = ("bfloat16", "float16", "float32")


def list_tensor_files(folder: Path) -> list[Path]:
    """Return the folder's safetensors files that make its model, as transformers and vLLM choose them.

    Those of the index, where there is one. Other shards beside them are left from another export.

    Raises:
        UserError: There is none, one of the index is missing, or nothing says which of several are meant.
    """
    folder = Path(folder)
    if (folder / INDEX).is_file():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, Mapping) or not weight_map:
            raise UserError(f"{folder / INDEX} has no weight_map; copy it again")
        files = [folder / name for name in sorted(set(map(str, weight_map.values()))) if Path(str(name)).name == name]
        for file in files:
            if not file.is_file():
                raise UserError(f"{folder} lacks {file.name}, which its {INDEX} names; copy the whole folder again")
        return files
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        if file.exists() and not file.is_file():  # who opens a pipe waits for ever
            raise UserError(f"{file} is no file but a pipe, a device or a folder; copy the whole folder again")
    if not files:
        raise UserError(f"{folder} holds no *.safetensors file; export the model with save_pretrained")
    if len(files) > 1 and folder / SINGLE in files:
        others = ", ".join(file.name for file in files if file.name != SINGLE)
        raise UserError(
            f"{folder} holds {SINGLE} and {others[:200]}, and no {INDEX}: vLLM would read all of them, and "
            "transformers the first; move away what is left from another export"
        )
    return files


def choose_kept_config(folder: str | None) -> dict[str, Any]:
    """Return what an export keeps of the trained model's config.json: BOS, and the type of the weights."""
    config = read_json(Path(folder) / CONFIG) if folder is not None else {}
    kept = {name: config[name] for name in ("bos_token_id",) if config.get(name) is not None}
    dtype = config.get("dtype", config.get("torch_dtype"))
    return kept | ({"torch_dtype": dtype} if dtype in DTYPES else {})


def read_tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the folder, from the headers of its files. Copies are left out (`is_copy`).

    Raises:
        UserError: A file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    tied = bool(read_json(Path(folder) / CONFIG).get("tie_word_embeddings", False))
    shapes: dict[str, tuple[int, ...]] = {}
    for file in list_tensor_files(folder):
        try:
            with safe_open(file, framework="np") as tensors:
                names = [name for name in tensors.keys() if not is_copy(name, tied)]  # noqa: SIM118
                shapes.update({name: tuple(tensors.get_slice(name).get_shape()) for name in names})
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} is no complete safetensors file: {str(error)[:200]}; copy it again") from None
    return shapes


def is_copy(name: str, tied: bool) -> bool:
    """Return whether a tensor repeats others: rotary angles in old files, or the output layer with tied embeddings."""
    return name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")


def read_shape(name: str) -> PolicyShape:
    """Return the shape of the model in the folder `policy.model_name`.

    Raises:
        UserError: A file of the model or the tokenizer is missing, or the learner cannot run the architecture.
    """
    for file, what in ((CONFIG, "a Llama, Qwen2 or Qwen3 model"), ("tokenizer.json", "the model's fast tokenizer")):
        if not (Path(name) / file).is_file():
            raise UserError(f"policy.model_name={name}: no {file} there; name a folder with {what}")
    try:
        return PolicyShape.read(Path(name))
    except UserError as error:
        raise UserError(f"policy.model_name={name}: {error}") from None


def check_model_folder(name: str, vocabulary: int) -> PolicyShape:
    """Check that a run can use a folder. It takes milliseconds, because only the headers of the weights are read.

    Args:
        name: The folder `policy.model_name`.
        vocabulary: Number of ids that the tokenizer can give.

    Returns:
        Shape of the model.

    Raises:
        UserError: The folder cannot be used.
    """
    shape = read_shape(name)
    try:
        actual, wanted = read_tensor_shapes(Path(name)), list_hf_shapes(shape)
    except UserError as error:
        raise UserError(f"policy.model_name={name}: {error}") from None
    for tensor in sorted(actual.keys() | wanted.keys()):
        if actual.get(tensor) != wanted.get(tensor):
            has, needs = (str(list(sizes[tensor])) if tensor in sizes else "none" for sizes in (actual, wanted))
            raise UserError(
                f"policy.model_name={name}: {CONFIG} and weights do not fit: {tensor} is {has}, a {shape.model_type} "
                f"of this {CONFIG} needs {needs}; copy the whole folder again"
            )
    if shape.vocab_size < vocabulary:
        raise UserError(
            f"policy.model_name={name}: the model has {shape.vocab_size} tokens, its tokenizer gives ids up to "
            f"{vocabulary - 1}; use the tokenizer of this model"
        )
    return shape
