r"""Units: `12 \text{ cm}`, `5 ft 6 in`, `\$5`, `28\%`, `90^\circ`; words that scale; times of day and dates.

A word behind a number is what was counted, whatever it is: 72 clips are 72. So the units of the table say only which
ones can be converted, and the short lists below name the words that make a number another one: a million, thirds,
squared, less, or, not, a loss. A unit that only one side writes is no difference, because a problem often names it. Two
units are compared: those of one dimension are converted, others must share their words. A word that scales belongs to
the number: 5 million is 5,000,000.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from nemo_ada.verify.latex import all_of, is_word
from nemo_ada.verify.numbers import NUMBER_WORDS, PARTS

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
    "pressure": ("Pa", (("atm", "101325"), ("bar", "100000"), ("mmhg", "101325/760"))),
}  # fmt: skip
_SI = {  # symbol -> the unit's name, its base, its factor
    "m": ("meter metre", "m", "1"), "g": ("gram", "g", "1"), "s": ("second", "s", "1"),
    "L": ("liter litre", "l", "1"), "l": ("", "l", "1"), "J": ("joule", "J", "1"), "W": ("watt", "W", "1"),
    "N": ("newton", "N", "1"), "Hz": ("hertz", "Hz", "1"), "V": ("volt", "V", "1"), "A": ("ampere amp", "A", "1"),
    "Ω": ("ohm", "Ω", "1"), "Pa": ("pascal", "Pa", "1"), "mol": ("mole", "mol", "1"), "F": ("farad", "F", "1"),
    "Wh": ("watthour", "J", "3600"), "eV": ("", "eV", "1"), "B": ("byte", "B", "1"), "cal": ("calorie", "cal", "1"),
    "K": ("kelvin", "K", "1"), "T": ("tesla", "T", "1"), "M": ("", "M", "1"), "C": ("coulomb", "C", "1"),
    "H": ("henry henrie", "H", "1"), "S": ("siemens", "S", "1"), "Wb": ("weber", "Wb", "1"),
    "Å": ("angstrom", "m", "1/10000000000"),
    "Bq": ("becquerel", "Bq", "1"), "Gy": ("gray", "Gy", "1"), "Sv": ("sievert", "Sv", "1"), "lm": ("lumen", "lm", "1"),
    "lx": ("lux", "lx", "1"), "cd": ("candela", "cd", "1"), "Torr": ("torr", "Pa", "101325/760"),
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
_SPEED = re.compile(rf"\b(?:{'|'.join(_SPEEDS)})\b")
_SCALES = {
    word: Fraction(value)
    for words, value in (
        ("dozen", "12"), ("hundred", "100"), ("thousand", "1000"), ("lakh", "100000"), ("million 百万", "1000000"),
        ("crore", "10000000"), ("billion", "1000000000"), ("trillion", "1000000000000"), ("万", "10000"),
        ("亿", "100000000"), ("million millionen milliones millones миллион миллионов", "1000000"),
        ("milliard milliarden миллиард bn", "1000000000"), ("mille tausend mil тысяч тысячи", "1000"),
    )
    for word in words.split()
} | {word: Fraction(1, size) for word, size in PARTS.items()}  # fmt: skip


# In Chinese behind a number: or more, or less, not, or, odd. 多边形 are polygons.
_OR_SO = re.compile("^[以不或非少余几](?!边)|^多(?!边)|(?:以上|以下|以内|左右|上下|多|余)$")
# What makes a number less than it is. Where only one side has such a word, the two say different things.
_TURNS = all_of("""below under beneath behind bc bce loss debt owed deficit shortfall decrease reduction
    discount overdrawn underwater withdrawn subtracted""")
_TURNS_AT_END = all_of("off down short drop fall decline backward backwards negative")  # but 3 down jackets
_DIRECTIONS = (
    _TURNS
    | _TURNS_AT_END
    | all_of(
        """increase gain profit surplus growth north south east west up left right above clockwise counterclockwise
    anticlockwise ahead deep before after ago ad am pm"""
    )
)
# Words without a content of their own, which two units need not share.
_REMARKS = all_of(
    """of the a an in on at for with by from to each every total all and exact exactly precisely approximately approx
    about roughly around rounded long wide tall high old away apart altogether only different distinct possible point
    full remaining there are were was that who which have has had did do does he she it they his her its
    their this these those many much also as time times whole not is multiplicity"""
)
# What makes a text more than an amount: directly behind the number, and anywhere.
_CHANGES_FIRST = all_of(
    """is isn are was not to over at than between up about around nearly almost and
    as that which ish through until isn't aren't wasn't ain't"""
)
_CHANGES_AT_END = all_of("more double triple twice thrice third")  # but 3 more pages, 5 third graders
_CHANGES = all_of(
    """or no if maybe perhaps less fewer greater than least most but except wrong false incorrect either neither nor
    half when where since because pair couple score gross instead unless without plus minus yes possibly could should
    would might may cannot guess something otherwise probably likely respectively doubled tripled halved squared cubed
    factorial reciprocal inverse divided multiplied minimum maximum tens versus vs xor never none nothing unknown
    hopefully presumably supposedly apparently allegedly rather actually sorry wait hmm infinity infinite und oder ou et
    lub и или"""
)
_LETTERS = r"(?>(?:[^\W\d_]|[\u0900-\u0dff\u0e00-\u0e7f])+)"  # with the vowel signs of Indian and Thai script
_PIECE = re.compile(
    rf"(?P<word>°\s*[CF](?![a-zA-Z])|{_LETTERS}(?:'{_LETTERS})*'?|[°%€£₹¥¢₽]|\\\$|\$)"
    r"\s*(?:\^\s*\{?\s*(?P<power>-?\d)\s*\}?)?"
    r"|(?P<over>/)|(?P<open>\()|(?P<close>\))|\\cdot|[*.\-\s]|,(?=\s*[a-z])"
)
_ALL_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_REMARK = re.compile(r"^\s*[(\[]\s*([^()\[\]]*)\s*[)\]]\s*$")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit.

    Attributes:
        dimension: its base units with their powers, and the words of what is counted.
        factor: of the base units.
        scale: what its words multiply the number with: 1000 for "thousand km".
    """

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction = Fraction(1)
    scale: Fraction = Fraction(1)

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

    @property
    def turned(self) -> bool:
        """Whether a word in it makes less than nothing of the number: 7 below, a loss of 7. 20 % off are 20 %."""
        return bool(self._names & (_TURNS | _TURNS_AT_END)) and not self.percent

    @property
    def _names(self) -> set[str]:
        return {name for name, _ in self.dimension}

    @property
    def powers(self) -> set[tuple[str, int]]:
        """Its base units with their powers, without what is counted."""
        return {part for part in self.dimension if part[0] in BASES}

    def fits(self, other: Unit) -> bool:
        """Return whether the two measure the same."""
        if self.dimension == other.dimension:
            return True
        if _POUND in (self, other) and ("£", 1) in self.dimension + other.dimension:
            return True
        ours, theirs = self._names, other._names
        one_way = ours & _DIRECTIONS == theirs & _DIRECTIONS or not (ours & _DIRECTIONS and theirs & _DIRECTIONS)
        if not one_way or self.turned != other.turned:
            return False
        if "unit" in ours or "unit" in theirs or (self.percent and other.percent):
            return True
        ours, theirs = ours - _DIRECTIONS, theirs - _DIRECTIONS
        return self.powers == other.powers and (ours <= theirs or theirs <= ours)


_POUND = Unit((("g", 1),), UNITS["pound"][1])  # of money, too

_DERIVED: dict[str, tuple[dict[str, int], Fraction]] = {  # each in those below it
    "M": ({"mol": 1, "l": -1}, Fraction(1)),
    "l": ({"m": 3}, Fraction(1, 1000)),
    "area": ({"m": 2}, Fraction(1)),
    "Wb": ({"V": 1, "s": 1}, Fraction(1)),
    "T": ({"V": 1, "s": 1, "m": -2}, Fraction(1)),
    "H": ({"V": 1, "s": 1, "A": -1}, Fraction(1)),
    "F": ({"A": 1, "s": 1, "V": -1}, Fraction(1)),
    "C": ({"A": 1, "s": 1}, Fraction(1)),
    "Ω": ({"V": 1, "A": -1}, Fraction(1)),
    "V": ({"W": 1, "A": -1}, Fraction(1)),
    "W": ({"J": 1, "s": -1}, Fraction(1)),
    "Pa": ({"N": 1, "m": -2}, Fraction(1)),
    "J": ({"N": 1, "m": 1}, Fraction(1)),
    "N": ({"g": 1, "m": 1, "s": -2}, Fraction(1000)),
    "Hz": ({"s": -1}, Fraction(1)),
}
_COUNTERS = frozenset("个個只本张条件种名位棵辆支次岁块朵头道场组套颗把人つ枚匹冊円歳回")
BASES = {base for base, _ in (*UNITS.values(), *_CASED.values())}


def unit(text: str, *, spaced: bool = True) -> Unit | None:
    r"""Return the unit that a tidy text is, such as `\text{cm}^{2}`, `km/h`, `square meters`, `clips`.

    None where it is none, because a word in it changes the number, or because it is a product of letters.

    Args:
        text: the text behind a number.
        spaced: whether a blank or a command stands before it. `5m` is 5 times m.
    """
    bare = _ALL_TEXT.sub(r" \1 ", text)
    worded = bare != text
    bare = _REMARK.sub(lambda match: match[1], _spell_units(bare)).strip()
    powers: dict[str, int] = {}
    factor, scale, sign, exponent, at, group = Fraction(1), Fraction(1), 1, 1, 0, 1
    words = 0
    prose = worded or any(is_word(match["word"]) for match in _PIECE.finditer(bare) if match["word"])
    if bare.count("(") != bare.count(")"):
        return None
    while at < len(bare):
        match = _PIECE.match(bare, at)
        if match is None:
            return None
        at = match.end()
        if match["over"]:  # J/mol K has both below
            sign = group = -1
        elif match["open"]:  # J/(g K)
            group = sign
        elif match["close"]:
            sign = group = 1
        if not match["word"]:
            continue
        words += 1
        word = match["word"].replace(" ", "").replace("\\$", "$")
        lone = len(word) < 2 and word.isascii() and word.isalpha()
        if lone and not (worded or spaced):  # 5m
            return None
        small, short = _singular(word)
        following = re.search("[A-Za-z]+", bare[at:])
        kind = _kind_of_word(word, first=words == 1, following=following[0].lower() if following else "")
        if kind == "changes" or (kind == "counted" and (lone or not prose)):
            return None
        if kind == "per":
            sign = group = -1
        elif kind == "power":
            exponent = 3 if small.startswith("cu") else 2
        elif kind == "scale":
            scale *= _SCALES.get(small) or _SCALES[short]
        elif kind != "remark":
            known = (_known_unit(word) if kind == "unit" else None) or (_counted(short, kind), Fraction(1))
            power = sign * (int(match["power"]) if match["power"] else exponent)
            powers[known[0]] = powers.get(known[0], 0) + power
            if known[1] != 1:
                factor *= known[1] ** power
            sign, exponent = group, 1
    return _with_bases(powers, factor, scale) if words else None


_DEGREES_OF = re.compile(r"(?:°|\bdeg(?:rees?)?\b)\s*(?P<scale>celsius|centigrade|fahrenheit|kelvin)\b", re.IGNORECASE)
_POWER_BEHIND = re.compile(r"(?P<word>[A-Za-z]+)[ -](?P<power>squared|cubed)\b")  # meters per second squared


def _spell_units(text: str) -> str:
    """Return a unit with one spelling of speeds, of Greek letters and of what stands for "in all"."""
    text = re.sub(r"\bin (?:total|all)\b", " total ", re.sub(r"\bper cent\b", "percent", text))
    text = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", text, flags=re.IGNORECASE)
    text = re.sub(r"\\mu(?![a-z])\s*", "μ", text.replace("\\Omega", "Ω")).replace("\\AA", "Å")
    text = re.sub(r"multiplicity \d+", "total", text)
    text = _DEGREES_OF.sub(lambda match: f" °{match['scale'][0].upper()} ".replace("°K", "kelvin"), text)
    text = _POWER_BEHIND.sub(
        lambda match: (
            f"{match['word']}^{'2' if match['power'] == 'squared' else '3'}" if _known_unit(match["word"]) else match[0]
        ),
        text,
    )
    text = re.sub(r"\b(?:square|cube) root\b", "squared", re.sub(r"\bin (?:the red|debt)\b", "loss", text))
    return _SPEED.sub(lambda match: _SPEEDS[match[0]], text)


def _kind_of_word(word: str, *, first: bool, following: str) -> str:
    """Return what a word behind a number does. `following` is the next word in small letters.

    It is a "unit", what was "counted", a "scale", a "power", "per", a "remark", or it "changes" the number.
    """
    small, short = _singular(word)
    last = not following
    if word in _CASED:
        return "unit"
    if small in ("square", "sq", "squared", "cubic", "cu") and not last:
        return "power"
    if small in ("pairs", "dozens") and not last:  # pairs of shoes, dozens of eggs
        return "counted"
    if {small, short} & _CHANGES or small in NUMBER_WORDS or _OR_SO.search(word):
        return "changes"
    if (first and small in _CHANGES_FIRST) or (last and small in _CHANGES_AT_END):
        return "changes"
    if small == "in" and last:
        return "unit"
    if small in _CHANGES_AT_END:
        return "remark"
    if small in PARTS:  # 5 third graders are children, 5 thirds a number
        return "changes" if last else "counted"
    if small in _SCALES or short in _SCALES:
        return "scale"
    if small == "per" or (small in ("every", "each") and (_known_unit(following) or ("", 0))[0] in ("s", "month")):
        return "per"
    if {small, short} & _REMARKS:
        return "remark"
    if short in _TURNS_AT_END and not last and following not in _REMARKS:  # 3 down jackets, but 3 short of the goal
        return "counted"
    return "counted" if _known_unit(word) is None and short not in _DIRECTIONS else "unit"


def _singular(word: str) -> tuple[str, str]:
    small = word.lower()
    return small, small.removesuffix("s") if len(small) > 2 and not small.endswith("ss") else small


def _known_unit(word: str) -> tuple[str, Fraction] | None:
    small, short = _singular(word)
    return _CASED.get(word) or UNITS.get(small) or UNITS.get(short) or UNITS.get(small.removesuffix("es"))


def _counted(short: str, kind: str) -> str:
    """Return the name of what is counted. A Chinese one begins with its counter: 12 个苹果."""
    if kind == "counted" and short in _DIRECTIONS:
        return f"{short}-"  # down jackets go nowhere
    return short[0] if short[0] in _COUNTERS and not _OR_SO.search(short) else short


_CHANGES_IN_FRONT = (
    (_CHANGES - {"minimum", "maximum"})
    | _TURNS
    | _CHANGES_AT_END
    | {*PARTS, *_SCALES}
    | all_of(
        """not over between possible nobody think believe mistake opposite owe owes exceed chance odds risk unlikely
    hardly scarcely doubtful unclear outside excluding"""
    )
    | {*NUMBER_WORDS}
)


_REJECTS = re.compile(  # I ruled out E
    r"\b(?:rul(?:e|es|ed|ing) out|(?:eliminat|reject|discard|exclud|dismiss)(?:e|es|ed|ing|s|ion)?)\b", re.IGNORECASE
)


def changes_value(text: str) -> bool:
    """Return whether words in front of a value make it another one: less than, not, a loss of."""
    words = _singular_words(text)
    return (
        bool(words & _CHANGES_IN_FRONT)
        or _REJECTS.search(text) is not None
        or any(word.endswith("n't") for word in words)
    )


def without_asked_words(answer: str, prompt: str) -> str:
    r"""Return an answer without words that change a number, where the problem asks for what they name.

    Args:
        answer: a tidy answer: 7 \text{ dozens of eggs}, 8 \text{ years ago}.
        prompt: the problem: How many dozens of eggs, how many years ago.
    """
    asked = {word for match in _ASKED.finditer(prompt) for word in _singular_words(match[1])}
    asked &= _ASKABLE
    number = re.match(r"[^A-Za-z]*\d[^A-Za-z\\]*", answer)
    if number is None or not asked:
        return answer
    words = re.sub(
        r"(?<!\\)\b[A-Za-z']+",
        lambda match: "total" if _singular(match[0])[1] in asked else match[0],
        answer[number.end() :],
    )
    return answer[: number.end()] + words


# Such words name what is counted where a problem asks for them. "How many apples or pears" does not make 5 of 5 or 6.
_ASKABLE = all_of("fewer less more pair couple half gross until") | _TURNS | _TURNS_AT_END | {*_SCALES, *PARTS}
_ASKED = re.compile(r"(?:how (?:many|much)|number of)((?: [A-Za-z'-]+){1,6})", re.IGNORECASE)


def _singular_words(text: str) -> set[str]:
    return {_singular(word)[1] for word in re.findall("[A-Za-z']+", text)}


def _with_bases(powers: dict[str, int], factor: Fraction, scale: Fraction) -> Unit:
    """Return a unit in base units: a litre is a cubic decimetre, and a newton is a kilogram metre per square second."""
    for name, (bases, size) in _DERIVED.items():
        if name in powers:
            count = powers.pop(name)
            for base, power in bases.items():
                powers[base] = powers.get(base, 0) + power * count
            factor *= size**count
    return Unit(tuple(sorted((name, power) for name, power in powers.items() if power)), factor, scale)


_CLOCKS = ("%I:%M:%S %p", "%I:%M %p", "%I %p", "%H:%M:%S", "%H:%M")
_DATES = ("%B %d %Y", "%b %d %Y", "%d %B %Y", "%d %b %Y", "%Y-%m-%d")
_SLASHED = re.compile(r"(\d{1,2})[/.](\d{1,2})[/.](\d{4}|\d\d)")
_TIMELIKE = re.compile(r"\d\d?(?::\d\d){1,2}(?: ?[ap]m)?|\d\d? ?[ap]m")
_DAY = re.compile(r"(?:[a-z]+day )?(?:the )?((?:\d{1,2} )?[a-z]{3,9}(?: \d{1,2})?(?: \d{4})?|\d{4}-\d{1,2}-\d{1,2})")


_NUMBER_OF = {word: int(value) for value, word in enumerate(NUMBER_WORDS[:21])} | {str(i): i for i in range(1, 30)}
_TOLD = re.compile(  # half past three, quarter to 9 pm
    rf"(?:a )?(?P<minutes>half|quarter|{'|'.join(list(_NUMBER_OF)[1:])})(?: minutes?)? (?P<way>past|after|to|before) "
    rf"(?P<hour>{'|'.join(NUMBER_WORDS[1:13])}|\d|1[0-2])(?P<half> [ap]m)?"
)


def clock(text: str) -> tuple[int, int] | None:
    """Return a time of day in seconds, and 1 where its half of the day is known, else 0. None for another text."""
    words = re.sub(r" o'clock\b", ":00", _lower(text)).replace(".", "").replace(" : ", ":")
    words = {"noon": "12 pm", "midnight": "12 am"}.get(words, words)
    if (told := _TOLD.fullmatch(words)) is not None:
        minutes = {"half": 30, "quarter": 15}.get(told["minutes"]) or _NUMBER_OF[told["minutes"]]
        hour = (_NUMBER_OF[told["hour"]] - (told["way"] in ("to", "before")) - 1) % 12 + 1
        words = f"{hour}:{minutes if told['way'] in ('past', 'after') else 60 - minutes:02}{told['half'] or ''}"
    if not _TIMELIKE.fullmatch(words):
        return None
    halved = words.endswith("m")
    when = _read(re.sub(r" ?(?=[ap]m)", " ", words), _CLOCKS)
    sure = halved or (when is not None and (when.hour > 12 or when.hour == 0))
    return None if when is None else (when.hour * 3600 + when.minute * 60 + when.second, int(sure))


def date(text: str) -> tuple[int, ...] | None:
    """Return a date: 0, year, month, day; or 1, year and two numbers as written (5/6/2024). A missing year is 0."""
    if not any(map(str.isdigit, text)):
        return None
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
