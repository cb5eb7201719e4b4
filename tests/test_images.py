"""The images, for real: docker/build.sh with podman, then docker/run.sh as a user whom the image does not know.

No registry of images is asked. debootstrap makes Docker's Python image. On it, a stand-in for NVIDIA's image has the
checkout of NeMo-RL, a small environment, and the folders below /root that only root may enter. It takes minutes and,
for that time, 12 GB below .cache. What podman keeps lies there, too, so that images and containers of this machine are
neither seen nor touched.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BASE = "docker.io/library/python:3.11.13-slim-bookworm"
PACKAGES = "ca-certificates,python3,python3-dev,python3-pip,python3-venv"
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
USER = 12345
BYTES = 12 << 30
LIMIT = 1 << 15  # of processes and of open files: podman 4.3 may give no more processes where it cannot raise limits
LONG = 3000.0  # seconds for the build on a busy machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LONG)]


def why_not(folder: Path) -> str | None:
    """The reason why no image can be built here."""
    if os.geteuid() != 0:
        return "needs root, for debootstrap"
    missing = [name for name in ("podman", "debootstrap") if shutil.which(name) is None]
    if missing or not (shutil.which("runc") or shutil.which("crun")):
        return f"needs podman, runc (or crun) and debootstrap; not found: {', '.join(missing) or 'runc'}"
    if shutil.disk_usage(folder).free < BYTES:
        return f"needs {BYTES >> 30} GB of disk"
    return None


def run(*command: str | Path, environment: dict[str, str], folder: Path = ROOT) -> None:
    """Run a command that must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, timeout=LONG)
    said = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{said}"


def podmans_own(top: Path) -> dict[str, str]:
    """An environment in which podman and buildah keep everything below `top`, and ask for no more than we may."""
    hard = {
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "nproc": resource.getrlimit(resource.RLIMIT_NPROC)[1],
    }
    most = {name: LIMIT if limit == resource.RLIM_INFINITY else min(LIMIT, limit) for name, limit in hard.items()}
    ulimits = [f"{name}={limit}:{limit}" for name, limit in most.items()]
    (top / "tmp").mkdir()
    (top / "containers.conf").write_text(
        f"""
[containers]
netns = "host"
default_ulimits = {json.dumps(ulimits)}
[engine]
runtime = "{"runc" if shutil.which("runc") else "crun"}"  # Debian's crun refuses hybrid cgroups
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"  # else all podmans of root share one
tmp_dir = "{top}/tmp"
static_dir = "{top}/storage/libpod"
volume_path = "{top}/storage/volumes"
"""
    )
    (top / "storage.conf").write_text(
        f"""
[storage]
driver = "overlay"
graphroot = "{top}/storage"
runroot = "{top}/run"
"""
    )
    return {
        **os.environ,
        "CONTAINERS_CONF": f"{top}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{top}/storage.conf",
        "TMPDIR": f"{top}/tmp",
        "DOCKER": "podman",
    }


def make_base(top: Path, environment: dict[str, str]) -> None:
    """Docker's Python image, from Debian's packages: Python is in /usr/local/bin, and pip works."""
    base, archive = top / "base", top / "base.tar"
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(base)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    if done.returncode != 0:
        pytest.skip(f"debootstrap makes no base here: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
    for name in ("python", "python3"):
        (base / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
    run("tar", "-C", base, "--exclude=./var/cache/apt/archives/*", "-cf", archive, ".", environment=environment)
    run("podman", "import", "--change", f"ENV PATH={PATH}", archive, BASE, environment=environment)


def site() -> dict[str, str]:
    """What docker/build.sh takes from the environment, where this machine's pip is told the same."""
    certificates = [os.environ.get(name, "") for name in ("CA_FILE", "PIP_CERT", "SSL_CERT_FILE")]
    wheels = os.environ.get("PIP_FIND_LINKS", "")
    return {
        "CA_FILE": next(filter(os.path.isfile, certificates), ""),
        "PIP_FIND_LINKS": wheels if os.path.isdir(wheels) else "",
    }


# The places of NeMo-RL v0.7.0's docker/Dockerfile. uv links the packages to its cache.
NVIDIA = """
FROM {base}
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX=$PIP_INDEX_URL
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
RUN --mount=type=secret,id=ca,target=/usr/local/share/ca-certificates/site.crt,mode=0444 update-ca-certificates
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
RUN mkdir -p /root/.local/bin /root/.local/share/uv/python/bin \
    && python3 -m venv /tmp/uv && /tmp/uv/bin/pip install uv \
    && cp /tmp/uv/bin/uv /root/.local/bin && cp -L /usr/bin/python3 /root/.local/share/uv/python/bin
ENV PATH=/opt/nemo_rl_venv/bin:/root/.local/bin:$PATH
RUN uv venv --seed --python /root/.local/share/uv/python/bin/python3 /opt/nemo_rl_venv \
    && uv pip install --link-mode symlink --python /opt/nemo_rl_venv/bin/python numpy pydantic omegaconf hydra-core \
    && chmod 700 /root /root/.local /root/.cache
COPY . /opt/nemo-rl
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[dict[str, str]]:
    """The environment in which docker/build.sh finds the base of the CPU image."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    reason = why_not(ROOT / ".cache")
    if reason is not None:
        pytest.skip(reason)
    top = Path(tempfile.mkdtemp(prefix="images-", dir=ROOT / ".cache"))
    environment = podmans_own(top)
    try:
        make_base(top, environment)
        yield environment
    finally:
        subprocess.run(["podman", "rm", "--all", "--force", "--time=0"], env=environment, check=False)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((mount for mount in mounts if mount.startswith(f"{top}/")), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(top)


def test_the_cpu_image_trains_as_an_unknown_user_on_a_read_only_root(podman: dict[str, str], tmp_path: Path) -> None:
    run(ROOT / "docker" / "build.sh", "cpu", environment={**podman, **site()})
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, USER, USER)
    train = (
        "nemo-ada train configs/cpu/mini_sudoku.yaml base.steps=200 grpo.max_num_steps=5 grpo.num_prompts_per_step=16 "
        "run_dir=run"
    )
    command = f"grep ' / ' /proc/mounts > mounts && exec {train}"
    environment = {**podman, "RUN_AS": f"{USER}:{USER}"}
    run(ROOT / "docker" / "run.sh", "cpu", "sh", "-c", command, environment=environment, folder=own)
    assert (own / "mounts").read_text().split()[3].split(",")[0] == "ro"
    steps = [json.loads(line)["step"] for line in (own / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5]
    assert {path.stat().st_uid for path in own.rglob("*")} == {USER}


def test_the_gpu_image_starts_as_nobody_on_a_base_laid_out_like_nvidias(podman: dict[str, str], tmp_path: Path) -> None:
    checkout = Path(os.environ.get("NEMO_RL_HOME") or Path.home() / "nemo-rl" / "RL")
    if not (checkout / "nemo_rl").is_dir():
        pytest.skip("needs a checkout of NeMo-RL: NEMO_RL_HOME, or ~/nemo-rl/RL")
    environment = {**podman, **site(), "RUN_AS": "65534:65534", "GPUS": "none"}
    environment.pop("HF_HOME", None)
    (tmp_path / "Dockerfile").write_text(NVIDIA.format(base=BASE))
    options = ["--tag", "nvcr.io/nvidia/nemo-rl:v0.7.0", "--file", str(tmp_path / "Dockerfile")]
    if environment["CA_FILE"]:
        options += ["--secret", f"id=ca,src={environment['CA_FILE']}"]
    if index := environment.get("PIP_INDEX_URL"):
        options += ["--build-arg", f"PIP_INDEX_URL={index}"]
    run("podman", "build", *options, checkout, environment=environment)
    run(ROOT / "docker" / "build.sh", "nemo_rl", environment=environment)
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, 65534, 65534)
    command = [str(ROOT / "docker" / "run.sh"), "nemo_rl", "nemo-ada", "check", "configs/qwen2.5-math-1.5b.yaml"]
    done = subprocess.run(command, env=environment, cwd=own, capture_output=True, text=True, timeout=LONG)
    said = done.stdout + done.stderr
    wrong = {line.split()[1].rstrip(":") for line in said.splitlines() if line.startswith("ERROR")}
    fetched = {"policy.model_name", "data.train.data_path", "data.validation.dataset_name"}  # by nobody so far
    assert done.returncode in (0, 2, 3) and wrong <= fetched, said
    for fine in ("NEMO_RL_HOME: /opt/nemo-rl has the functions", "verifier: the self-test's known pairs"):
        assert fine in said
