"""Problems from any source, cleaned and measured, for training and evaluation.

source -> problem -> stages, each with a journal -> data set with a card. The evaluation also uses `measure`.
"""

from __future__ import annotations
