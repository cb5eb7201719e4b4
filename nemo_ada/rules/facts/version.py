"""What the NeMo-RL that is there does, read in its source. Rules judge by this and not by a version's name.

main of August 2026 calls itself 0.6.0, and NVIDIA's images have commits between two releases. Every attribute names the
place that was read. Without a checkout the answer is that of v0.7.0.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from nemo_ada.errors import UserError
from nemo_ada.rules.facts.checkout import PACKAGE, Checkout
from nemo_ada.rules.facts.config_file import HOME
from nemo_ada.rules.facts.site import read_site_setting
from nemo_ada.run.files import text_of

PACKER = "nemo_rl.algorithms.loss.utils._pack_input_ids"
RESUME = "nemo_rl.algorithms.async_utils.AsyncTrajectoryCollector.resume_after_refit"
CONTROLLER_MODULE = "nemo_rl.algorithms.single_controller"
MEGATRON_HOME = "MEGATRON_LM_HOME"
_BRIDGE = "3rdparty/Megatron-Bridge-workspace/Megatron-Bridge/3rdparty/Megatron-LM"
MEGATRON_SUBMODULES = (_BRIDGE, "3rdparty/Megatron-LM-workspace/Megatron-LM")
PINNED_VLLM = re.compile(r"\bvllm==(\d+)\.(\d+)")
ADVANTAGES = "nemo_rl.algorithms.single_controller_utils.config.AdvantageConfig"


@dataclass(frozen=True, slots=True)
class Version:
    """What a NeMo-RL does.

    Attributes:
        name: the branch or release that it is most like.
        fuses_padded_packs: whether the fused loss takes packs that end in padding (pull request 3182, `_pack_input_ids`
            copies no more than a row has).
        empties_cache: whether the older asynchronous loop empties the engine's prefix cache after every refit if it is
            asked to, and not only after one in flight (pull request 3152, `resume_after_refit`).
        masks_rows: whether the single controller masks rows (pull request 3766, `mask_sample_field` of ADVANTAGES), so
            that two objects in its arguments are the whole of Reinforce-Ada (nemo/single_controller.py).
        vllm: the first two numbers of the vLLM that it pins (pyproject.toml).
    """

    name: str
    fuses_padded_packs: bool = False
    empties_cache: bool = False
    masks_rows: bool = False
    vllm: tuple[int, int] = (0, 20)


V0_7_0 = Version("v0.7.0")
MAIN = Version("main", fuses_padded_packs=True, empties_cache=True, vllm=(0, 25))
"""main of August 2026, 7ea279ab."""
V0_8_0 = Version("v0.8.0", fuses_padded_packs=True, empties_cache=True, masks_rows=True, vllm=(0, 29))
"""The source that is public at 7b235d3e and will be v0.8.0."""


def find_version() -> Version:
    """Return what the NeMo-RL does that is there (`find_checkout`), else what v0.7.0 does."""
    found = find_checkout()
    return V0_7_0 if found is None else read_version(found.root)


def find_checkout() -> Checkout | None:
    """Return the NeMo-RL that NEMO_RL_HOME names, else the one that Python would import. None where there is none."""
    home = read_site_setting(HOME)
    if home and (Path(home) / PACKAGE).is_dir():
        return _checkout(Path(home).resolve())
    found = find_spec(PACKAGE)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return _checkout(Path(places[0]).resolve().parent) if places else None


_checkout = functools.cache(Checkout)


def find_megatron() -> Checkout | None:
    """Return the megatron-core of the NeMo-RL that is there, else the one that Python would import. None without."""
    home, found = read_site_setting(MEGATRON_HOME), find_checkout()
    places = [Path(home)] if home else [] if found is None else [found.root / one for one in MEGATRON_SUBMODULES]
    imported = find_spec("megatron")
    places += [Path(one).parent for one in (imported.submodule_search_locations or ())] if imported is not None else []
    for place in places:
        if (place / "megatron/core").is_dir():
            return _checkout(place.resolve(), "megatron")
    return None


def list_names(place: str, of: str = "") -> set[str]:
    """Return the names that NeMo-RL or megatron-core lists (`Checkout.list_texts`). Empty where nobody can read them.

    A rule that finds no names must not judge.
    """
    try:
        found = find_megatron() if place.startswith("megatron.") else find_checkout()
        return set() if found is None else found.list_texts(place, of)
    except UserError:
        return set()


def read_source(name: str) -> str:
    """Return the source of a function of the NeMo-RL that is there. Empty where it has none, or nobody can read it."""
    found = find_checkout()
    try:
        return "" if found is None else _read_source(found, name)
    except UserError:
        return ""


@functools.cache
def read_version(root: Path) -> Version:
    """Return what the NeMo-RL in a folder does. A file that is not Python counts as one of v0.7.0."""
    checkout = Checkout(root)
    try:
        single = checkout.parse(CONTROLLER_MODULE) is not None
        masks = "mask_sample_field" in checkout.list_keys(ADVANTAGES)
        packer, resume = _read_source(checkout, PACKER), _read_source(checkout, RESUME)
    except UserError:
        return V0_7_0
    like = V0_8_0 if masks else MAIN if single else V0_7_0
    return Version(
        name=like.name,
        fuses_padded_packs="min(" in packer,
        empties_cache=bool(resume) and "in_flight_weight_updates" not in resume,
        masks_rows=masks,
        vllm=_read_vllm(root) or like.vllm,
    )


def _read_vllm(root: Path) -> tuple[int, int] | None:
    """Return the first two numbers of the vLLM that a checkout pins. None for an installed package, which pins none."""
    try:
        pinned = PINNED_VLLM.search(text_of(root / "pyproject.toml"))
    except (OSError, ValueError):
        return None
    return None if pinned is None else (int(pinned[1]), int(pinned[2]))


def _read_source(checkout: Checkout, name: str) -> str:
    """Return the source of a function without its comments. It is empty where there is none."""
    found = checkout.find(name)
    return "" if found is None or found.node is None else ast.unparse(found.node)
