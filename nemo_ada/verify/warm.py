r"""Imported once by the fork server: loads math-verify and fills its caches, so that new workers start warm.

A replacement for a killed worker then costs a fork (milliseconds) and not an import (seconds), and no answer pays
for the first use of the parser's tables out of its deadline.
"""

from __future__ import annotations

from nemo_ada.verify.scoring import score_math

for _answer, _reference in (
    (r"\frac{1}{2}", "0.5"),
    (r"\sqrt{2}+1", r"1+\sqrt{2}"),
    ("(1,2)", "[1,2]"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("x=3", "3"),
    ("x^2-1", "(x-1)(x+1)"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    (r"\text{Tuesday}", r"\text{Monday}"),
    (r"50\%", "0.5"),
):
    score_math(_answer, _reference)
