"""What a config needs of the site: the hub's files, NeMo-RL's checkout, the image, folders to write, a W&B key."""

from __future__ import annotations

import netrc
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from nemo_ada.config.values import Values
from nemo_ada.rules.facts import hub
from nemo_ada.rules.facts.checkout import PACKAGE, Checkout
from nemo_ada.rules.facts.config_file import HOME
from nemo_ada.rules.facts.nemo_config import DEFAULT_RUN_DIR, Loop
from nemo_ada.rules.facts.site import CODE, describe_site, find_project, find_site_file, read_site_setting
from nemo_ada.rules.facts.upstream import ADVICE, find_misfits
from nemo_ada.rules.finding import Finding, Findings, error, ok, skipped, warning
from nemo_ada.rules.gym import GENERATION, GYM, uses_gym
from nemo_ada.rules.method import uses_reinforce_ada
from nemo_ada.run.files import text_of
from nemo_ada.run.folder import find_saves, flatten
from nemo_ada.run.inputs import list_files
from nemo_ada.standing import get_users_folder, show_path

SERVER = "https://api.wandb.ai"
SAVES = "checkpointing.checkpoint_dir"
WITHOUT_SERVER = ("offline", "disabled", "dryrun")


def check_site(values: Values) -> Findings:
    """Everything that a job needs of the site, except the image."""
    yield (ok if find_site_file().is_file() else skipped)("slurm/site.env", describe_site())
    yield from check_repositories(values)
    yield from check_model_code(values)
    yield from check_checkout(values)
    yield from check_folders(values)
    yield from check_wandb(values)
    yield from check_open_ports(values)


def check_repositories(values: Values) -> Findings:
    """Each repository is complete in the shared cache. Otherwise the hub has it, and nodes may ask the hub."""
    prepare = "`nemo-ada prepare CONFIG` puts it there"
    for key, name, kind in hub.list_needs(values):
        folder = hub.find_snapshot(name, kind)
        if kind == "dataset":
            cached, lacks = hub.has_prepared(name), []
        else:
            lacks = [] if folder is None else hub.find_missing_files(folder, weights=key == "policy.model_name")
            cached = folder is not None and not lacks
        if cached:
            yield ok(key, f"{name}: in the cache {hub.find_cache()}")
        elif hub.is_offline():
            what = f"lacks {', '.join(lacks[:3])} in" if lacks else "is not in"
            yield error(
                key, f"{name} {what} the cache HF_HOME={hub.find_cache()}, and HF_HUB_OFFLINE is set; {prepare}"
            )
        else:
            yield _ask_hub(key, name, kind, prepare)
    tokenizer = Path(str(values.get("policy.tokenizer.name", values.get("policy.model_name", ""))))
    if tokenizer.is_dir() and hub.find_missing_files(tokenizer, weights=False):
        yield error("policy.tokenizer.name", f"{tokenizer} has no tokenizer.json; name a folder or repository with one")


def check_model_code(values: Values) -> Findings:
    """A model's or tokenizer's folder that brings code. NeMo-RL sets trust_remote_code, so it runs."""
    for key in ("policy.model_name", "policy.tokenizer.name"):
        name = str(values.get(key, ""))
        folder = Path(name) if os.path.isdir(name) else hub.find_snapshot(name) if name else None
        if folder is None:
            continue
        if code := hub.find_code(folder):
            shown = ", ".join(code[:6])
            yield warning(
                key,
                f"{folder} brings code ({shown}), and NeMo-RL runs it on every node (it sets trust_remote_code); "
                "read it, or name a model whose class transformers has itself",
            )


def _ask_hub(key: str, name: str, kind: hub.Kind, prepare: str) -> Finding:
    answer = hub.ask_hub(name, kind)
    if answer == "there":
        return ok(key, f"{name}: on the hub, not in the cache yet; {prepare}")
    if answer == "gated":
        return error(key, f"{name} is gated: accept its licence on the hub and export HF_TOKEN")
    if answer == "missing":
        return error(key, f"the hub has no {kind} {name}; mend the name (private ones need HF_TOKEN), or give a path")
    return error(
        key,
        f"{name} is not in the cache HF_HOME={hub.find_cache()}, and the hub gives no answer here; {prepare} where "
        "there is internet",
    )


def check_checkout(values: Values) -> Findings:
    """NeMo-RL's checkout has what the hooks need.

    The version that a checkout gives itself says little: main of August 2026 calls itself 0.6.0.
    """
    named = read_site_setting(HOME)
    home = Path(named or ".missing")
    if not (home / PACKAGE).is_dir():
        none = "so what the hooks replace was not looked up"
        yield (
            warning(HOME, f"{home} has no folder {PACKAGE} on this machine, {none}")
            if named
            else skipped(HOME, f"it names no checkout of NeMo-RL, {none}")
        )
    elif uses_reinforce_ada(values):
        problems = list(find_misfits(Checkout(home), Loop.of(values), gym=uses_gym(values)))
        for problem in problems:
            yield error(HOME, f"{HOME}={home}: {problem}; {ADVICE}")
        if not problems:
            yield ok(HOME, f"{home} has the functions that Reinforce-Ada replaces, and the attributes that it reads")


def check_image() -> Findings:
    """CONTAINER, as slurm/site.env sets it: a file must exist, a registry's name cannot be looked up here."""
    name = read_site_setting("CONTAINER")
    if not name:
        yield skipped("CONTAINER", "not set: bare nodes, or site.env was not read here")
    elif name.startswith(("/", ".")) and not Path(name).is_file():
        yield error(
            "CONTAINER", f"{name} is not there; import the image first (docker/README.md) or correct slurm/site.env"
        )
    elif name.startswith(("/", ".")):
        yield ok("CONTAINER", name)
    else:
        yield skipped("CONTAINER", f"{name}: an image of a registry is not looked up")


def check_mounts(values: Values, yamls: Sequence[Path]) -> Findings:
    """The container of a job shows what the job reads: YAMLs, data, templates, own code, HF_HOME.

    The project, the run folder and MOUNTS are mounted. What a link leads to has to be, too.

    Args:
        values: the configuration.
        yamls: the files that it is made from.
    """
    if not read_site_setting("CONTAINER"):
        return
    run_dir = find_job_folder(str(values.get("run_dir", DEFAULT_RUN_DIR)))
    mounted = [(str(folder), str(folder)) for folder in (find_project().absolute(), run_dir)]
    named = [(source, target or source) for source, target in _split_mounts(read_site_setting("MOUNTS"))]
    for source, _ in named:
        if not os.path.exists(source):
            yield warning("MOUNTS", f"{source} is not on this machine; a node that lacks it starts no container")
    mounted += named
    cache, setup = read_site_setting("HF_HOME"), read_site_setting("NODE_SETUP")
    checkout = Path(read_site_setting(HOME) or os.devnull).absolute()
    read = {
        "YAML": yamls,
        "input": list_files(flatten(dict(values.config))),
        "NODE_SETUP": [Path(setup)] if setup else [],
    }
    read["HF_HOME"] = [Path(cache)] if cache else []
    for what, paths in read.items():
        for path in dict.fromkeys(name for one in paths for name in (one.absolute(), one.resolve())):
            if not path.exists() or path.is_relative_to(checkout) or path.is_relative_to(CODE):
                continue  # the image has its own checkout
            if not any(path.is_relative_to(source) and source == target for source, target in mounted):
                other = next((target for source, target in mounted if path.is_relative_to(source)), None)
                at = f"MOUNTS shows it at {other}" if other else "no mount shows it"
                yield error("MOUNTS", f"the job's container does not see {what} {path}: {at}; add "
                            f"{path.parent}:{path.parent} to MOUNTS, or put it into the project")  # fmt: skip


def _split_mounts(text: str) -> Iterator[tuple[str, str]]:
    """Yield source and target of SOURCE:TARGET[:FLAGS],...; the target is empty where it is the source's."""
    for mount in filter(None, text.split(",")):
        source, target, *_ = [*mount.split(":"), ""]
        yield source.rstrip("/") or "/", target.rstrip("/")


def _read_text(path: Path) -> str:
    try:
        return text_of(path)
    except (OSError, ValueError):
        return ""


def find_job_folder(name: str) -> Path:
    """The folder that a job uses for a run_dir of the config: below RUN_ROOT, unless it is an absolute path."""
    path, root = show_path(Path(name)), read_site_setting("RUN_ROOT")  # a path that the user wrote as a relative one
    return get_users_folder() / (Path(root) / Path(*path.parts[1:]) if root and not path.is_absolute() else path)


def find_job_folders(values: Values) -> dict[str, Path]:
    """The run folder of a job and the folder where it saves. RUN_ROOT moves the second one only with the first."""
    run = find_job_folder(str(values.get("run_dir", DEFAULT_RUN_DIR)))
    return {"run_dir": run, SAVES: find_saves(run, values.config)}


def check_folders(values: Values) -> Findings:
    """The run folder and the checkpoint folder can be created and written."""
    folders = find_job_folders(values)
    for key, folder in folders.items():
        works = "set RUN_ROOT in slurm/site.env" + (
            "" if folder.is_relative_to(folders["run_dir"]) else f", or {SAVES}"
        )
        above = next(parent for parent in (folder, *folder.parents) if parent.exists())
        try:
            with tempfile.TemporaryFile(dir=above):
                pass
        except OSError as problem:
            yield error(key, f"{folder} cannot be written ({above}: {problem.strerror}); {works}")
            continue
        if key == SAVES and _is_in_memory(above):
            yield error(
                key, f"{folder} is in the memory of this machine (tmpfs): other nodes do not see it, and it is empty "
                f"after the job; {works} to a shared folder",
            )  # fmt: skip


def _is_in_memory(folder: Path) -> bool:
    """Return whether the folder's file system is a tmpfs."""
    best, kind = 0, ""
    for line in _read_text(Path("/proc/mounts")).splitlines():
        words = line.split()
        if len(words) > 2 and folder.is_relative_to(words[1]) and len(words[1]) >= best:
            best, kind = len(words[1]), words[2]
    return kind in ("tmpfs", "ramfs")


def check_wandb(values: Values) -> Findings:
    """W&B has a key. Without one it would wait for a person to type it."""
    if values.get("logger.wandb_enabled", False) and not has_key(read_site_setting("WANDB_MODE")):
        yield error(
            "logger.wandb_enabled", "W&B has no key here; export WANDB_API_KEY, or WANDB_MODE=offline in site.env"
        )


def has_key(mode: str) -> bool:
    """Return whether W&B has a key here, or needs none in this WANDB_MODE."""
    if mode in WITHOUT_SERVER or os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", SERVER)).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def check_open_ports(values: Values) -> Findings:
    """What answers anyone who reaches its port. SECURITY.md has everything that a job listens on."""
    alone = "use a network that is the cluster's alone (SECURITY.md, What listens where)"
    if read_site_setting("RAY_AUTH") == "disabled":
        yield warning("RAY_AUTH", f"disabled: Ray runs the code of anyone who reaches its port; {alone}")
    if uses_gym(values):
        yield warning(
            GYM, f"NeMo-Gym's servers and vLLM's HTTP server listen on all interfaces, without a key; {alone}"
        )
    elif values.get(f"{GENERATION}.vllm_cfg.expose_http_server", False):
        key = f"{GENERATION}.vllm_cfg.expose_http_server"
        yield warning(key, f"vLLM's HTTP server listens on all interfaces, without a key; {alone}")
