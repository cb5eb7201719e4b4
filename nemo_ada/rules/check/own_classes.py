"""NeMo-RL's own configuration classes, asked where this Python can import NeMo-RL, such as in its container.

The rule of types reads the same classes as source (value_types.py), which needs no NeMo-RL, and their validators are
code that only runs. Within a job the launcher makes them anyway, so there nobody waits for a second import.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.rules.facts.checkout import PACKAGE
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.facts.upstream import CONTROLLER_CONFIG, LOOP
from nemo_ada.rules.finding import Findings, ok, skipped
from nemo_ada.rules.value_types import read_errors
from nemo_ada.run.start import run

KEY, MARK = "configuration", "nemo_ada says: "
CHILD = f"""
import importlib, json, sys
from pydantic import ValidationError
config = json.load(sys.stdin)
try:
    importlib.import_module(sys.argv[1]).MasterConfig(**config)
    errors = []
except ValidationError as error:
    errors = error.errors(include_url=False, include_input=False, include_context=False)
print({MARK!r} + json.dumps(errors))
"""


def check_own_classes(config: Mapping[str, Any]) -> Findings:
    """What NeMo-RL's configuration says of a config when it is made. A NeMo-RL that cannot be imported says nothing."""
    if find_spec(PACKAGE) is None or "SLURM_JOB_ID" in os.environ:
        return
    module = CONTROLLER_CONFIG if Loop.of(Values(config)) is Loop.CONTROLLER else LOOP
    command = [sys.executable, "-P", "-W", "ignore", "-c", CHILD, module]  # -P: nothing of the working folder
    text = json.dumps(config, default=str)
    done = run(command, stdin=None, input=text, capture_output=True, text=True)
    answers = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not answers:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield skipped(KEY, f"NeMo-RL cannot be imported here, so its own classes were not asked: {last[:200]}")
        return
    found = list(read_errors(config, json.loads(answers[-1])))
    yield from found or [ok(KEY, f"NeMo-RL's own {module}.MasterConfig takes it")]
