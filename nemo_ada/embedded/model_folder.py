"""A Hugging Face folder as a run's base: its tensors, and whether engine and learner can run it. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from nemo_ada.embedded.learner.shape import PolicyShape, hf_shapes
from nemo_ada.errors import UserError
from nemo_ada.run.files import read_json

CONFIG = "config.json"


def tensor_files(folder: Path) -> list[Path]:
    """The folder's safetensors files. Raises UserError without one."""
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} holds no *.safetensors file; export the model with save_pretrained")
    return files


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the folder, read from the files' headers. Raises UserError for damaged files.

    Without copies: the output layer of a model with tied embeddings, and the angles that old files hold.
    """
    from safetensors import SafetensorError, safe_open

    tied = bool(read_json(Path(folder) / CONFIG).get("tie_word_embeddings", False))
    shapes: dict[str, tuple[int, ...]] = {}
    for file in tensor_files(folder):
        try:
            with safe_open(file, framework="np") as tensors:
                names = [name for name in tensors.keys() if not is_copy(name, tied)]  # noqa: SIM118
                shapes.update({name: tuple(tensors.get_slice(name).get_shape()) for name in names})
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} is no complete safetensors file: {str(error)[:200]}; copy it again") from None
    return shapes


def is_copy(name: str, tied: bool) -> bool:
    """Whether a tensor says nothing that the others do not say."""
    return name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")


def read_shape(name: str) -> PolicyShape:
    """The shape of the model in the folder `policy.model_name`, which has the files of a model and of a tokenizer.

    Raises UserError where a file is missing, or where the learner does not run the architecture.
    """
    for file, what in ((CONFIG, "a Llama, Qwen2 or Qwen3 model"), ("tokenizer.json", "the model's fast tokenizer")):
        if not (Path(name) / file).is_file():
            raise UserError(f"policy.model_name={name}: no {file} there; name a folder with {what}")
    try:
        return PolicyShape.read(Path(name))
    except UserError as error:
        raise UserError(f"policy.model_name={name}: {error}") from None


def check_model_folder(name: str, vocabulary: int) -> PolicyShape:
    """`read_shape`, after a look at the weights' headers (milliseconds). Raises UserError for what cannot run here.

    vocabulary: how many ids the tokenizer can give.
    """
    shape = read_shape(name)
    try:
        found, wanted = tensor_shapes(Path(name)), hf_shapes(shape)
    except UserError as error:
        raise UserError(f"policy.model_name={name}: {error}") from None
    for tensor in sorted(found.keys() | wanted.keys()):
        if found.get(tensor) != wanted.get(tensor):
            has, needs = (str(list(sizes[tensor])) if tensor in sizes else "none" for sizes in (found, wanted))
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
