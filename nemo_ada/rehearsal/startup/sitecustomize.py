"""Python imports this module when an interpreter of a rehearsal starts. It installs the stand-ins before torch."""

import os
import sys

if os.environ.get("NEMO_ADA_REHEARSAL"):
    if sys.version_info < (3, 12):
        import typing

        import typing_extensions

        # Below Python 3.12 pydantic refuses typing's TypedDict. megatron-core imports `override`, which typing lacks.
        vars(typing).update(TypedDict=typing_extensions.TypedDict, override=typing_extensions.override)
    from nemo_ada.rehearsal import observe, standins

    standins.install()
    observe.install_observers()
