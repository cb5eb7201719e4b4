"""Adds configs/ and a small data set to a wheel, so that `nemo-ada train configs/cpu/jsonl.yaml` runs in any folder.

pyproject.toml has everything else.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SHIPPED = ("configs/**/*.yaml", "configs/**/*.txt", "recipes/data/chain_sum.jsonl")


class BuildWithConfigs(build_py):
    """Builds the package and copies the shipped files into nemo_ada/shipped."""

    def run(self) -> None:
        """Build. An editable installation reads the files of the checkout instead."""
        super().run()
        if self.editable_mode:
            return
        for pattern in SHIPPED:
            for file in sorted(ROOT.glob(pattern)):
                target = Path(self.build_lib) / "nemo_ada" / "shipped" / file.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


setup(cmdclass={"build_py": BuildWithConfigs})
