"""`python -m nemo_ada.cli`: the command line without its installed script."""

from nemo_ada.cli.main import main

main()
