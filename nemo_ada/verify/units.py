r"""Units: `12 \text{ cm}`, `5 ft 6 in`, `\$5`, `28\%`, `90^\circ`; and times of day and dates.

A unit that only one side writes is no difference, because a problem often names it. Two units are compared: known ones
of one dimension are converted, others must share their words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_TABLE: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {  # dimension -> (power), names with their factors
    "length": ("m", (
        ("m meter metre", "1"), ("cm centimeter centimetre", "1/100"), ("mm millimeter millimetre", "1/1000"),
        ("km kilometer kilometre", "1000"), ("dm decimeter decimetre", "1/10"), ("in inch inche", "127/5000"),
        ("ft foot feet", "381/1250"), ("yd yard", "1143/1250"), ("mi mile", "201168/125"),
        ("nm nanometer", "1/1000000000"))),
    "mass": ("g", (
        ("g gram gramme", "1"), ("kg kilogram kilo", "1000"), ("mg milligram", "1/1000"),
        ("lb pound", "45359237/100000"), ("oz ounce", "45359237/1600000"), ("tonne", "1000000"))),
    "time": ("s", (
        ("s sec second", "1"), ("min minute", "60"), ("h hr hour", "3600"), ("day", "86400"), ("week wk", "604800"),
        ("ms millisecond", "1/1000"))),
    "months": ("month", (("month mo", "1"), ("year yr", "12"), ("decade", "120"), ("century centurie", "1200"))),
    "volume": ("l", (("l liter litre", "1"), ("ml milliliter millilitre", "1/1000"), ("cl", "1/100"), ("kl", "1000"))),
    "us volume": ("gal", (("gal gallon", "1"), ("quart qt", "1/4"), ("pint pt", "1/8"), ("cup", "1/16"))),
    "money": ("$", (("$ dollar usd buck", "1"), ("cent ¢", "1/100"))),
    "euro": ("€", (("€ euro eur", "1"),)),
    "sterling": ("£", (("£ gbp", "1"),)),
    "rupees": ("₹", (("₹ rupee rs inr", "1"),)),
    "yuan": ("¥", (("¥ yuan yen rmb cny", "1"),)),
    "angle": ("°", (("° degree deg", "1"),)),
    "percent": ("%", (("% percent percentage pct", "1"),)),
    "temperature C": ("°C", (("°c celsius centigrade", "1"),)),
    "temperature F": ("°F", (("°f fahrenheit", "1"),)),
    "energy": ("J", (("j joule", "1"), ("kj kilojoule", "1000"))),
    "power": ("W", (("w watt", "1"), ("kw kilowatt", "1000"))),
    "force": ("N", (("n newton", "1"),)), "frequency": ("Hz", (("hz hertz", "1"), ("khz", "1000"))),
    "angle rad": ("rad", (("rad radian", "1"),)), "any": ("unit", (("unit", "1"),)),
    "dozen": ("dozen", (("dozen", "1"),)),
    "amount": ("mol", (("mol mole", "1"),)), "acre": ("acre", (("acre", "1"), ("hectare ha", "247105/100000"))),
}  # fmt: skip
UNITS: dict[str, tuple[str, Fraction]] = {
    word: (base, Fraction(factor))
    for base, names in _TABLE.values()
    for words, factor in names
    for word in words.split()
}
_SPEEDS = {"mph": "mi/h", "kph": "km/h", "kmph": "km/h", "kmh": "km/h", "mps": "m/s", "fps": "ft/s"}
_IGNORED = {
    "of",
    "the",
    "a",
    "an",
    "approximately",
    "about",
    "each",
    "total",
    "long",
    "wide",
    "tall",
    "high",
    "and",
    "point",
}
_PIECE = re.compile(
    r"(?P<word>°\s*[CF](?![a-zA-Z])|[a-zA-Z]+|[°%€£₹¥¢]|\\\$|\$)\s*(?:\^\s*\{?\s*(?P<power>-?\d)\s*\}?)?"
    r"|(?P<over>/)|\\cdot|[*.\-']"
)
_REMARK = re.compile(r"^\s*\(\s*([^()]*)\s*\)\s*$")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit.

    Attributes:
        dimension: its base units with their powers, and words that are no known unit.
        factor: of the base units.
    """

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction = Fraction(1)

    @property
    def percent(self) -> bool:
        """Whether it is percent, of whatever."""
        return ("%", 1) in self.dimension

    @property
    def angle(self) -> bool:
        """Whether it is degrees."""
        return self.dimension == (("°", 1),)

    @property
    def known(self) -> bool:
        """Whether every part is a unit of the table."""
        return all(name in _BASES for name, _ in self.dimension)

    def fits(self, other: Unit) -> bool:
        """Return whether the two measure the same."""
        if self.dimension == other.dimension or (self.percent and other.percent):
            return True
        ours, theirs = ({name for name, _ in unit.dimension} for unit in (self, other))
        if "unit" in ours or "unit" in theirs:
            return True
        if self.known or other.known:
            return False
        return ours <= theirs or theirs <= ours


_BASES = {base for base, _ in UNITS.values()}


def unit(text: str, *, spaced: bool = True) -> Unit | None:
    r"""Return the unit that a tidy text is, such as `\text{cm}^{2}`, `km/h`, `square meters`. None where it is none.

    Args:
        text: the text behind a number.
        spaced: whether a blank or a command stands before it. `5m` is 5 times m.
    """
    bare = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    worded = bare != text
    bare = re.sub(r"\bper cent\b", "percent", bare)
    bare = _REMARK.sub(lambda match: re.sub(r"\d+", " ", match[1]), bare).strip()
    for short, long in _SPEEDS.items():
        bare = re.sub(rf"\b{short}\b", long, bare)
    powers: dict[str, int] = {}
    factor, sign, exponent, at, unknown = Fraction(1), 1, 1, 0, 0
    while at < len(bare):
        if bare[at] == " ":
            at += 1
            continue
        match = _PIECE.match(bare, at)
        if match is None:
            return None
        at = match.end()
        if match["over"]:
            sign = -1
            continue
        if not match["word"]:
            continue
        word = match["word"].replace(" ", "").replace("\\$", "$").lower()
        if word == "per":
            sign = -1
        elif word in ("square", "sq"):
            exponent = 2
        elif word in ("cubic", "cu"):
            exponent = 3
        elif word.removesuffix("s") not in _IGNORED:
            if not worded and not spaced and (len(word) < 2 and word.isalpha()):
                return None
            known = UNITS.get(word) or UNITS.get(word.removesuffix("s")) or UNITS.get(word.removesuffix("es"))
            power = sign * (int(match["power"]) if match["power"] else exponent)
            unknown += known is None
            name, scale = known if known is not None else (word.removesuffix("s"), Fraction(1))
            powers[name] = powers.get(name, 0) + power
            factor *= scale**power
            sign, exponent = 1, 1
    if not powers or (unknown and not worded and not _prose(bare)):
        return None
    if "l" in powers:  # a litre is a cubic decimetre
        litres = powers.pop("l")
        powers["m"] = powers.get("m", 0) + 3 * litres
        factor *= Fraction(1, 1000) ** litres
    return Unit(tuple(sorted((name, power) for name, power in powers.items() if power)), factor)


def _prose(text: str) -> bool:
    """Return whether a text is words, not a product of letters."""
    return all(len(word) >= 3 or word in _IGNORED for word in re.findall("[A-Za-z]+", text)) and "^" not in text


_CLOCK = re.compile(
    r"(?P<h>\d{1,2})(?:\s*:\s*(?P<m>\d\d)(?:\s*:\s*(?P<s>\d\d))?)?\s*(?:\\text\s*\{)?\s*"
    r"(?P<half>[aApP])?(?:(?<=[aApP])\s*\.?\s*[mM]\.?)?\s*\}?"
)
_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS)
_DATES = (
    re.compile(
        rf"(?:[a-z]+day,?\s+)?(?P<month>{_MONTH})\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:\s*,?\s+(?P<year>\d{{4}}))?"
    ),
    re.compile(
        rf"(?:[a-z]+day,?\s+)?(?:the\s+)?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?"
        rf"(?P<month>{_MONTH})\.?(?:\s*,?\s+(?P<year>\d{{4}}))?"
    ),
)
_ISO = re.compile(r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})")
_SLASHED = re.compile(r"(\d{1,2})[/.](\d{1,2})[/.](\d{4}|\d\d)")


def clock(text: str) -> tuple[int, int] | None:
    """Return a time of day in seconds, and 1 where its half of the day is known, else 0. None for another text."""
    words = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).strip()
    if words.lower() in ("noon", "midnight"):
        return (43200 if words.lower() == "noon" else 0), 1
    match = _CLOCK.fullmatch(words)
    half = (match["half"] or "").lower() if match else ""
    if match is None or not (match["m"] or half) or (half and not re.search(r"[mM]\.?\s*$", words)):
        return None
    hour, minute, second = int(match["h"]), int(match["m"] or 0), int(match["s"] or 0)
    if hour > (12 if half else 24) or minute > 59 or second > 59:
        return None
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    return hour * 3600 + minute * 60 + second, int(bool(half) or hour > 12 or hour == 0)


def date(text: str) -> tuple[int, ...] | None:
    """Return a date: 0, year, month, day; or 1, year and two numbers as written (5/6/2024). A missing year is 0."""
    words = " ".join(re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).split()).lower()
    if (match := _SLASHED.fullmatch(words)) is not None:
        return 1, int(match[3]), int(match[1]), int(match[2])
    if (match := _ISO.fullmatch(words)) is not None:
        return 0, int(match["year"]), int(match["month"]), int(match["day"])
    for pattern in _DATES:
        if (match := pattern.fullmatch(words)) is not None:
            month = 1 + next(i for i, name in enumerate(_MONTHS) if match["month"].startswith(name[:3]))
            return 0, int(match["year"] or 0), month, int(match["day"])
    return None
