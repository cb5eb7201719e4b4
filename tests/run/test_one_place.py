"""Files are made, read, replaced and deleted in one place: no other module of the package calls the library for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "nemo_ada"
PLACE = {PACKAGE / name for name in ("run/files.py", "run/yaml_file.py", "run/json_lines.py", "trust.py")}
ANYWHERE = {  # method or function -> what does it instead
    "write_text": "write_atomically, new_file",
    "write_bytes": "write_atomically, new_file",
    "read_text": "text_of",
    "read_bytes": "read_bounded",
    "touch": "touch",
    "rmtree": "remove",
    "mkdtemp": "private_folder",
    "mkstemp": "private_folder",
    "NamedTemporaryFile": "private_folder",
    "TemporaryDirectory": "private_folder",
    "safe_load": "read_yaml",
    "copytree": "copy",
    "copyfile": "copy",
    "copy2": "copy",
}
FUNCTIONS = {"os.open", "shutil.copy", "pickle.load"}
WRITES = set("wax+")
READS_OF_THE_KERNEL = "/proc"
EXCEPTIONS = {
    "verify/kernel.py": "opens folders for the kernel's Landlock, and reads none",
    "cpu/processes/actors.py": "reads /proc",
    "run/cores.py": "reads the kernel's control groups",
    "verify/outside.py": "asks the kernel whether a path is refused, and reads nothing",
    "rehearsal/standins": "they run in the place of libraries of a GPU, in NeMo-RL's processes",
    "nemo/weights_socket.py": "its functions run in NeMo-RL's processes, which need not have this package",
    "cli/progress.py": "opens /dev/null",
    "verify/worker.py": "opens /dev/null",
    "config/presets.py": "reads a file of the package",
}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """The name of every function or method that is called, and the call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node


def opens_to_write(call: ast.Call) -> bool:
    """Whether a call of `open` has a mode that writes."""
    given = [*call.args[:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [part.value for part in given if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return any(set(mode) <= set("rwxab+t") and WRITES & set(mode) for mode in modes)


def found_in(source: str) -> list[str]:
    """What a module does by itself, as `line: name`."""
    found = []
    for name, call in calls(ast.parse(source)):
        kernel = name.startswith("read_") and READS_OF_THE_KERNEL in ast.unparse(call)
        whole = ast.unparse(call.func)
        drawn = name == "savefig" and f"{ast.unparse(call.args[0])} = io.BytesIO()" not in source
        safe = any(k.arg == "weights_only" and getattr(k.value, "value", False) is True for k in call.keywords)
        if (
            (name in ANYWHERE and isinstance(call.func, ast.Attribute) and not kernel)
            or (name == "open" and opens_to_write(call))
            or (whole == "torch.load" and not safe)
            or (whole.startswith("yaml.") and name in ("load", "load_all"))
            or whole in FUNCTIONS
            or drawn
        ):
            found.append(f"{call.lineno}: {whole}")
    return found


def test_no_other_module_of_the_package_makes_reads_or_deletes_files_by_itself():
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if path not in PLACE and not str(path.relative_to(PACKAGE)).startswith(tuple(EXCEPTIONS))
        if (lines := found_in(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        'path.open("w")', 'open(path, mode="ab")', 'path.write_text("x")', "shutil.rmtree(path)", "tempfile.mkdtemp()",
        "yaml.safe_load(text)", "yaml.load(text, Loader)", "torch.load(path)", "torch.load(path, weights_only=False)",
        "figure.savefig(path)", "path.read_text()", "os.open(path, flags)",
    ],
)  # fmt: skip
def test_each_of_them_is_found(source):
    assert found_in(source)


@pytest.mark.parametrize(
    "source",
    ['path.open("rb")', "torch.load(path, weights_only=True)", "write_atomically(path, text)", "path.unlink()",
     'Path("/proc/1/stat").read_text()', "drawn = io.BytesIO()\nfigure.savefig(drawn)"],
)  # fmt: skip
def test_what_is_allowed_is_not_found(source):
    assert not found_in(source)
