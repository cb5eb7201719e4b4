"""Workflows and issue forms: they run commands that exist, with few rights and without stored secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from nemo_ada.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_a_limit_and_no_secret(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    assert "secrets." not in path.read_text(encoding="utf-8")
    rights = [(job.get("permissions", {}), job.get("if")) for job in workflow["jobs"].values()]
    site = ({"contents": "write"}, "github.event_name == 'push'")  # a branch of pages, never from a pull request
    assert all(right in ({}, {"id-token": "write"}) or (right, when) == site for right, when in rights)
    assert all("${{" not in step.get("run", "") for step in steps(workflow)), "text of strangers in a shell"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_with_rights_installs_and_builds_nothing(path):
    for job in read(path)["jobs"].values():
        if "permissions" in job:
            commands = [line.split() for step in job["steps"] for line in step.get("run", "").splitlines()]
            assert all(command[:2] in (["git", "fetch"], ["git", "push"]) for command in commands)
            used = {step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step}
            assert used <= {"actions/checkout", "actions/download-artifact", "pypa/gh-action-pypi-publish"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_named_by_a_commit_that_no_owner_can_move(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("uses: ") == len(re.findall(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", text, re.M))


def test_an_action_has_one_version_in_all_workflows():
    used = {step["uses"] for path in WORKFLOWS for step in steps(read(path)) if "uses" in step}
    assert len({name.partition("@")[0] for name in used}) == len(used)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_exists(path):
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    text = "\n".join(step.get("run", "") for step in steps(read(path)))
    assert set(re.findall(r"make ([a-z][\w-]*)", text)) <= targets
    assert set(re.findall(r"nemo-ada ([a-z]+)", text)) <= set(COMMANDS)
    for name in re.findall(r"(?:tests/\S+\.py|\.ci/\w+)", text):
        assert (ROOT / name).is_file()


def test_ci_is_the_script_that_a_change_must_pass():
    assert ".ci/run" in [step.get("run") for step in steps(read(ROOT / ".github/workflows/ci.yml"))]


def test_a_release_publishes_only_a_tag_that_is_the_version_without_a_token():
    workflow = read(ROOT / ".github/workflows/release.yml")
    assert workflow[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}  # YAML 1.1 reads `on` as true
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build"
    assert publish["environment"] == "pypi"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_complete(path):
    form = read(path)
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_bug_reports_come_with_the_output_of_check_and_the_runs_record():
    labels = " ".join(
        field["attributes"].get("label", "") for field in read(ROOT / ".github/ISSUE_TEMPLATE/bug.yml")["body"]
    )
    for wanted in ("nemo-ada check", "environment.json", "config.yaml", "metrics.jsonl", "nemo-ada --version"):
        assert wanted in labels
