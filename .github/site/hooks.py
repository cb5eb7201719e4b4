"""Hooks of mkdocs: pages from all over the repository, notebooks, an API reference, live reports, and llms.txt.

mkdocs reads one folder. Our pages stand beside what they describe, and link to each other and to files. So the hooks
add every tracked page and every file that a page links to, under its path in the repository.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)]*)?\)")
PICTURE = re.compile(r'<(?:img|source)\b[^>]*\bsrc(?:set)?="([^"]+)"')
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
HIDDEN = (".github/",)
TRAIN_REPORT = ROOT / "runs" / "compare" / "report.html"
"""`make train report` writes it."""
REFERENCE = ("core", "core.sampling", "core.learning", "core.prompts", "nemo", "nemo.rollouts", "nemo.asynchronous",
             "nemo.data_plane", "nemo.gym", "nemo.launch", "trl")  # fmt: skip


def tracked(*patterns: str) -> list[str]:
    """Paths of the repository's files."""
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if not name.startswith(HIDDEN)]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, the files that they link to, and the generated pages."""
    pages = tracked("*.md")
    linked: set[str] = set()
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        files.append(File.generated(config, page, abs_src_path=str(ROOT / page)))
        for target in [target for target, _ in LINK.findall(text)] + PICTURE.findall(text):
            path = (ROOT / page).parent / target
            if "://" not in target and path.is_file() and path.suffix != ".md":
                linked.add(str(path.resolve().relative_to(ROOT)))
    for name in sorted(linked):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for room in REFERENCE:
        name = f"reference/{room.replace('.', '_')}.md"
        files.append(File.generated(config, name, content=reference(room)))
    for name in tracked("*.ipynb"):
        page = Path(name).with_suffix(".md").as_posix()
        files.append(File.generated(config, page, content=notebook_page(ROOT / name)))
    files.append(File.generated(config, "live/train.md", content=train_page()))
    if TRAIN_REPORT.is_file():
        files.append(File.generated(config, "live/report.html", abs_src_path=str(TRAIN_REPORT)))
    return files


def reference(room: str) -> str:
    """The page of one folder of the package: every module with a public name, in one page."""
    folder = ROOT / "nemo_ada" / Path(*room.split("."))
    names = [f"nemo_ada.{room}"]
    if folder.is_dir():
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        names = [f"nemo_ada.{room}.{path.stem}" for path in modules]
    return "\n\n".join([f"# nemo_ada.{room}", *(f"::: {name}" for name in names), ""])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead the links to notebooks to their pages, but for the page's link to its own notebook."""
    own = Path(page.file.src_uri).with_suffix(".ipynb").name
    return LINK.sub(lambda link: link[0] if link[1] == own else link[0].replace(".ipynb)", ".md)"), markdown)


def notebook_page(path: Path) -> str:
    """The page of one notebook: its text, its code, and the outputs that it keeps."""
    title, *cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = ["".join(title["source"]), f"[Download the notebook]({path.name})."]
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        parts += [shown(output) for output in cell.get("outputs", [])]
    return "\n\n".join([*parts, ""])


def shown(output: dict[str, Any]) -> str:
    """One output of a notebook's cell: a figure, a table or text."""
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items()}
    if "image/png" in data:
        return f'<img alt="Figure of the cell above" src="data:image/png;base64,{data["image/png"].strip()}">'
    table = re.search(r"<table.*</table>", data.get("text/html", ""), re.DOTALL)
    if table:  # without pandas' own style, so that it looks and scrolls as every other table
        return re.sub(r"<(table|tr)[^>]*>", r"<\1>", table[0])
    return f"```text\n{(''.join(output.get('text', '')) or data.get('text/plain', '')).rstrip()}\n```"


def train_page() -> str:
    """The page with the report of `make train`, in a frame, where this checkout has one."""
    title = "# Report of make train\n\n"
    if not TRAIN_REPORT.is_file():
        return title + "This build does not have it. `make train report` makes it, and `make site` takes it.\n"
    frame = '<iframe class="report" src="report.html" title="Report of make train"></iframe>'
    return f"{title}What `make train report` made for this site: [open it alone](report.html).\n\n{frame}\n"


def on_post_build(config: Any) -> None:
    """Write llms.txt, and each page as Markdown beside its HTML."""
    site = Path(config["site_dir"])
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    section = ""
    for page in tracked("*.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        (site / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / page, site / page)
        folder = str(Path(page).parent)
        if folder != section:
            section = folder
            lines += ["", f"## {'Project' if folder == '.' else folder}", ""]
        title = TITLE.search(text)
        lines.append(f"- [{title[1] if title else page}]({page}): {first_sentence(text)}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def first_sentence(text: str) -> str:
    """The first sentence of a page's first paragraph, without links."""
    paragraphs = [part for part in text.split("\n\n") if part.strip() and part.lstrip()[0] not in "#`|!>-<"]
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraphs[0].split())) if paragraphs else ""
    return html.unescape(re.split(r"(?<=[.!?]) ", plain)[0])
