"""`python -m nemo_ada.cli`: the command line without its installed script."""

import os
import sys

if sys.path[:1] == [os.getcwd()] and not sys.flags.safe_path:  # `python -m` puts it first
    del sys.path[0]

from nemo_ada.cli.main import main

main()
