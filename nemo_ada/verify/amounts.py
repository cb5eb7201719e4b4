r"""Amounts: a number or an expression with its unit, in signs or in words: 12 \text{ cm}, \$5, 5 ft 6 in, a dozen."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from nemo_ada.verify.latex import compact, split
from nemo_ada.verify.numbers import Number, number, spoken
from nemo_ada.verify.units import BASES, Unit, unit

AND_OR = r"\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
COMMA = re.compile(rf"(?<![{{\\])[,;&](?!\}})|\\text\{{\s*[,;]\s*\}}|{AND_OR}|\\\\|\\iff(?![a-z])")
_UNIT_AT_END = re.compile(
    r"(?P<value>.*?[\w)}\].!])(?P<blank>\s*)(?P<unit>/?\s*(?:\\text\s*\{[^{}]*\}|\\\$|[°%€£₹¥¢₽]|\\Omega|\\mu\s*\\text|(?<![A-Za-z])[^\x00-\x7f])"
    r"(?:[^0-9\\]|\^\{?-?\d\}?|\\text\s*\{[^{}]*\}|\\\$|\\cdot)*)",
    re.DOTALL,
)
_WORD_AT_END = re.compile(
    r"(?P<value>.*?[\d)}\]i])(?P<blank>\s*)(?P<unit>\(?[^\W\d_](?:[^\W\d_]|[. /'-])*(?:\^\{?\d\}?)?\)?)", re.DOTALL
)
_AND_PART = re.compile(r"(?:\\text\s*\{)?\s*and ((?:a |an |one |three )?[a-z]+)\s*\}?")
_ORDINAL = re.compile(r"(?P<number>-?\d+)\s*(?:\^\s*)?\{?\s*(?:\\text\s*\{\s*)?(?:st|nd|rd|th)\s*\}?\s*\}?")
_MONEY = re.compile(
    r"(?P<sign>-?)\s*(?:\\text\s*\{\s*)?(?:US|A|C)?(?P<unit>\\\$|[€£₹¥]|(?:USD|EUR|GBP|INR|Rs)(?![a-z])\.?)\s*\}?"
    r"\s*(?P<value>[^\\$€£₹¥\s+-].*)",
    re.DOTALL,
)
_COMPOUND = re.compile(
    r"(?P<value>\d[\d.,]*)\s*(?P<unit>\\text\s*\{\s*[a-zA-Z]+(?: and)?\s*\}|[a-zA-Z]{1,8}|\\\$|°)"
    r"[\s,]*(?:\\text\s*\{\s*and\s*\}|and)?\s*"
)
_SAID_TWICE = re.compile(
    r"(?P<value>[^()]*[\w}])\s*(?:\\text\s*\{\s*)?\(\s*(?:\\text\s*\{\s*)?"
    r"(?:(?:i\.e\.|that is|(?:or )?equivalently|or),?(?=[\s}])|=)?\s*\}?\s*"
    r"(?P<again>[^(){}]+|\\frac[^()]*)\s*\}?\s*\)\s*\}?"
)
_UNIT_TEXT = r"(?:\\text\s*\{[^{}]*\}(?:\s*\^\s*\{?-?\d\}?)?|°\s*(?:[CF](?![a-zA-Z])|\\text\s*\{\s*[CF]\s*\}))"
_UNIT_TEXTS = rf"{_UNIT_TEXT}(?:\s*(?:\\cdot)?\s*{_UNIT_TEXT})*"
_UNIT_FRACTION = re.compile(rf"\\frac\s*\{{\s*({_UNIT_TEXTS})\s*\}}\s*\{{\s*({_UNIT_TEXTS})\s*\}}")
_PERCENT = re.compile(r"(.*\d)\s*(?:\\?%|percent)")
_POWERS = {"k": 3, "m": 6, "mm": 6, "mn": 6, "mil": 6, "mio": 6, "b": 9, "bn": 9, "bil": 9, "t": 12, "tn": 12}
_SIZED = re.compile(
    r"(?P<money>\\\$|[€£₹¥])?\s*(?P<value>-?\d[\d.,]*)\s*(?:\\text\s*\{\s*)?(?P<size>k|K|MM|M|mn|mio|mil|bn|bil|B|tn|T)"
    r"(?![a-z])\.?\s*\}?\s*(?P<unit>\\text\s*\{\s*[a-z]+\s*\}|[a-z]{3,}|\\\$|[€£])?\s*\}?"
)
_AND = re.compile(r" and(?=\s*\}?$)")
_FUNCTION = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_NO_AMOUNT = re.compile(r"\\(?:ne|le|ge|in|mid|cup|cap)(?![a-z])|[<>=]")
_VALUED = re.compile(r"\d|\\pi|\\sqrt")
_SPELT = re.compile(r"(?:\\text\s*\{)?\s*[A-Za-z]{1,9}[ \-}]?")
_MINUS_WORD = re.compile(r"(?:negative|minus) ", re.IGNORECASE)
RESIDUE = re.compile(r"(-?\d{1,9})\s*(?:\\pmod\{|\\?mod\s*\{?|\\text\s*\{\s*mod(?:ulo)?\s*\}\s*)(\d{1,9})\}?")
_PROGRESSION = re.compile(r"(?P<step>\d{1,9})[kmnt](?P<rest>[+-]\d{1,9})|(?P<first>-?\d{1,9})\+(?P<then>\d{1,9})[kmnt]")


@dataclass(frozen=True, slots=True)
class Amount:
    """A number or an expression. `number` is None for an expression, `unit` where none is written."""

    text: str
    number: Number | None = None
    unit: Unit | None = None


def said(text: str) -> Amount | None:
    """An amount whose number is in words: seven, two and a half, twenty-one people, a dozen."""
    if len(text) > 80 or not _SPELT.match(text):
        return None
    words = " ".join(re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).split())
    sign = _MINUS_WORD.match(words)
    words = words[sign.end() :] if sign else words
    words = re.sub(r"^a(?= (?:dozen|hundred|thousand|million|billion))", "one", words)
    read, rest = spoken(words) or (None, "")
    if read is None:
        return None
    if sign:
        read, words = Number(-read.value, read.kind), f"-({words})"
    measure = unit(rest) if rest.strip() else Unit(())
    return None if measure is None else _amount(words, read, measure)


def _amount(text: str, read: Number | None, measure: Unit) -> Amount:
    """Return a value with its unit. Words that scale belong to the value."""
    if measure.scale != 1:
        text = f"({text})\\cdot\\frac{{{measure.scale.numerator}}}{{{measure.scale.denominator}}}"
        if read is not None:
            value = read.value * measure.scale
            read = Number(value, "integer" if value.denominator == 1 else read.kind)
        measure = replace(measure, scale=Fraction(1))
    return Amount(text, read, measure if measure.dimension else None)


def sized(text: str) -> Amount | None:
    r"""Return a number with the letter of its size, such as 5k, 2\text{M} and \$1.5B. None for another text."""
    match = _SIZED.fullmatch(text)
    read = None if match is None else number(match["value"])
    if match is None or read is None:
        return None
    value = read.value * 10 ** _POWERS[match["size"].lower()]
    kind = "integer" if value.denominator == 1 else "decimal"
    money = unit(match["money"]) if match["money"] else unit(match["unit"]) if match["unit"] else None
    return Amount(f"({match['value']})\\cdot 10^{{{_POWERS[match['size'].lower()]}}}", Number(value, kind), money)


def measured(text: str) -> Amount | None:
    r"""Return an amount with its unit: 12 \text{ cm}, \$5, 28%, 90°, 5 ft 6 in. None where there is no unit."""
    text = _UNIT_FRACTION.sub(r"\1/(\2)", text.replace("{}°", "°"))
    if (match := _ORDINAL.fullmatch(text)) is not None:
        return Amount(match["number"], number(match["number"]))
    if (match := _MONEY.fullmatch(text)) is not None:
        if (big := sized(text)) is not None:
            return big
        value, money = match["sign"] + match["value"].strip(), unit(match["unit"])
        scaled = measured(value)
        if money is None:
            return None
        if scaled is not None:  # $3 million, $5 per hour
            others = () if scaled.unit is None else scaled.unit.dimension
            if any(power > 0 and name in BASES for name, power in others) and scaled.unit != money:
                return None
            per = tuple((f"per {name}", 1) for name, power in others if power < 0)
            turned = others if scaled.unit is not None and scaled.unit.turned else ()  # $5 loss
            return replace(scaled, unit=Unit((*money.dimension, *per, *turned), money.factor))
        read = number(value)
        return Amount(value, read, money) if read is not None or not _several(value) else None
    if (added := _compound(text)) is not None:
        return added
    if (match := _SAID_TWICE.fullmatch(text)) is not None:  # 10 (ten), \\frac12 (0.5)
        first = measured(match["value"]) or Amount(match["value"], number(match["value"]))
        again = _value_in_signs_or_words(match["again"])
        if first.number is not None and again is not None:
            return first if first.number.value == again else None
    for pattern in (_UNIT_AT_END, _WORD_AT_END):
        match = pattern.fullmatch(text)
        if match is None:
            continue
        value, measure = match["value"].strip(), unit(match["unit"], spaced=bool(match["blank"]))
        read = number(value)
        if read is not None and (more := _AND_PART.fullmatch(match["unit"])) and (part := spoken(more[1])):
            return Amount(text, Number(read.value + part[0].value, "quotient"))  # 5 and a half
        if measure is None or (measure.angle and _FUNCTION.search(value)):  # sin 30°
            continue
        valued = read is not None or _VALUED.search(value) or (measure.known and "\\text" in match["unit"])
        if valued and (read is not None or not (_several(value) or _NO_AMOUNT.search(value))):
            return _amount(value.replace("°", "") if measure.angle else value, read, measure)
    return None


def _value_in_signs_or_words(text: str) -> Fraction | None:
    if (share := _PERCENT.fullmatch(text.strip())) is not None and (read := number(share[1])) is not None:
        return read.value / 100
    read = number(text) or next((one for one, rest in [spoken(text) or (None, "rest")] if not rest.strip()), None)
    return None if read is None else read.value


def _several(text: str) -> bool:
    return len(split(text, COMMA)[0]) > 1


def _compound(text: str) -> Amount | None:
    """5 ft 6 in: amounts of one dimension in smaller and smaller units, added."""
    at, total, base = 0, Fraction(0), None
    factors: list[Fraction] = []
    while at < len(text):
        match = _COMPOUND.match(text, at)
        measure, read = (
            (None, None) if match is None else (unit(_AND.sub("", match["unit"])), number(match["value"].rstrip(",")))
        )
        if match is None or measure is None or read is None or not measure.known or measure.scale != 1:
            return None
        if factors and (measure.dimension != base or measure.factor >= factors[-1]):  # 60°, 60° is a list
            return None
        base, total, at = measure.dimension, total + read.value * measure.factor, match.end()
        factors.append(measure.factor)
    if len(factors) < 2 or base is None:
        return None
    kind = "integer" if total.denominator == 1 else "quotient"
    return Amount(f"\\frac{{{total.numerator}}}{{{total.denominator}}}", Number(total, kind), Unit(base))


def same_residue(wanted: Amount, given: Amount) -> bool | None:
    """Return whether two residues are one: -1 and 2 modulo 3. None where neither side is one.

    A modulus that only one side writes is no difference, as with a unit.
    """
    if "mod" not in wanted.text and "mod" not in given.text:
        return None
    ours, theirs = _residue(wanted.text), _residue(given.text)
    if ours is not None and theirs is not None:
        return ours[1] == theirs[1] > 0 and (ours[0] - theirs[0]) % ours[1] == 0
    lone, other = (ours, given) if ours is not None else (theirs, wanted)
    if lone is None or other.number is None or lone[1] == 0:
        return None
    return other.number.value == lone[0] % lone[1]


def _residue(text: str) -> tuple[int, int] | None:
    r"""Return the residue and the modulus of 3 \pmod{7} and of 7k+3. None for another text."""
    if (match := RESIDUE.fullmatch(text)) is not None:
        return int(match[1]), int(match[2])
    match = _PROGRESSION.fullmatch(compact(text))
    return None if match is None else (int(match["rest"] or match["first"]), int(match["step"] or match["then"]))


def scaled(amount: Amount, scale: Fraction) -> Amount:
    """Return an amount without its unit, times what converts it into another one."""
    if scale == 1:
        return amount
    text = f"({amount.text})\\cdot\\frac{{{scale.numerator}}}{{{scale.denominator}}}"
    if amount.number is None:
        return Amount(text)
    value, kind = amount.number.value * scale, amount.number.kind
    if kind != "decimal":
        kind = "integer" if value.denominator == 1 else "quotient"
    return Amount(text, Number(value, kind))


def hundredth(amount: Amount) -> Amount:
    """Return 0.28 of 28 %, and an amount without a unit as it is."""
    return scaled(amount, Fraction(1, 100)) if amount.unit is not None else amount


def radians(amount: Amount) -> Amount:
    """Return degrees in radians, and another amount as it is."""
    if amount.unit is None or not amount.unit.angle:
        return amount
    return Amount(f"({amount.text})\\cdot\\frac{{\\pi}}{{180}}")
