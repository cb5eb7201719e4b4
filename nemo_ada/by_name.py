"""Code of the user's: a function or class that the settings name. This is the one place that finds and loads it.

Rewards, exit rules, objectives, tasks and environments are `module:name`, `package.module:name` or `path/file.py:name`.
Code runs only where this command names it, or a YAML that this command names. It comes from an installed package, from
a file beside that YAML, or from one in the working folder. `find` turns a name into one with the file's whole path, and
says it. Every process loads that path, so no folder gets onto an import path, here or in a child: there a file of any
name would wait for a library that imports this name.

A file is compiled from the bytes of its source, which is opened once. Neither `__pycache__` is looked at, nor `.so`,
nor a folder without `__init__.py`, because each of them can hold other code than the file that a person reads. What
named code imports may stand beside it: the modules of its package, and others of its folder. Nobody else finds these.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from nemo_ada import trust
from nemo_ada.errors import UserError
from nemo_ada.standing import get_users_folder

CHOICES = 8  # names of a module that a message lists
MAX_SOURCE = 16 << 20  # bytes of a file of code
LIBRARIES = (
    str(Path(__file__).parent) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_said: set[str] = set()  # lines of `announce_file`, because a command may load its YAML more than once
_WRITTEN = "package.module:name or path/to/file.py:name, for example my_rewards:exact"


def find(key: str, name: str, folders: Sequence[Path] = ()) -> str:
    """Return a name that every process can load: `/whole/path/file.py:name`, or that of an installed package.

    Nothing of it runs.

    Args:
        key: the setting, for messages.
        name: what the settings say.
        folders: where a module may stand: beside the YAML that names it, and in the working folder. A relative path
            begins there, too.

    Raises:
        UserError: there is no such module or file, or it is another user's and only its module was named.
    """
    place, colon, attribute = name.rpartition(":")
    folders = [*folders] or [get_users_folder()]
    if place.endswith(".py") and attribute.isidentifier():
        files = [Path(os.path.normpath(folder / os.path.expanduser(place))).absolute() for folder in folders]
        there = next((file for file in files if file.is_file()), None)
        if there is None:
            raise UserError(f"{key}={name!r}: there is no file {' or '.join(dict.fromkeys(map(str, files)))}", key=key)
        return f"{there}:{attribute}"
    if not (colon and attribute.isidentifier() and _DOTTED.fullmatch(place)):
        raise UserError(f"{key}={name!r} must be {_WRITTEN}", key=key)
    top = place.partition(".")[0]
    if top in sys.stdlib_module_names:
        raise UserError(
            f"{key}={name!r}: {top} is Python's own, and nothing in it is meant for this; write a module of your own, "
            "for example my_rewards.py beside the YAML, and name my_rewards:NAME",
            key=key,
        )
    installed, own = _find_installed(top)
    if installed:
        return name
    notes = []
    for folder in dict.fromkeys([*([own] if own else []), *map(Path, folders)]):
        file = _find_in_folder(folder, place)
        if file is not None:
            _refuse_strangers(f"{key}={name!r}", file, attribute, folder)
            return f"{file.absolute()}:{attribute}"
        if (folder / top).is_dir() and not (folder / top / "__init__.py").is_file():
            notes.append(f"{folder / top} has no __init__.py, so it is no package; add one, or name its file")
    if _is_namespace(top):
        return name
    looked = " and ".join(dict.fromkeys(map(str, folders)))
    raise UserError(
        f"{key}={name!r}: there is no module {place}, neither installed nor in {looked}"
        f"{''.join(f'; {note}' for note in notes)}; put the file beside the YAML, or name it as path/to/file.py:name",
        key=key,
    )


def announce_file(key: str, name: str, found: str, who: str) -> None:
    """Say once, in one line, which file the name of some code means. `found` is what `find` returned for it."""
    line = f"{who} names code: {key}={name} is in {file_of(found) or 'an installed package'}\n"
    if line not in _said:
        _said.add(line)
        sys.stderr.write(line)


def file_of(name: str) -> Path | None:
    """Return the file of code that `find` has named. None for one that has none. An installed one is not imported."""
    place = name.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place)
    top, *parts = place.split(".")
    try:
        found = _find_spec(top)
        for part in parts:
            places = list(found.submodule_search_locations or ()) if found is not None else []
            found = PathFinder.find_spec(f"{found.name}.{part}", places) if found is not None else None
    except (ImportError, ValueError, AttributeError):
        return None
    file = Path(found.origin or os.devnull) if found is not None else None
    return file if file is not None and file.is_file() else None


def load(key: str, name: str) -> Callable[..., Any]:
    """Import what the settings name.

    Args:
        key: The setting, for messages.
        name: What `find` returns. Another name is looked up in the working folder, too.

    Raises:
        UserError: There is no such module or name, or importing it ended with an error, whose file and line are named.
    """
    place, _, attribute = find(key, name).rpartition(":")
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except UserError:
        raise
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - the user's module may raise anything
        raise UserError(
            f"{key}={name!r}: importing {place} ended with {type(problem).__name__}: {problem} "
            f"({locate_error(problem)}); what it imports must be installed, or stand beside it",
            key=key,
        ) from None
    found = getattr(module, attribute, None)
    if callable(found):
        return cast(Callable[..., Any], found)
    names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    what = "has no such name" if found is None else f"has a {type(found).__name__} of that name, not a function"
    raise UserError(
        f"{key}={name!r}: {module.__file__} {what}; it has {', '.join(names[:CHOICES]) or 'no function'}", key=key
    )


def list_modules() -> list[ModuleType]:
    """Return the modules that were loaded from files of the user's, for a library that sends them to its workers."""
    return [module for module in list(sys.modules.values()) if _get_loader(module) is not None]


def make_object(key: str, name: str, *arguments: Any, **named: Any) -> Any:
    """Call what `load` finds. Raises UserError with the user's file and line where the call fails."""
    maker = load(key, name)
    return _call(f"{key}={name!r}: calling it", lambda: maker(*arguments, **named))


def check_part(key: str, name: str, call: Callable[[], Any], kind: type, length: int | None = None) -> Any:
    """Try a part of the user's class.

    Args:
        key: The setting, for messages.
        name: The class, for messages.
        call: Calls the part.
        kind: bool, int or float.
        length: Number of values that an array must have. None for a number.

    Raises:
        UserError: The call failed, or gave something else.
    """
    import numpy as np  # a command that ends early starts without it

    value = _call(f"{key}={name!r}: trying it", call)
    wanted = f"an array of {length} of {kind.__name__}" if length is not None else f"a {kind.__name__}"
    array = np.asarray(value)
    fits = array.shape == (() if length is None else (length,)) and np.can_cast(array.dtype, kind, "same_kind")
    if not fits or (kind is bool and array.dtype != np.bool_):
        raise UserError(f"{key}={name!r}: a method gave {str(value)[:60]!r} in place of {wanted} (see recipes/extend)")
    return value


def _call(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - the user's code may raise anything
        raise UserError(f"{what} ended with {type(problem).__name__}: {problem} ({locate_error(problem)})") from None


def locate_error(problem: BaseException, without: str = __file__) -> str:
    """Return file and line of the user's last frame of an error: in no library and not in the file `without`."""
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename != without]
    own = [frame for frame in frames if not frame.filename.startswith(("<frozen", *LIBRARIES))] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "?"


def _find_in_folder(folder: Path, place: str) -> Path | None:
    """Return the source of a dotted module below a folder. Each package in it has an `__init__.py`."""
    *packages, last = place.split(".")
    for package in packages:
        folder = folder / package
        if not (folder / "__init__.py").is_file():
            return None
    return next((f for f in (folder / last / "__init__.py", folder / f"{last}.py") if f.is_file()), None)


def _refuse_strangers(what: str, file: Path, attribute: str, folder: Path) -> None:
    """Refuse code of another user that only the name of its module has led to, as in a shared working folder."""
    works = f"name it by its path, {file.absolute()}:{attribute}, if you trust who can write it"
    try:
        for part in {file, *_list_packages(file, folder)}:
            trust.open_found(part, works).close()
    except UserError as problem:
        raise UserError(f"{what}: {problem}") from None


def _list_packages(file: Path, folder: Path) -> Iterator[Path]:
    inside = file.parent
    while inside != folder and inside != inside.parent:
        yield inside / "__init__.py"
        inside = inside.parent


def _find_spec(top: str) -> ModuleSpec | None:
    """Return what Python's own finders say of a module. None where there is none."""
    for finder in sys.meta_path:
        if isinstance(finder, _Named | _Beside) or not hasattr(finder, "find_spec"):
            continue
        try:
            found = finder.find_spec(top, None)
        except (ImportError, ValueError):
            continue
        if found is not None:
            return found
    return None


def _find_installed(top: str) -> tuple[bool, Path | None]:
    """Return whether every Python of this environment finds a module, and else the folder where this process does.

    A script's own folder, and what a program has added to its path, are no part of the environment.
    """
    found = _find_spec(top)
    if found is None or found.origin is None:  # a folder without __init__.py has no origin
        return False, None
    if found.origin in ("built-in", "frozen") or os.path.abspath(found.origin).startswith(LIBRARIES):
        return True, None
    own = Path(found.origin).absolute().parent
    own = own.parent if found.submodule_search_locations else own
    # What is on no import path came from a finder of its own, such as that of an installation with --editable.
    entries = {os.path.abspath(entry or os.getcwd()) for entry in sys.path}
    return str(own) not in entries or str(own) in _list_folders(), own


def _is_namespace(top: str) -> bool:
    """Return whether a folder without `__init__.py` is on the import path of this process itself."""
    found = _find_spec(top)
    return found is not None and found.origin is None and bool(found.submodule_search_locations)


def _list_folders() -> set[str]:
    """Return the folders where every Python of this environment looks: its own, those of `.pth`, and PYTHONPATH."""
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {*map(os.path.abspath, given), *_list_site_folders()}


@lru_cache(maxsize=1)
def _list_site_folders() -> frozenset[str]:
    folders = {*site.getsitepackages(), site.getusersitepackages(), *(sysconfig.get_paths().values())}
    for folder in list(folders):
        for file in Path(folder).glob("*.pth"):
            with open(file, errors="replace") as text:
                lines = text.read().splitlines()
            folders |= {os.path.abspath(os.path.join(folder, line)) for line in lines if line and line[0] not in "#\0"}
    return frozenset(os.path.abspath(folder) for folder in folders)


class _Source(SourceLoader):
    """Loads one file of the user's from the bytes of its source. SourceLoader asks for no cache: it has no times."""

    def __init__(self, file: Path, folder: Path, owner: int) -> None:
        self.file, self.folder, self.owner = file, folder, owner
        self._source = _read_source(file, owner)

    def get_filename(self, fullname: str) -> str:
        """Return the file."""
        return str(self.file)

    def get_data(self, path: bytes | str) -> bytes:
        """Return the bytes that were read when the file was opened."""
        return self._source


class _Named(MetaPathFinder):
    """Finds modules that were named, and the parts of their packages. It is asked first: nothing else may answer."""

    def __init__(self) -> None:
        self.served: dict[str, tuple[Path, Path, int]] = {}  # module -> file, folder that it stands in, owner

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Return where the module is. None for one that is not of the user's named code."""
        parent, _, name = fullname.rpartition(".")
        if not parent:
            return _make_spec(fullname, *self.served[fullname]) if fullname in self.served else None
        above = _get_loader(sys.modules.get(parent))
        if above is None:
            return None
        file = _find_in_folder(above.file.parent, name) if above.file.name == "__init__.py" else None
        if file is None:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return _make_spec(fullname, file, above.folder, above.owner)


class _Beside(MetaPathFinder):
    """Finds modules beside named code, for this code alone. It is asked last: installed packages come first."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Return where the module is. None where something else than named code imports it."""
        frame = sys._getframe(1)
        while frame is not None and _is_import(frame.f_code.co_filename):
            frame = frame.f_back  # type: ignore[assignment]
        asks = None if frame is None else getattr(frame.f_globals.get("__spec__"), "loader", None)
        if "." in fullname or not isinstance(asks, _Source):
            return None
        file = _find_in_folder(asks.folder, fullname)
        return None if file is None else _make_spec(fullname, file, asks.folder, asks.owner)


def _is_import(filename: str) -> bool:
    return filename.startswith("<frozen importlib") or filename == importlib.__file__


NAMED = _Named()


def _import_file(file: Path) -> ModuleType:
    """Import a file of the user's. Its module has the name that the folders with `__init__.py` above it give."""
    folder, parts = file.parent, [] if file.name == "__init__.py" else [file.stem]
    while (folder / "__init__.py").is_file():
        parts, folder = [folder.name, *parts], folder.parent
    top, name = parts[0], ".".join(parts)
    # The file that Python would import first for this name: that of the outermost package, or the file itself.
    begin = folder / top / "__init__.py" if len(parts) > 1 or file.name == "__init__.py" else file
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    before = _get_loader(sys.modules.get(top))
    if before is not None and before.folder != folder:  # another folder's code of the same name, as in a notebook
        for other in list_modules():
            if cast(_Source, _get_loader(other)).folder == before.folder:
                del sys.modules[other.__name__]
    elif before is None and (_is_taken(top, begin) or not all(part.isidentifier() for part in parts)):
        if begin != file:
            raise UserError(f"{file}: another package has the name {top}; rename the folder {folder / top}")
        # Such as math.py or my-rewards.py: the module gets another name, which no import statement can mean.
        top = name = f"{re.sub(r'[^0-9A-Za-z_]', '_', top)}_{hashlib.sha256(os.fsencode(file)).hexdigest()[:8]}"
        if name in sys.modules:
            return sys.modules[name]
    if not any(isinstance(finder, _Named) for finder in sys.meta_path):
        sys.meta_path.insert(0, NAMED)
        sys.meta_path.append(_Beside())
    NAMED.served[top] = begin, folder, file.stat().st_uid
    return importlib.import_module(name)


def _is_taken(top: str, begin: Path) -> bool:
    """Return whether the name of a module already means another one, such as a library that may be imported later."""
    found = sys.modules[top].__spec__ if top in sys.modules else _find_spec(top)
    return top in sys.stdlib_module_names or (found is not None and found.origin not in (None, str(begin)))


def _make_spec(name: str, file: Path, folder: Path, owner: int) -> ModuleSpec | None:
    parts = [str(file.parent)] if file.name == "__init__.py" else None
    loader = _Source(file, folder, owner)
    return spec_from_file_location(name, str(file), loader=loader, submodule_search_locations=parts)


def _get_loader(module: ModuleType | None) -> _Source | None:
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return loader if isinstance(loader, _Source) else None


def _read_source(file: Path, owner: int) -> bytes:
    """Read a source once. Raises ImportError for one of somebody else than the named code's owner, or for no file."""
    try:
        return trust.read_beside(file, owner, MAX_SOURCE)
    except UserError as problem:
        raise ImportError(str(problem)) from None
