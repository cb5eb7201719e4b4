r"""Units: `12 \text{ cm}`, `5 ft 6 in`, `\$5`, `28\%`, `90^\circ`; words that scale; times of day and dates.

The units are a closed list. A unit that only one side writes is no difference, because a problem often names it. Two
units are compared: those of one dimension are converted, others must share their words. A word that scales belongs to
the number: 5 million is 5,000,000. Words behind a number that are in no list are remarks. A reference may have one, and
an answer may repeat it: 6 (sealed envelopes).
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

_TABLE: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {  # dimension -> (power), names with their factors
    "length": ("m", (
        ("m meter metre 米 м", "1"), ("cm centimeter centimetre 厘米 см", "1/100"), ("mm 毫米 мм", "1/1000"),
        ("km 千米 公里 км", "1000"), ("in inch inche", "127/5000"),
        ("ft foot feet", "381/1250"), ("yd yard", "1143/1250"), ("mi mile", "201168/125"))),
    "area": ("area", (("平方米", "1"), ("平方厘米", "1/10000"), ("acre", "316160658/78125"), ("hectare ha", "10000"))),
    "mass": ("g", (
        ("g gram gramme 克 г", "1"), ("kg kilo 千克 公斤 кг", "1000"),
        ("lb pound", "45359237/100000"), ("oz ounce", "45359237/1600000"), ("tonne 吨", "1000000"))),
    "time": ("s", (
        ("s sec second 秒 секунд", "1"), ("min minute 分钟 мин минут", "60"),
        ("h hr hour 小时 ч час часа часов", "3600"),
        ("day 天 день дня дней", "86400"), ("week wk", "604800"))),
    "months": ("month", (("month mo 个月", "1"), ("year yr 年 год года лет", "12"), ("decade", "120"),
        ("century centurie", "1200"))),
    "volume": ("l", (("l liter litre 升 л", "1"), ("ml 毫升 мл", "1/1000"))),
    "us volume": ("gal", (("gal gallon", "1"), ("quart qt", "1/4"), ("pint pt", "1/8"), ("cup", "1/16"))),
    "money": ("$", (("$ dollar usd buck", "1"), ("cent ¢", "1/100"))),
    "euro": ("€", (("€ euro eur", "1"),)),
    "sterling": ("£", (("£ gbp", "1"),)),
    "rupees": ("₹", (("₹ rupee rs inr", "1"),)),
    "yuan": ("¥", (("¥ yuan yen rmb cny 元", "1"),)),
    "rubles": ("₽", (("₽ рублей рубля руб", "1"),)),
    "angle": ("°", (("° degree deg 度", "1"),)),
    "angle rad": ("rad", (("rad radian", "1"),)),
    "percent": ("%", (("% percent percentage pct", "1"),)),
    "temperature C": ("°C", (("°c celsius centigrade", "1"),)),
    "temperature F": ("°F", (("°f fahrenheit", "1"),)),
    "any": ("unit", (("unit", "1"),)),
    "pressure": ("Pa", (("atm", "101325"), ("bar", "100000"))),
}  # fmt: skip
_SI = {  # symbol -> the unit's name, its base, its factor
    "m": ("meter metre", "m", "1"), "g": ("gram", "g", "1"), "s": ("second", "s", "1"),
    "L": ("liter litre", "l", "1"), "l": ("", "l", "1"), "J": ("joule", "J", "1"), "W": ("watt", "W", "1"),
    "N": ("newton", "N", "1"), "Hz": ("hertz", "Hz", "1"), "V": ("volt", "V", "1"), "A": ("ampere amp", "A", "1"),
    "Ω": ("ohm", "Ω", "1"), "Pa": ("pascal", "Pa", "1"), "mol": ("mole", "mol", "1"), "F": ("farad", "F", "1"),
    "Wh": ("watthour", "J", "3600"), "eV": ("", "eV", "1"), "B": ("byte", "B", "1"), "cal": ("calorie", "cal", "1"),
    "K": ("kelvin", "K", "1"), "T": ("tesla", "T", "1"), "M": ("", "M", "1"),
}  # fmt: skip
_PREFIXES = {
    "k": ("kilo", 3), "M": ("mega", 6), "G": ("giga", 9), "T": ("tera", 12), "d": ("deci", -1), "c": ("centi", -2),
    "m": ("milli", -3), "μ": ("micro", -6), "u": ("", -6), "n": ("nano", -9), "p": ("pico", -12),
}  # fmt: skip
UNITS: dict[str, tuple[str, Fraction]] = {
    word: (base, Fraction(factor))
    for base, names in _TABLE.values()
    for words, factor in names
    for word in words.split()
}
_CASED: dict[str, tuple[str, Fraction]] = {}  # symbols, in which m is milli and M is mega
for _symbol, (_names, _base, _factor) in _SI.items():
    _CASED[_symbol] = (_base, Fraction(_factor))
    UNITS |= dict.fromkeys(_names.split(), _CASED[_symbol])
    for _short, (_long, _power) in _PREFIXES.items() if _symbol not in ("M", "K", "T") else ():
        _CASED[_short + _symbol] = (_base, Fraction(_factor) * Fraction(10) ** _power)
        UNITS |= {_long + _name: _CASED[_short + _symbol] for _name in _names.split() if _long}
_CASED["min"] = UNITS["min"]
_SPEEDS = {"mph": "mi/h", "kph": "km/h", "kmph": "km/h", "kmh": "km/h", "mps": "m/s", "fps": "ft/s"}
_SCALES = {
    word: Fraction(value)
    for words, value in (
        ("dozen", "12"), ("hundred", "100"), ("thousand", "1000"), ("lakh", "100000"), ("million 百万", "1000000"),
        ("crore", "10000000"), ("billion", "1000000000"), ("trillion", "1000000000000"), ("万", "10000"),
        ("亿", "100000000"), ("tenth", "1/10"), ("hundredth", "1/100"), ("thousandth", "1/1000"),
    )
    for word in words.split()
}  # fmt: skip


def _all_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


# What is counted. The singular; an s or es is added.
_COUNTED = _all_of(
    """apple arrangement bag ball balloon banana bead bird block book bottle box boxe boy bus buse cake candy candie
    car card cat chair chicken child children choice chocolate class coin color combination computer cookie cow cube
    customer desk digit divisor dog doll door edge egg element employee envelope face factor fish flower fruit friend
    game gift girl goal grade group guest handshake hat horse house integer invitation item job kid letter line man
    marble match member men mile mistake move muffin number object orange order outcome outfit page
    participant passenger pattern pen pencil people permutation person phone piece pizza place plant player point
    possibility possibilitie prime problem question rabbit race rectangle region room root rose row sandwich
    seat sequence set sheep shirt shoe side slice solution square staff step stick sticker stop stone story storie
    student subset team ticket tile time toy train tree triangle turn value vertex vertice vote walk way window woman
    women word worker bushel carton crayon trip lap meal gem pet shot task test tool vase brownie bunch
    человек штук раз"""
) | {*"个人只本张条件种名位棵辆支次岁块朵头道场组套颗把"} - {"square"}
_COUNTERS, _OR_SO = frozenset("个人只本张条件种名位棵辆支次岁块朵头道场组套颗把"), re.compile("[以不或非多少]")
_DIRECTIONS = _all_of(
    """increase decrease gain loss profit deficit surplus growth discount off north south east west up down left right
    above below clockwise counterclockwise anticlockwise ahead behind deep before after bc ad am pm"""
)
_REMARKS = _all_of(
    """of the a an each total all exactly exact precisely approximately approx about roughly around rounded
    long wide tall high old away apart altogether only different distinct possible point red blue double repeated
    answer correct green yellow white black brown full big small large real whole"""
)  # they change nothing
_NO_UNIT = _all_of(
    """or not is isn no if maybe perhaps more less fewer greater than at least most over under to between but except
    wrong false either neither nor half quarter third when where since because pair score
    instead unless without plus minus times yes possibly could should"""
)  # what makes a text more than an amount
_PIECE = re.compile(
    r"(?P<word>°\s*[CF](?![a-zA-Z])|[^\W\d_]+|[°%€£₹¥¢₽]|\\\$|\$)\s*(?:\^\s*\{?\s*(?P<power>-?\d)\s*\}?)?"
    r"|(?P<over>/)|\\cdot|[*.\-]"
)
_REMARK = re.compile(r"^\s*[(\[]\s*([^()\[\]]*)\s*[)\]]\s*$")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit.

    Attributes:
        dimension: its base units with their powers, and the words of what is counted.
        factor: of the base units.
        scale: what its words multiply the number with: 1000 for "thousand km".
        remark: whether a word in it is in no list.
    """

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction = Fraction(1)
    scale: Fraction = Fraction(1)
    remark: bool = False

    @property
    def names(self) -> set[str]:
        """The names in it."""
        return {name for name, _ in self.dimension}

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
        return all(name in BASES for name, _ in self.dimension)

    def fits(self, other: Unit) -> bool:
        """Return whether the two measure the same."""
        if self.dimension == other.dimension:
            return True
        ours, theirs = self.names, other.names
        if ours & _DIRECTIONS != theirs & _DIRECTIONS and ours & _DIRECTIONS and theirs & _DIRECTIONS:
            return False
        if "unit" in ours or "unit" in theirs or (self.percent and other.percent):
            return True
        ours, theirs = ours - _DIRECTIONS, theirs - _DIRECTIONS
        return self._powers() == other._powers() and (ours <= theirs or theirs <= ours)

    def _powers(self) -> set[tuple[str, int]]:
        return {part for part in self.dimension if part[0] in BASES}


BASES = {base for base, _ in (*UNITS.values(), *_CASED.values())}


def unit(text: str, *, spaced: bool = True) -> Unit | None:
    r"""Return the unit that a tidy text is, such as `\text{cm}^{2}`, `km/h`, `square meters`. None where it is none.

    Args:
        text: the text behind a number.
        spaced: whether a blank or a command stands before it. `5m` is 5 times m.
    """
    bare = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    worded = bare != text
    bare = (
        re.sub(r"\bin (?:total|all)\b", " ", re.sub(r"\bper cent\b", "percent", bare))
        .replace("\\Omega", "Ω")
        .replace("\\mu ", "μ")
    )
    bare = re.sub(r"multiplicity \d+|\bor so\b", " about ", bare)
    bare = _REMARK.sub(lambda match: match[1], bare).strip()
    for short, long in _SPEEDS.items():
        bare = re.sub(rf"\b{short}\b", long, bare)
    powers: dict[str, int] = {}
    factor, scale, sign, exponent, at, remark, seen = Fraction(1), Fraction(1), 1, 1, 0, False, False
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
        seen = True
        word = match["word"].replace(" ", "").replace("\\$", "$")
        small = word.lower()
        short = small.removesuffix("s") if len(small) > 2 and not small.endswith("ss") else small
        lone = len(word) < 2 and word.isascii() and word.isalpha() and not worded and not spaced  # 5m
        if lone or small in _NO_UNIT or short in _NO_UNIT:
            return None
        if small == "per":
            sign = -1
        elif small in ("square", "sq"):
            exponent = 2
        elif small in ("cubic", "cu"):
            exponent = 3
        elif small in _SCALES or short in _SCALES:
            scale *= _SCALES.get(small) or _SCALES[short]
        elif word in _CASED or (short not in _REMARKS and small not in _REMARKS):
            if short[0] in _COUNTERS and not _OR_SO.search(short):  # 12 个苹果
                short = short[0]
            known = _CASED.get(word) or UNITS.get(small) or UNITS.get(short) or UNITS.get(small.removesuffix("es"))
            power = sign * (int(match["power"]) if match["power"] else exponent)
            remark |= known is None and short not in _COUNTED and small not in _COUNTED and short not in _DIRECTIONS
            name, size = known if known is not None else (short, Fraction(1))
            powers[name] = powers.get(name, 0) + power
            factor *= size**power
            sign, exponent = 1, 1
    if not seen or (remark and not worded and not _prose(bare)):
        return None
    for whole, base, power, size in (("l", "m", 3, Fraction(1, 1000)), ("area", "m", 2, Fraction(1))):
        if whole in powers:  # a litre is a cubic decimetre
            count = powers.pop(whole)
            powers[base] = powers.get(base, 0) + power * count
            factor *= size**count
    return Unit(tuple(sorted((name, power) for name, power in powers.items() if power)), factor, scale, remark)


def _prose(text: str) -> bool:
    """Return whether a text is words, not a product of letters."""
    words = re.findall(r"[^\W\d_]+", text)
    return all(len(word) >= 3 or word in _REMARKS or not word.isascii() for word in words) and "^" not in text


_CLOCKS = ("%I:%M:%S %p", "%I:%M %p", "%I %p", "%H:%M:%S", "%H:%M")
_DATES = ("%B %d %Y", "%b %d %Y", "%d %B %Y", "%d %b %Y", "%Y-%m-%d")
_SLASHED = re.compile(r"(\d{1,2})[/.](\d{1,2})[/.](\d{4}|\d\d)")
_TIMELIKE = re.compile(r"\d\d?(?::\d\d){1,2}(?: ?[ap]m)?|\d\d? ?[ap]m")
_DAY = re.compile(r"(?:[a-z]+day )?(?:the )?((?:\d{1,2} )?[a-z]{3,9}(?: \d{1,2})?(?: \d{4})?|\d{4}-\d{1,2}-\d{1,2})")


def clock(text: str) -> tuple[int, int] | None:
    """Return a time of day in seconds, and 1 where its half of the day is known, else 0. None for another text."""
    words = _lower(text).replace(".", "").replace(" : ", ":")
    words = {"noon": "12 pm", "midnight": "12 am"}.get(words, words)
    if not _TIMELIKE.fullmatch(words):
        return None
    halved = words.endswith("m")
    when = _read(re.sub(r" ?(?=[ap]m)", " ", words), _CLOCKS)
    sure = halved or (when is not None and (when.hour > 12 or when.hour == 0))
    return None if when is None else (when.hour * 3600 + when.minute * 60 + when.second, int(sure))


def date(text: str) -> tuple[int, ...] | None:
    """Return a date: 0, year, month, day; or 1, year and two numbers as written (5/6/2024). A missing year is 0."""
    words = _lower(text)
    if (match := _SLASHED.fullmatch(words)) is not None:
        return 1, int(match[3]), int(match[1]), int(match[2])
    words = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b|[,.]| of\b", " ", words)
    if (match := _DAY.fullmatch(" ".join(words.split()))) is None or not re.search(r"\d", match[1]):
        return None
    dated = re.search(r"\d{4}", match[1]) is not None
    when = _read(match[1] if dated else f"{match[1]} 2000", _DATES)
    return None if when is None else (0, when.year if dated else 0, when.month, when.day)


def _lower(text: str) -> str:
    return " ".join(re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).split()).lower()


def _read(text: str, forms: tuple[str, ...]) -> datetime | None:
    for form in forms:
        with suppress(ValueError):
            return datetime.strptime(text, form)
    return None
