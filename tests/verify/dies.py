"""A scorer whose import ends the verifier's server at once, as a library that does not fit this machine may."""

import os

os._exit(3)
