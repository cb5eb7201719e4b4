"""A script in the manner of NeMo-RL's examples, with the tiny policy and engine where it starts GPU workers.

python -m nemo_support.script_driver SCRIPT ARGUMENT...
"""

from __future__ import annotations

import runpy
import sys

from nemo_support.compat import use_typing_extensions_typed_dict


def main(script: str, *arguments: str) -> None:
    """Run it as the main program."""
    use_typing_extensions_typed_dict()
    from nemo_support.launch_driver import install

    install({"arguments": ["run_dir=unused"]})
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
