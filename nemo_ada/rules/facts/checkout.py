"""A checkout of NeMo-RL read as source: what a name is, what a function takes and returns, which keys a config has."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run.files import text_of
from nemo_ada.run.start import NO_PROGRAMS, run

PACKAGE = "nemo_rl"
NAMES = {PACKAGE: "NeMo-RL"}
MAX_HOPS = 8  # re-exports and base classes that are followed for one name
NO_VALUE = "nothing"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef | ast.expr


@dataclass(frozen=True, slots=True)
class Found:
    """Where a dotted name is defined.

    Attributes:
        module: dotted name of the module that defines it.
        node: its syntax tree; None for a module.
    """

    module: str
    node: Definition | None


def belongs_to_nemo_rl(path: Path, home: Path) -> bool:
    """Return whether a YAML in a checkout is NeMo-RL's own, and not one that a user put there.

    git says which files it tracks. Where git does not answer, every file counts that has no section `reinforce_ada`.
    """
    tracked = _list_tracked(home.resolve())
    if tracked is not None:
        return path.resolve() in tracked
    try:
        return "\nreinforce_ada:" not in "\n" + text_of(path)
    except (OSError, ValueError):
        return False


@functools.cache
def _list_tracked(home: Path) -> frozenset[Path] | None:
    """Return the files that git tracks below a checkout. None where the folder is no checkout of git, or git fails."""
    if not (home / ".git").exists():
        return None
    # A shared checkout may belong to another user, and git refuses those unless it is told not to.
    command = ["git", *NO_PROGRAMS, "-c", "safe.directory=*", "-C", str(home), "ls-files", "-z"]
    try:
        done = run(command, capture_output=True, text=True)
    except OSError:
        return None
    return frozenset(home / name for name in done.stdout.split("\0")) if done.returncode == 0 else None


class Checkout:
    """The source of one checkout.

    Args:
        root: the folder that holds the package's folder.
        package: the package, which is NeMo-RL's unless another one is named.

    Raises:
        UserError: the folder does not hold it.
    """

    def __init__(self, root: Path, package: str = PACKAGE) -> None:
        if not (root / package).is_dir():
            raise UserError(f"{root} holds no folder {package}; name a checkout of {NAMES.get(package, package)}")
        self.root = root

    def find_file(self, module: str) -> Path | None:
        """Return the file of a module; None where there is none."""
        relative = Path(*module.split("."))
        for path in (self.root / relative.with_suffix(".py"), self.root / relative / "__init__.py"):
            if path.is_file():
                return path
        return None

    @functools.cache  # noqa: B019 - a checkout lives as long as the command
    def parse(self, module: str) -> ast.Module | None:
        """Return the syntax tree of a module; None where the module does not exist.

        Raises:
            UserError: the file is not Python.
        """
        path = self.find_file(module)
        if path is None:
            return None
        try:
            return ast.parse(text_of(path))
        except (SyntaxError, ValueError) as error:
            raise UserError(f"{path} is not Python ({error}); restore it, such as with `git checkout`") from None

    def find(self, dotted: str) -> Found | None:
        """Return the definition of a dotted name, such as `nemo_rl.utils.logger.Logger.log_metrics`.

        Re-exports are followed to the module that defines the name, and methods and attributes to the base classes.
        None where the name does not exist, or where it comes from another library.
        """
        parts = dotted.split(".")
        for count in range(len(parts), 0, -1):
            module = ".".join(parts[:count])
            if self.find_file(module) is not None:
                return self._find_inside(module, parts[count:], MAX_HOPS)
        return None

    def _find_inside(self, module: str, names: list[str], hops: int) -> Found | None:
        tree = self.parse(module)
        if tree is None or hops == 0:
            return None
        if not names:
            return Found(module, None)
        first, *rest = names
        for node in _walk_statements(tree.body):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == first:
                        origin = self._make_absolute(module, node)
                        if self.find_file(f"{origin}.{alias.name}") is not None:
                            return self._find_inside(f"{origin}.{alias.name}", rest, hops - 1)
                        return self._find_inside(origin, [alias.name, *rest], hops - 1)
            definition = _get_definition(node, first)
            if definition is not None:
                return self._find_member(module, definition, rest, hops)
        return None

    def _find_member(self, module: str, definition: Definition, names: list[str], hops: int) -> Found | None:
        if not names:
            return Found(module, definition)
        if not isinstance(definition, ast.ClassDef):
            return None
        for node in _walk_statements(definition.body):
            member = _get_definition(node, names[0])
            if member is not None:
                return self._find_member(module, member, names[1:], hops)
        if names[0] in list_made(definition):  # by a method, as in `self.running = True`
            return Found(module, ast.Name(names[0]))
        for base in definition.bases:
            found = self._find_inside(module, [*ast.unparse(base).split("[")[0].split("."), *names], hops - 1)
            if found is not None:
                return found
        return None

    def _make_absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        path = self.find_file(module)
        own = module if path is not None and path.name == "__init__.py" else module.rpartition(".")[0]
        base = own.split(".")[: len(own.split(".")) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    def list_keys(self, dotted: str, prefix: str = "", *, seen: frozenset[str] = frozenset()) -> dict[str, str]:
        """Return the keys of a configuration class and of classes that its fields name, but not in lists or mappings.

        Args:
            dotted: the class, such as `nemo_rl.algorithms.grpo.MasterConfig`.
            prefix: section that the class describes, with a dot at its end.
            seen: classes on the way here.

        Returns:
            Dotted key -> type, and the default where the class has one.
        """
        found = self.find(dotted)
        if found is None or not isinstance(found.node, ast.ClassDef) or dotted in seen:
            return {}
        result: dict[str, str] = {}
        for base in found.node.bases:
            result |= self.list_keys(f"{found.module}.{ast.unparse(base)}", prefix, seen=seen | {dotted})
        for node in found.node.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            key = prefix + node.target.id
            kind = " ".join(ast.unparse(node.annotation).split())
            default = f" = {ast.unparse(node.value)}" if isinstance(node.value, ast.Constant) else ""
            result[key] = kind + default
            for name in _find_class_names(node.annotation):
                result |= self.list_keys(f"{found.module}.{name}", f"{key}.", seen=seen | {dotted})
        return result

    def list_texts(self, dotted: str, of: str = "") -> set[str]:
        """Return the texts that a mapping has as keys, an enumeration as values, or a function compares something with.

        Empty where the name is none of these.

        Args:
            dotted: the mapping, class or function.
            of: in a function only comparisons of this name or attribute count. In a class it is a field, whose type is
                a Literal of the texts. Without it everything counts.
        """
        found = self.find(dotted)
        node = None if found is None else found.node
        texts: list[ast.expr | None] = []
        if isinstance(node, ast.ClassDef):
            literals = [line.annotation for line in node.body if isinstance(line, ast.AnnAssign)
                        and isinstance(line.target, ast.Name) and line.target.id == of]  # fmt: skip
            texts = [one for part in literals for one in ast.walk(part) if isinstance(one, ast.Constant)]
            texts += [line.value for line in node.body if isinstance(line, ast.Assign)] if not of else []
        elif isinstance(node, ast.expr):
            texts = next((list(one.keys) for one in ast.walk(node) if isinstance(one, ast.Dict)), [])
            texts += _find_added_keys(self.parse(found.module) if found else None, dotted.rpartition(".")[2])
        elif node is not None:
            compared = [one for one in ast.walk(node) if isinstance(one, ast.Compare)]
            sides = [one.comparators for one in compared if not of or ast.unparse(one.left).split(".")[-1] == of]
            texts = [text for side in sides for one in side for text in getattr(one, "elts", [one])]
        return {one.value for one in texts if isinstance(one, ast.Constant) and isinstance(one.value, str)}

    def list_metrics(self, module: str, functions: tuple[str, ...]) -> set[str]:
        """Return the keys of mappings named metrics in some functions of a module. One that does not exist has none."""
        trees = [found.node for name in functions if (found := self.find(f"{module}.{name}")) and found.node]
        return {text for tree in trees for text in _find_metric_names(tree)}


def list_parameters(function: Function) -> tuple[str, ...]:
    """Return the parameters in order. `*` marks those that are given by name only; `=` marks those with a default."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without = len(positional) - len(arguments.defaults)
    names = [argument.arg + ("=" if index >= without else "") for index, argument in enumerate(positional)]
    if arguments.vararg:
        names.append("*" + arguments.vararg.arg)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        names.append(f"*, {argument.arg}" + ("=" if default is not None else ""))
    if arguments.kwarg:
        names.append("**" + arguments.kwarg.arg)
    return tuple(names)


def describe_return(function: Function) -> str:
    """Return what a function hands back, such as `2 values`, `1 or 3 values`, `nothing` or `a generator`.

    A returned name counts as several values where it is assigned one tuple and nothing else. What another call returns
    is counted by the declared type.
    """
    nodes = list(_walk_own(function))
    kind = "a coroutine of " if isinstance(function, ast.AsyncFunctionDef) else ""
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes):
        return "an asynchronous generator" if kind else "a generator"
    declared = _count_declared(function.returns)
    counts = sorted(
        {_count_values(node.value, nodes, declared) for node in nodes if isinstance(node, ast.Return)} - {0}
    )
    if not counts:
        return kind + NO_VALUE
    return kind + " or ".join(map(str, counts)) + (" value" if counts == [1] else " values")


def _count_declared(annotation: ast.expr | None) -> int:
    """Return the number of values that a declared type stands for."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in ("tuple", "Tuple", "typing.Tuple"):
        inner = annotation.slice
        if isinstance(inner, ast.Tuple) and not any(isinstance(x, ast.Constant) and x.value is ... for x in inner.elts):
            return len(inner.elts)
    return 1


def _count_values(value: ast.expr | None, nodes: list[ast.AST], declared: int) -> int:
    if value is None or (isinstance(value, ast.Constant) and value.value is None):
        return 0
    if isinstance(value, ast.Tuple):
        return len(value.elts)
    if isinstance(value, ast.Name):
        assigned = [
            node.value for node in nodes
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == value.id for t in node.targets)
        ]  # fmt: skip
        if len(assigned) == 1 and isinstance(assigned[0], ast.Tuple):
            return len(assigned[0].elts)
    return declared if isinstance(value, ast.Call | ast.Await | ast.Name) else 1


def _walk_own(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions and classes inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            yield from _walk_own(node)


def _walk_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements at the top level, also inside `if`, `try` and `with`."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            handlers = [line for handler in getattr(node, "handlers", []) for line in handler.body]
            yield from _walk_statements([*node.body, *getattr(node, "orelse", []), *handlers])
        else:
            yield node


def _get_definition(node: ast.stmt, name: str) -> Definition | None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node if node.name == name else None
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        if isinstance(target, ast.Name) and target.id == name:
            value = getattr(node, "value", None)
            return value if value is not None else target
    return None


def list_made(body: ast.ClassDef) -> set[str]:
    """Return the attributes that a class makes: methods, what its body names, and what a method assigns to `self`.

    What is assigned only from itself, as in `self.lock = Counted(self.lock)`, was there before.
    """
    made = set()
    for node in ast.walk(body):
        value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.For | ast.With):
            made |= _list_self_attributes(_walk_targets(node), ast.Store) - _list_self_attributes(
                [] if value is None else ast.walk(value), ast.Load
            )
    for node in body.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            made |= {one.id for one in _walk_targets(node) if isinstance(one, ast.Name)}
    return made


def _walk_targets(node: Any) -> Iterator[Any]:
    """What a statement assigns to, without the parts that it only reads."""
    targets = getattr(node, "targets", None) or [
        *filter(None, [getattr(node, "target", None)]),
        *(item.optional_vars for item in getattr(node, "items", []) if item.optional_vars is not None),
    ]
    for target in targets:
        yield from ast.walk(target)


def _list_self_attributes(nodes: Iterable[ast.AST], use: type) -> set[str]:
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, use)
            and ast.unparse(node.value) == "self"}  # fmt: skip


def _find_added_keys(tree: ast.Module | None, name: str) -> Iterator[ast.expr | None]:
    """Keys that a module adds to its mapping by `update`."""
    for node in tree.body if tree is not None else ():
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == f"{name}.update":
            yield from (key for given in call.args if isinstance(given, ast.Dict) for key in given.keys)


def _find_class_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).lower() in ("list", "dict"):
        return
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from _find_class_names(child)


def _find_metric_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        keys: list[ast.expr | None] = []
        if isinstance(node, ast.Subscript) and "metrics" in ast.unparse(node.value):
            keys = [node.slice]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            if any("metrics" in ast.unparse(target) for target in node.targets):
                keys = list(node.value.keys)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("metrics.update"):
            keys = [key for given in node.args if isinstance(given, ast.Dict) for key in given.keys]
        yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
