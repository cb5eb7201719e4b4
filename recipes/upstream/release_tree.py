"""Make a tree of NeMo-RL that is as near to v0.8.0 as public trees go: main of 22 August 2026 and its pull requests.

    python recipes/upstream/release_tree.py SOURCE OUT             # main with every pull request that merges cleanly
    python recipes/upstream/release_tree.py SOURCE OUT --alone N   # one pull request on the main that it was opened on

SOURCE is a clone of NeMo-RL or its address, and stays as it is. OUT is a new folder. The script says of each pull
request whether it is in the tree. The same SOURCE makes the same commit again, whoever makes it.

v0.8.0's own tree is not at hand. Its release notes and the threads of the pull requests say which were merged before it
(looked up on 28 November 2026). A pull request that was rebased before its merge is here as it was on 22 August.

Exit codes: 0 the tree is there, 2 user error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BASE = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
"""main of 22 August 2026."""
PACKAGE = "nemo_rl/"
EXIT_USER_ERROR = 2
NOBODY: Mapping[str, str] = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "release_tree"), ("EMAIL", "none"), ("DATE", "2026-08-22T00:00:00Z"))
}


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request that was merged before v0.8.0.

    Attributes:
        number: its number.
        head: its newest commit that is at hand.
        merged: the commit in which GitHub had tried to merge it.
        what: what it changes of what nemo_ada touches.
    """

    number: int
    head: str
    merged: str
    what: str


PULL_REQUESTS = (  # in this order: each may keep later ones out, so the first are those that nemo_ada needs most
    PullRequest(3766, "bf663944a29e3ebf83b248422006e07c276b2860", "69314b2c65b73264f2c816b9a4a6a0c17f55837b",
                "the single controller masks rows: what the plug-in needs"),
    PullRequest(3655, "ce32d4208673843b716b3c87803175c6067a103e", "1439b03b49467f7bd66cfc88238ec63e301cfe4a",
                "telemetry, which a driver starts and ends"),
    PullRequest(3701, "8774f1d3ddf62fe60f39853d485486c80b3c0576", "dcab934081af021aef1458cfe4781fb17533a960",
                "the section policy.draft has types"),
    PullRequest(3616, "7b6b3edf2cc1be2a9d0e491c3775b830b60ea14f", "edefb8c6cd831953e477afcbc9e948d8ec86776f",
                "times and bytes of the data plane"),
    PullRequest(3768, "7e7d72130a112fe336978c03ae38e28773feb546", "1508eda7b7f0b1f66235bea438393a26aecf5212",
                "teachers in the single controller"),
    PullRequest(3739, "38db5f890071004cbf5a75a4682593a3bd346a66", "47ec444c2bda1f505295488764cd07b285c89a3c",
                "refit of Megatron's own engine"),
    PullRequest(3703, "895e0c2123164119678c76e5b8ea217f025f5de6", "b2d52ca2390e272300dbf5d8f2cb5b2d9d5c81ab",
                "loss of draft models"),
    PullRequest(3753, "45abcca18e94027766862919f6082d169a25bf02", "3f9ea80bf0dafe556040c23a44082169a6b26f3a",
                "the metric of sequence-level importance ratios"),
    PullRequest(3748, "c58d44a9aac4c09830382404e683e870e16e8954", "dd308c883d50a039314e59abb78ad2b2f2f604df",
                "histograms of a step"),
    PullRequest(3706, "dc14d9015899455910a1908d48ed4c90365de0e0", "b183957ce23010cc808cd53246dc1a8d738aa981",
                "loss of draft models over microbatches"),
    PullRequest(3592, "64ca6737e569621430035acd6d444290ade9c08c", "a17226b038df9130da7e6e298971f3b2ebab7d44",
                "engines that were lost start again"),
    PullRequest(3734, "53094ea7d6a1ac79c6433ee521c18fcc7edc0123", "305b8358c9d682d50e08888eb252cd4e3c21771b",
                "penalties of messages in the single controller"),
    PullRequest(3480, "608e9bde376d23604b7c6472e1e1e19a43bf8345", "8afc4c1fd3d33a8b371b2136bfb640d25e9aa399",
                "checkpoints of the data plane itself"),
    PullRequest(2957, "d2657506545b0ab906aeed1269cc3760e475297f", "e9fd0b0ed860a91885e2890de41f7da5e4ce054d",
                "images over the data plane"),
    PullRequest(3372, "7d72bd369c5be7adf6cd2bddbd45ab1da8fba244", "8d2c5facc4e669511e38653e71c41f2db8234064",
                "NeMo-Gym is a set of actors"),
    PullRequest(3599, "ee5741a13ea49c923b2659b5963858547d1d7ea6", "25b33ff47e7e3db81a72750922873404685252d1",
                "the older asynchronous loop loses no prompt at a resume"),
    PullRequest(3741, "bd60fb71fc80174907211ec9a6f4e26972759748", "4c9dc46b00a26916a1e41ce1188f2ec4523d60e8",
                "penalties of rewards in the single controller"),
    PullRequest(3498, "b5ed69c86058b3ba5a4622f8fd310a1281df996f", "8c4dcb4799758b764e96dc01a5c2116e259fd588",
                "Automodel 0.6.0"),
)  # fmt: skip


class TreeError(Exception):
    """What a user can mend."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a pull request.

    Attributes:
        request: the pull request.
        state: `merged`, or `left out`.
        why: files that conflict, or that were joined line by line because no process imports them.
    """

    request: PullRequest
    state: str
    why: str = ""


class Clone:
    """A clone of our own, whose objects may be those of the source."""

    def __init__(self, source: str, folder: Path) -> None:
        """Clone `source` into `folder`, which must not exist or be empty. Raises TreeError."""
        if folder.exists() and any(folder.iterdir()):
            raise TreeError(f"{folder} is not empty; name a new folder, or remove this one")
        self.folder = folder
        shared = ["--shared"] if Path(source).expanduser().is_dir() else []
        place = str(Path(source).expanduser()) if shared else source
        self._run("clone", "--quiet", "--no-checkout", "--no-tags", *shared, place, str(folder), within=False)

    def git(self, *words: str, ok: Sequence[int] = (0,), index: Path | None = None) -> str:
        """Run git in the clone, with another index if one is named. Raises TreeError with git's own words."""
        return self._run(*words, ok=ok, index=index).stdout

    def _run(
        self, *words: str, ok: Sequence[int] = (0,), within: bool = True, index: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **NOBODY, "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        place = ["-C", str(self.folder)] if within else []
        done = subprocess.run(["git", *place, *words], env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in ok:
            raise TreeError(f"git {words[0]}: {done.stderr.strip()[-600:]}")
        return done

    def bring(self, commit: str) -> None:
        """Fetch a commit that the clone does not have. Raises TreeError."""
        if not self.git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", ok=(0, 1, 128)).strip():
            self.git("fetch", "--quiet", "--no-tags", "origin", commit)

    def merge(self, onto: str, request: PullRequest) -> tuple[str, Outcome]:
        """Merge a pull request.

        Returns:
            The new commit, which is the old one where files of the package conflict, and the outcome.
        """
        try:
            self.bring(request.head)
            done = self._run("merge-tree", "--write-tree", "-z", onto, request.head, ok=(0, 1))
        except TreeError as error:
            return onto, Outcome(request, "left out", str(error).splitlines()[0])
        tree, *rest = done.stdout.split("\0")
        stages: dict[str, dict[str, tuple[str, str]]] = {}
        for line in rest[: rest.index("")] if done.returncode else ():
            mode, blob, stage, path = [*line.split("\t")[0].split(" "), line.split("\t")[1]]
            stages.setdefault(path, {})[stage] = (mode, blob)
        package = [path for path in stages if path.startswith(PACKAGE)]
        if package or any(len(sides) < 3 for sides in stages.values()):
            return onto, Outcome(request, "left out", "conflicts in " + ", ".join(package or stages))
        if stages:
            tree = self._joined(tree, stages)
        message = f"Pull request {request.number}: {request.what}"
        commit = self.git("commit-tree", tree, "-p", onto, "-p", request.head, "-m", message).strip()
        return commit, Outcome(request, "merged", f"both sides' lines in {', '.join(stages)}" if stages else "")

    def _joined(self, tree: str, stages: Mapping[str, Mapping[str, tuple[str, str]]]) -> str:
        """Return the tree with both sides' lines in these files."""
        with tempfile.TemporaryDirectory() as folder:
            index = Path(folder) / "index"
            self.git("read-tree", tree, index=index)
            for path, sides in stages.items():
                names = {}
                for stage, (_, blob) in sides.items():
                    names[stage] = Path(folder) / stage
                    names[stage].write_text(self.git("cat-file", "blob", blob), encoding="utf-8")
                union = ("merge-file", "--union", str(names["2"]), str(names["1"]), str(names["3"]))
                self.git(*union)
                blob = self.git("hash-object", "-w", str(names["2"])).strip()
                self.git("update-index", "--cacheinfo", f"{sides['2'][0]},{blob},{path}", index=index)
            return self.git("write-tree", "--missing-ok", index=index).strip()

    def check_out(self, commit: str) -> list[str]:
        """Write the commit's files. Returns those that the source lacks (pictures, in some copies)."""
        self.git("update-ref", "--no-deref", "HEAD", commit)
        self.git("read-tree", commit)
        blobs: dict[str, list[str]] = {}
        for line in self.git("ls-files", "--stage", "-z").split("\0")[:-1]:
            about, path = line.split("\t", 1)
            mode, blob, _ = about.split(" ")
            if mode != "160000":  # a submodule
                blobs.setdefault(blob, []).append(path)
        with tempfile.TemporaryFile("w+") as wanted:
            wanted.write("\n".join(blobs))
            wanted.seek(0)
            words = ["git", "-C", str(self.folder), "cat-file", "--batch-check=%(objectname)"]
            answer = subprocess.run(words, stdin=wanted, capture_output=True, text=True, check=True)
        lost = [line.split(" ")[0] for line in answer.stdout.splitlines() if line.endswith(" missing")]
        missing = sorted(path for blob in lost for path in blobs[blob])
        if missing:
            self.git("update-index", "--force-remove", "--", *missing)
        self.git("checkout-index", "--all", "--force")
        return missing


def make(source: str, out: Path, alone: int | None = None) -> tuple[str, list[Outcome], list[str]]:
    """Make the tree.

    Args:
        source: a clone of NeMo-RL or its address.
        out: the new folder.
        alone: number of the only pull request. None merges all that merge cleanly.

    Returns:
        The commit, what became of each pull request, and the files that the source lacks.

    Raises:
        TreeError: the source lacks main of August, or the folder is not empty.
    """
    chosen = [one for one in PULL_REQUESTS if alone in (None, one.number)]
    if not chosen:
        raise TreeError(f"--alone {alone}: choices are {', '.join(str(one.number) for one in PULL_REQUESTS)}")
    if shutil.which("git") is None:
        raise TreeError("git is not installed; version 2.38 or newer is needed")
    clone = Clone(source, out)
    if alone is not None:
        clone.bring(chosen[0].merged)
        return chosen[0].merged, [Outcome(chosen[0], "merged")], clone.check_out(chosen[0].merged)
    clone.bring(BASE)
    commit, outcomes = BASE, []
    for request in chosen:
        commit, outcome = clone.merge(commit, request)
        outcomes.append(outcome)
    return commit, outcomes, clone.check_out(commit)


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a Markdown table of the outcomes."""
    head = ["| pull request | head | what it changes | |", "|---|---|---|---|"]
    rows = (
        f"| {one.request.number} | {one.request.head[:8]} | {one.request.what} | "
        f"{one.state}{': ' if one.why else ''}{one.why} |"
        for one in outcomes
    )
    return [*head, *rows]


def main(words: Sequence[str]) -> int:
    """Read the arguments, make the tree and print what is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a clone of NeMo-RL, or its address")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--alone", type=int, help="number of the only pull request, on its own main")
    parsed = parser.parse_args(words)
    try:
        commit, outcomes, missing = make(parsed.source, parsed.out.expanduser(), parsed.alone)
    except TreeError as error:
        print(f"release_tree.py: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    print("\n".join(table(outcomes)))
    print(f"\n{parsed.out}: {commit}" + (f"; the source lacks {len(missing)} files: {missing}" if missing else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
