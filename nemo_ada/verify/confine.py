"""Confine a worker process: it may compute, read code, and answer on its pipe.

Answers are model output, and the scorer is a large parser. An answer that manages to run code there must not reach a
network, write a file, start a process or read a secret. There are these layers, and none needs root:

* Landlock: the kernel lets the process read below Python's own folders, and nothing else (`kernel.allow_only_reading`).
* seccomp: the kernel refuses all system calls but those that compute, wait and read (`kernel.allow_only_computing`).
  Where Landlock is missing, it refuses to open any file, so that modules are imported before (`import_ahead`).
* No capability of root.
* The kernel's limits (`limits_of`): memory, no core dump, no growing file, few descriptors, no new process or thread
  (root is exempt from the last one).
* An environment without secrets, and a trainer that reads JSON from a worker, never a foreign object (see `process`).

`confine` says which layers hold. `MathVerifier` logs it. SECURITY.md describes what is left without a layer.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from nemo_ada.verify import kernel
from nemo_ada.verify.outside import Needs

DESCRIPTORS, NONE = 64, Needs()
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo")
_NAMES_AND_KEYS = (  # what a program of the network reads: names of hosts, and certificates
    "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services",
    "/etc/protocols", "/etc/ssl", "/etc/pki", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates",
    "/run/systemd/resolve",
)  # fmt: skip
_LATER = (
    "codegen.ast", "concrete.delta", "concrete.guess", "integrals.heurisch", "integrals.manualintegrate",
    "integrals.prde", "integrals.quadrature", "integrals.risch", "logic.algorithms.dpll2",
    "matrices.expressions.applyfunc", "matrices.expressions.factorizations", "polys.dispersion",
    "polys.domains.quotientring", "polys.modulargcd", "series.acceleration", "series.aseries", "sets.handlers.add",
    "sets.handlers.functions", "sets.handlers.issubset", "sets.handlers.mul", "sets.handlers.power", "sets.setexpr",
)  # fmt: skip


class Layers(NamedTuple):
    """How workers are confined.

    Attributes:
        held: names of the layers that are active.
        missing: the other layers, each with the reason.
    """

    held: tuple[str, ...]
    missing: Mapping[str, str]


def limits_of(memory_bytes: int, needs: Needs = NONE) -> dict[int, int]:
    """Return the kernel's soft and hard limits of a worker, by resource."""
    limits = {resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_CORE: 0}
    if not needs.processes:
        limits |= {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: DESCRIPTORS}
    if not (needs.processes or needs.network):
        limits |= {resource.RLIMIT_NPROC: 0}
    return limits


def confine(memory_bytes: int, without: frozenset[str] = frozenset(), needs: Needs = NONE) -> Layers:
    """Confine this process, and say which layers hold. This cannot be undone.

    without: layers to leave out, by name. Only tests use it, to see what the others hold alone.
    needs: what a user's reward declares that it must be allowed.
    """
    sys.dont_write_bytecode = True
    declared = {"Landlock", "seccomp"} if needs.processes else set()
    for kind, value in limits_of(memory_bytes, needs).items():
        _, hard = resource.getrlimit(kind)  # of the site, which may be lower
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))
    libraries = (*_LIBRARIES, *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    readable = (*find_code_folders(), *libraries, *needs.files, *(_NAMES_AND_KEYS if needs.network else ()))
    held, missing = ["limits"], {}
    layers: dict[str, Callable[[], None]] = {  # a later one refuses the calls that an earlier one needs
        "no new privileges": kernel.forbid_new_privileges,
        "no capabilities": kernel.drop_capabilities,
        "Landlock": lambda: kernel.allow_only_reading(readable, needs.network),
        "seccomp": lambda: kernel.allow_only_computing("Landlock" in held, needs.network),
    }
    for name, apply in layers.items():
        try:
            if name in without:
                raise kernel.Missing("left out")
            if name in declared:
                raise kernel.Missing("the reward declares that it needs processes")
            apply()
            held.append(name)
        except kernel.Missing as reason:
            missing[name] = str(reason)
    return Layers(tuple(held), missing)


def import_ahead() -> None:
    """Import what sympy imports only when an answer needs it. Without Landlock a worker cannot do so later."""
    if "sympy" in sys.modules:
        for name in _LATER:
            with suppress(ImportError):
                importlib.import_module(f"sympy.{name}")


def find_code_folders() -> tuple[str, ...]:
    """Where code of this process comes from: Python's folders, and every loaded package or module outside of them.

    Not the import path itself: a folder there may hold more than code, such as slurm/site.env beside this package.
    """
    packages = [path for path in sys.path if "site-packages" in path or "dist-packages" in path]
    folders = {
        _resolve_folder(path) for path in (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__))
    }
    folders |= {_resolve_folder(path) for path in packages}
    for name, module in list(sys.modules.items()):
        if "." not in name:  # a package has folders, a module has a file
            folders |= {
                _resolve_folder(path)
                for path in getattr(module, "__path__", [getattr(module, "__file__", None)])
                if path
            }
    return tuple(sorted(folder for folder in folders if not folder.startswith(tuple(folders - {folder}))))


def _resolve_folder(folder: str) -> str:
    return os.path.join(os.path.realpath(folder), "")
