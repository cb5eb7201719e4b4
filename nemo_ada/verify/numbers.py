r"""Numbers as people and models write them: `1,234`, `-0.5`, `4.5e33`, `4.5\times 10^{33}`, `\frac{1}{2}`, `204_5`.

math-verify reads `4.5e33` as 4.5 times Euler's number times 33, and compares decimals by their first six places behind
the point: 1e-19 then equals 2e-19. Here a number is an exact fraction, and decimals are equal within `TOLERANCE` of
their size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

# Relative. math-verify compares six decimal places (its `float_rounding`), and calls 0.333333 and 1/3 equal. These are
# six significant digits, wherever the point stands. The scorer of Qwen2.5-Math takes 1e-4, and lets 1234.5 be 1234.6.
# A little more than 1e-6, because 1/3 and 0.333333 lie exactly there, and a value may be rounded at its 30th digit.
TOLERANCE = Fraction(1_000_001, 10**12)
MAX_EXPONENT = 400  # of a power of ten; larger ones are left to math-verify, whose deadline holds
MAX_LENGTH = 400  # characters of a number

_DIGITS = r"(?:\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_TIMES = r"(?:\\times|\\cdot|\*|×|·)"
_POWER = r"10\s*(?:\^|\*\*)\s*(?:\{\s*(?P<power>[+-]?\d{1,4})\s*\}|(?P<bare>[+-]?\d{1,4}))"
_SCIENTIFIC = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:(?P<number>{_DECIMAL})(?:[eE](?P<e>[+-]?\d{{1,4}})|\s*{_TIMES}\s*{_POWER})?"
    rf"|{_POWER.replace('power', 'alone').replace('bare', 'single')})"
)
_QUOTIENT = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:\\[dt]?frac\s*\{{\s*(?P<a>{_DIGITS})\s*\}}\s*\{{\s*(?P<b>{_DIGITS})\s*\}}"
    rf"|(?P<c>{_DIGITS})\s*/\s*(?P<d>{_DIGITS}))"
)
_BASED = re.compile(r"(?P<digits>\d[0-9A-Za-z]*)\s*_\s*(?:\{\s*(?P<base>\d{1,2})\s*\}|(?P<bare>\d{1,2}))")
_E_NOTATION = re.compile(r"(?<![\w.\\^])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,3})(?![\w.])")
_AROUND = re.compile(r"^(?:\$|\\\(|\\\[|\\displaystyle|\s)+|(?:\$|\\\)|\\\]|\.(?=\s*$)|\s)+$")
_SEPARATORS = re.compile(r"\{,\}|\\,|,")


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value.

    Attributes:
        value: the value.
        kind: how it was written: as an integer, as a quotient of integers, or as a decimal.
    """

    value: Fraction
    kind: str

    def equals(self, other: Number) -> bool:
        """Return whether `other` answers this reference. An integer must be exact, and so must two quotients."""
        if self.kind == "integer" or "decimal" not in (self.kind, other.kind):
            return self.value == other.value
        return close(self.value, other.value)


def close(a: Fraction, b: Fraction, tolerance: Fraction = TOLERANCE) -> bool:
    """Return whether two values differ by no more than `tolerance` of the larger one."""
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def number(text: str) -> Number | None:
    """Return the number that the whole text is, None where it is something else."""
    if len(text) > MAX_LENGTH:
        return None
    text = _AROUND.sub("", text)
    if (match := _SCIENTIFIC.fullmatch(text)) is not None:
        return _scientific(match)
    if (match := _QUOTIENT.fullmatch(text)) is not None:
        above, below = (_integer(match[long] or match[short]) for long, short in (("a", "c"), ("b", "d")))
        return Number(_signed(match, Fraction(above, below)), "quotient") if below else None
    return None


def based(text: str) -> int | None:
    """Return the value of an integer with its base, such as 204_5 or 1A_{16}. None where the text is something else."""
    match = _BASED.fullmatch(_AROUND.sub("", text)) if len(text) <= MAX_LENGTH else None
    if match is None:
        return None
    try:
        return int(match["digits"], int(match["base"] or match["bare"]))
    except ValueError:  # no such base, or no such digit in it
        return None


def with_powers(text: str) -> str:
    r"""Return the text with its e-notation written as a power of ten (`4.5\times 10^{33}`), as in LaTeX."""
    return _E_NOTATION.sub(r"\1\\times 10^{\2}", text)


def _scientific(match: re.Match[str]) -> Number | None:
    written = match["number"]
    exponents = [match[name] for name in ("e", "power", "bare", "alone", "single") if match[name]]
    exponent = int(exponents[0]) if exponents else 0
    if abs(exponent) > MAX_EXPONENT:
        return None
    value = Fraction(_SEPARATORS.sub("", written) if written else 1) * Fraction(10) ** exponent
    decimal = match["e"] is not None or exponent < 0 or "." in (written or "")
    return Number(_signed(match, value), "decimal" if decimal else "integer")


def _signed(match: re.Match[str], value: Fraction) -> Fraction:
    return -value if match["sign"] == "-" else value


def _integer(text: str) -> int:
    return int(_SEPARATORS.sub("", text))
