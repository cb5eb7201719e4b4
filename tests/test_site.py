"""The site: every page of the repository builds without a warning, and nothing is loaded from another server."""

import importlib.util
import json
import os
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


def pages(kind="*.md"):
    listed = subprocess.run(["git", "ls-files", kind], cwd=ROOT, capture_output=True, text=True, check=True)
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
    generated |= {name.replace(".ipynb", ".md") for name in pages("*.ipynb")}
    assert generated <= named and named - generated == pages()


needs_packages = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("material", "mike", "mkdocs", "mkdocstrings")),
    reason="the extra `docs` is not installed: make site",
)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="the pages are git's list")
@needs_packages
def test_the_site_builds_strictly_with_search_reference_reports_and_llms_txt(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "-f", SITE / "mkdocs.yml", "-d", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "AdaSampler" in (tmp_path / "reference" / "core.html").read_text(encoding="utf-8")
    assert "reinforce_ada" in (tmp_path / "search" / "search_index.json").read_text(encoding="utf-8")
    for name in pages():
        assert (tmp_path / name).is_file()
    for target in re.findall(r"\]\(([^)]+)\)", (tmp_path / "llms.txt").read_text(encoding="utf-8")):
        assert (tmp_path / target).is_file()
    notebook = (tmp_path / "recipes" / "first_training.html").read_text(encoding="utf-8")
    assert "data:image/png" in notebook and "<td>" in notebook and "ada_seq_balance" in notebook
    assert 'href="first_training.html"' in (tmp_path / "recipes" / "index.html").read_text(encoding="utf-8")
    loaded = [
        address
        for page in tmp_path.rglob("*.html")
        for address in re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(https?:[^\"' >]+)",
                                  page.read_text(encoding="utf-8", errors="replace"))
    ]  # fmt: skip
    assert not loaded
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is not None:  # without the frame that stands for a worker, a page in a folder finds nothing
        page = f"file://{tmp_path}/index.html?q=haldane"
        shown = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom", page],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert re.search(r'md-search-result__meta">\d+ matching document', shown.stdout)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="the pages are git's list")
@needs_packages
def test_main_and_a_release_stand_beside_each_other(tmp_path):
    """The commands of docs.yml, against a repository in a folder."""
    origin, work = tmp_path / "origin", tmp_path / "work"

    def run(*command, where=work):
        environment = {**os.environ, "VENV": str(Path(sys.executable).parents[1])}
        done = subprocess.run(
            command, cwd=where, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def front():
        return run("git", "show", "gh-pages:index.html", where=origin)

    run("git", "clone", "--quiet", "--bare", str(ROOT), str(origin), where=tmp_path)
    run("git", "clone", "--quiet", str(origin), str(work), where=tmp_path)
    for key, value in {"user.name": "somebody", "user.email": "somebody@example.com"}.items():
        run("git", "config", key, value)

    def publish(ref):
        run(".github/site/publish", ref)
        run("git", "bundle", "create", "pages.bundle", "gh-pages")
        run("git", "clone", "--quiet", str(origin), str(tmp_path / f"writer-{ref}"), where=tmp_path)
        for command in (("fetch", str(work / "pages.bundle"), "gh-pages"), ("push", "origin", "FETCH_HEAD:gh-pages")):
            run("git", *command[:-1], command[-1].replace(":", ":refs/heads/"), where=tmp_path / f"writer-{ref}")
        shutil.rmtree(tmp_path / f"writer-{ref}")

    publish("main")
    assert "main/" in front()
    publish("v0.1.0")
    publish("main")
    versions = json.loads(run("git", "show", "gh-pages:versions.json", where=origin))
    assert {entry["version"]: entry["aliases"] for entry in versions} == {"main": [], "0.1.0": ["latest"]}
    assert "latest/" in front()
    assert "AdaSampler" in run("git", "show", "gh-pages:0.1.0/reference/core.html", where=origin)
