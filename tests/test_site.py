"""The site: every page of the repository builds without a warning, and nothing is loaded from another server."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / ".github" / "site"


def pages():
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.splitlines() if not name.startswith(".github/")}


def in_nav(entry):
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from in_nav(part)


def test_every_page_is_in_the_menu():
    text = (SITE / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(in_nav(yaml.safe_load(text)["nav"]))
    generated = {name for name in named if name.startswith(("reference/", "live/"))}
    outside = {name for name in pages() if name.startswith("recipes/results/log/")}
    assert named - generated == pages() - outside


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="the pages are git's list")
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("material", "mkdocs", "mkdocstrings")),
    reason="the extra `docs` is not installed: make site",
)
def test_the_site_builds_strictly_with_search_reference_reports_and_llms_txt(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", SITE / "mkdocs.yml", "-d", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "AdaSampler" in (tmp_path / "reference" / "core.html").read_text(encoding="utf-8")
    assert "reinforce_ada" in (tmp_path / "search" / "search_index.json").read_text(encoding="utf-8")
    for name in pages():
        assert (tmp_path / name).is_file()
    for target in re.findall(r"\]\(([^)]+)\)", (tmp_path / "llms.txt").read_text(encoding="utf-8")):
        assert (tmp_path / target).is_file()
    assert "passed in" in (tmp_path / "recipes" / "results" / "reports" / "rehearsal.html").read_text(encoding="utf-8")
    loaded = [
        address
        for page in tmp_path.rglob("*.html")
        for address in re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(https?:[^\"' >]+)",
                                  page.read_text(encoding="utf-8", errors="replace"))
    ]  # fmt: skip
    assert not loaded
