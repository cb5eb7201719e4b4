"""`nemo-ada check` says what a job of a config listens on, and SECURITY.md has the same rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.config.values import Values
from nemo_ada.rules.check.listening import listening, rows

ROOT = Path(__file__).parents[3]
COLOCATED = {"backend": "nemo_rl", "policy": {"generation": {"colocated": {"enabled": True}}}}
GYM = {**COLOCATED, "env": {"should_use_nemo_gym": True, "nemo_gym": {"port_range_low": 16000}}}


@pytest.fixture(autouse=True)
def no_site(tmp_path, monkeypatch):
    """A site without settings."""
    monkeypatch.setenv("NEMO_ADA_SITE", str(tmp_path / "none.env"))
    for name in ("RAY_AUTH", "RAY_PORT"):
        monkeypatch.delenv(name, raising=False)


def of(config, what):
    return [finding for finding in listening(Values(config)) if finding.message.startswith(f"{what}:")]


def test_the_page_has_the_table_that_check_prints():
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    section = page.partition("## What listens where")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    assert table[2:] == list(rows())


def test_a_cpu_run_is_on_the_loopback_device_and_warns_of_nothing(tmp_path):
    data = f"task.path={ROOT / 'recipes/data/chain_sum.jsonl'}"
    words = [
        "check",
        str(ROOT / "configs/cpu/jsonl.yaml"),
        data,
        f"base.cache_dir={tmp_path}",
        "--no-verifier",
        "--verbose",
    ]
    done = CliRunner().invoke(app, words)
    lines = [line for line in done.output.splitlines() if "listens: " in line]
    assert done.exit_code == 0 and len(lines) == 3
    assert all("127.0.0.1" in line or "Unix sockets" in line for line in lines)


@pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME is not set")
def test_a_config_over_gym_is_warned_of_each_server_without_a_key():
    done = CliRunner().invoke(
        app, ["check", str(ROOT / "configs/qwen3-4b-instruct-2507-gym-math.yaml"), "--no-verifier", "--verbose"]
    )
    warned = [line for line in done.output.splitlines() if line.startswith("WARNING listens: ")]
    assert [line.split(": ")[1] for line in warned] == ["vLLM's HTTP server", "NeMo-Gym's head", "NeMo-Gym's servers"]
    assert all("without a key" in line for line in warned)


def test_ports_are_those_of_the_config_and_of_the_site(monkeypatch):
    assert "ports 16000 to 20000" in of(GYM, "NeMo-Gym's head")[0].message
    assert of(COLOCATED, "NeMo-Gym's head") == [] == of(COLOCATED, "vLLM's HTTP server")
    monkeypatch.setenv("RAY_PORT", "7000")
    assert "ports 7000 and the 69 after it" in of(COLOCATED, "Ray, started by the batch script")[0].message


def test_a_ray_whose_token_the_site_turned_off_is_a_warning(monkeypatch):
    assert [finding.level for finding in of(COLOCATED, "Ray, started by the batch script")] == ["ok"]
    monkeypatch.setenv("RAY_AUTH", "disabled")
    [found] = of(COLOCATED, "Ray, started by the batch script")
    assert found.level == "warning" and "RAY_AUTH=disabled" in found.message


def test_weights_pass_through_a_socket_only_where_the_engine_is_on_the_same_gpus():
    apart = {"backend": "nemo_rl", "policy": {"generation": {"colocated": {"enabled": False}}}}
    assert len(of(COLOCATED, "weights on their way to vLLM")) == 1
    assert of(apart, "weights on their way to vLLM") == []
