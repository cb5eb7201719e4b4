"""Problems from anywhere, cleaned and measured: what training and evaluation read.

source -> problem -> (stages, each with a journal) -> data set with a card. `measure` draws and judges responses; the
evaluation uses it too.
"""

from __future__ import annotations
