"""What a config needs of the site: repositories of the hub, NeMo-RL's checkout, folders to write, a key for W&B."""

from __future__ import annotations

import netrc
import os
import re
import tempfile
from pathlib import Path

from nemo_ada.check.finding import Finding, Findings, error, ok, skipped
from nemo_ada.cluster import hub
from nemo_ada.cluster.config import HOME, Values
from nemo_ada.cluster.site import site_file, site_said, site_setting

VERSION = (0, 7)
OWN_ENVIRONMENT = "ada_math"


def site(values: Values) -> Findings:
    """All of them."""
    yield (ok if site_file().is_file() else skipped)("slurm/site.env", site_said())
    yield from repositories(values)
    yield from checkout(values)
    yield from folders(values)
    yield from wandb(values)


def repositories(values: Values) -> Findings:
    """Each repository is in the shared cache, whole, or the hub has it and nodes may ask."""
    prepare = "`nemo-ada prepare CONFIG` puts it there"
    for key, name, kind in hub.needs(values):
        folder = hub.snapshot(name, kind)
        if kind == "dataset":
            cached, lacks = hub.prepared(name), []
        else:
            lacks = [] if folder is None else hub.missing_files(folder, weights=key == "policy.model_name")
            cached = folder is not None and not lacks
        if cached:
            yield ok(key, f"{name}: in the cache {hub.cache_home()}")
        elif hub.offline():
            what = f"lacks {', '.join(lacks[:3])} in" if lacks else "is not in"
            yield error(
                key, f"{name} {what} the cache HF_HOME={hub.cache_home()}, and HF_HUB_OFFLINE is set; {prepare}"
            )
        else:
            yield _on_the_hub(key, name, kind, prepare)
    tokenizer = Path(str(values.get("policy.tokenizer.name", values.get("policy.model_name", ""))))
    if tokenizer.is_dir() and hub.missing_files(tokenizer, weights=False):
        yield error("policy.tokenizer.name", f"{tokenizer} has no tokenizer.json; name a folder or repository with one")


def _on_the_hub(key: str, name: str, kind: hub.Kind, prepare: str) -> Finding:
    said = hub.ask(name, kind)
    if said == "there":
        return ok(key, f"{name}: on the hub, not in the cache yet; {prepare}")
    if said == "gated":
        return error(key, f"{name} is gated: accept its licence on the hub and export HF_TOKEN")
    if said == "missing":
        return error(key, f"the hub has no {kind} {name}; mend the name (private ones need HF_TOKEN), or give a path")
    return error(
        key,
        f"{name} is not in the cache HF_HOME={hub.cache_home()}, and the hub gives no answer here; {prepare} where "
        "there is internet",
    )


def checkout(values: Values) -> Findings:
    """NeMo-RL's checkout is v0.7, and knows the environments and data sets that the config names."""
    home = Path(site_setting(HOME) or ".missing")
    numbers = re.findall(r"^(?:MAJOR|MINOR) = (\d+)", _text(home / "nemo_rl/package_info.py"), re.M)
    version = tuple(int(number) for number in numbers)
    if version and version != VERSION:
        yield error(HOME, f"{HOME}={home} is NeMo-RL v{version[0]}.{version[1]}; check out v0.7.0")
    environments = _keys(home / "nemo_rl/environments/utils.py", "ENV_REGISTRY")
    sets = _keys(home / "nemo_rl/data/datasets/response_datasets/__init__.py", "DATASET_REGISTRY")
    if not environments or not sets:
        yield skipped(HOME, "no checkout of NeMo-RL here: environments and data sets were not looked up")
        return
    for split in ("default", "train", "validation"):
        name = values.get(f"data.{split}.env_name")
        own = values.get(f"env.{name}.class")
        if name is not None and own is None and name not in {*environments, OWN_ENVIRONMENT}:
            yield error(
                f"data.{split}.env_name",
                f"{name}: NeMo-RL has no such environment; {OWN_ENVIRONMENT} or math would work, or name your own: "
                f"env.{name}.class=MODULE.CLASS",
            )
        elif name is not None and values.get(f"env.{name}") is None:
            yield error(f"data.{split}.env_name", f"{name} has no section env.{name}; add it, `workers: 16` in it")
        named = values.get(f"data.{split}.dataset_name")
        if named is not None and named not in sets and "." not in str(named):
            yield error(
                f"data.{split}.dataset_name",
                f"{named}: NeMo-RL has no such data set; ResponseDataset with a data_path would work, or one of "
                f"{', '.join(sorted(sets))}",
            )


def _keys(path: Path, name: str) -> list[str]:
    """Keys of a dictionary in a source file, which is read and not run."""
    _, _, rest = _text(path).partition(f"\n{name}")
    return re.findall(r'^    "([^"]+)":', rest.partition("\n}")[0], re.M)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def where(named: str) -> Path:
    """Where a job keeps it: below RUN_ROOT, unless the path is absolute."""
    path, root = Path(named), site_setting("RUN_ROOT")
    return (Path(root) / Path(*path.parts[1:]) if root and not path.is_absolute() else path).absolute()


def folders(values: Values) -> Findings:
    """Run folder and checkpoint folder can be written, or made."""
    for key in ("run_dir", "checkpointing.checkpoint_dir"):
        folder = where(str(values.get(key, "runs/nemo_rl")))
        above = next(parent for parent in (folder, *folder.parents) if parent.exists())
        try:
            with tempfile.TemporaryFile(dir=above):
                pass
        except OSError as problem:
            yield error(
                key, f"{folder} cannot be written ({above}: {problem.strerror}); set RUN_ROOT in slurm/site.env"
            )
            continue
        if key == "checkpointing.checkpoint_dir" and _in_memory(above):
            yield error(
                key, f"{folder} is in the memory of this machine (tmpfs): other nodes do not see it, and it is empty "
                "after the job; set RUN_ROOT in slurm/site.env to a shared folder",
            )  # fmt: skip


def _in_memory(folder: Path) -> bool:
    """Whether the folder's file system is a tmpfs."""
    best, kind = 0, ""
    for line in _text(Path("/proc/mounts")).splitlines():
        words = line.split()
        if len(words) > 2 and folder.is_relative_to(words[1]) and len(words[1]) >= best:
            best, kind = len(words[1]), words[2]
    return kind in ("tmpfs", "ramfs")


def wandb(values: Values) -> Findings:
    """W&B without a key waits for a person to type one."""
    if not values.get("logger.wandb_enabled", False) or site_setting("WANDB_MODE") in ("offline", "disabled"):
        return
    try:
        known = netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        known = False
    if not known and not os.environ.get("WANDB_API_KEY"):
        yield error(
            "logger.wandb_enabled", "W&B has no key here; export WANDB_API_KEY, or WANDB_MODE=offline in site.env"
        )
