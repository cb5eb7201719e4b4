r"""What a sentence states: 14 of "There are 14 students", isosceles of "The triangle is isosceles".

A sentence states one value. Whatever its words are, they say of what it is the value, unless one of them makes it
another one: not, less than, a loss of (`units.changes_value`). So no list of verbs or nouns is needed to read it.
"""

from __future__ import annotations

import re
from fractions import Fraction

from nemo_ada.verify.latex import all_of, is_word
from nemo_ada.verify.numbers import close, number
from nemo_ada.verify.units import changes_value

ALL_TEXT = re.compile(r"\\text\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_ABOUT_WORD = (
    r"(?:[Aa]bout|[Aa]pproximately|[Aa]pprox\.?|[Rr]oughly|[Nn]early|[Aa]round|[Ee]xactly|[Pp]recisely)(?: equal to)?"
)
_ABOUT = rf"(?:\\(?:approx|sim)(?![a-z])|\\text\s*\{{\s*{_ABOUT_WORD}\s*\}}|{_ABOUT_WORD} )\s*"
_ANSWER_IS = (
    r"=|\\therefore(?![a-z])|(?:\\text\s*\{\s*)?both\s*\}?\s+(?=.*\band\b)|(?:\\text\s*\{\s*)?(?:[Tt]herefore|[Tt]hus|[Hh]ence|[Ss]o),?\s*\}?\s*"
    r"|(?:\\text\s*\{\s*)?(?:[Tt]he )?(?:[Ff]inal |[Cc]orrect )?"
    r"(?:[Aa]nswer|[Oo]ption|[Cc]hoice|[Vv]alue|[Rr]esult)(?: is|\s*:)\s*:?\s*\}?\s*"
)
_ALL_WITH = (  # all a > 1
    r"(?:\\text\s*\{\s*)?(?:[Aa]ll|[Aa]ny|[Ee]very)(?: real)?(?: values? of| numbers?)?\s*\}?\s*"
    r"(?=[A-Za-z]\s*(?:[<>]|\\(?:le|ge|ne|in)(?![a-z])))"
)
_WHEN = r"(?:[Oo]n|[Ii]n|[Aa]t) (?:the year )?(?=\d|[A-Z][a-z]{2})|an? (?=\d[\d.]*\s*(?:%|percent))|[Oo]nly (?=\S)"
_PREFIX = re.compile(rf"{_ABOUT}|{_ALL_WITH}|{_WHEN}|{_ANSWER_IS}|[Ii]t(?: is|'s) (?:an? |the )?(?![\d-])")
# A label in front of a value: Total cost: 36. A letter with a colon is a choice, and AB:CD a ratio.
_LABELLED = re.compile(
    r"(?:\\text\s*\{\s*)?(?P<label>(?![A-Z]{1,3}\s*:)[^\W\d_][^\W\d_]+(?:[ '-][^\W\d_]+){0,5})\s*\}?\s*:"
    r"\s*\}?\s*(?=[-\d\\.(\[$])"
    r"|(?:答案|答え|答|正解)\s*(?:是|为|為|は|:)?\s*"
)
_VALUE_STARTS = r"[-\d.]|[(\[](?=[^()\[\]]*,)|\\\{|\\(?:\$|frac|sqrt|pi|binom|infty)(?![a-z])|[€£₹¥]"
_LETTER_LAST = re.compile(r"\b[A-J]$")  # Option D: 8
_WORDS_IN_FRONT = re.compile(
    r"(?P<label>(?>\\text\s*\{[^{}\\\d()\[\]:;?!]*\}|[^\W\d_]+(?:['-][^\W\d_]+)*|\s|,(?=\s*[a-z]))+)"
    rf"(?<=[\s}}]|[^\x00-\x7f])(?={_VALUE_STARTS})"
)
_MAX_WORDS = 20  # in front of a value
_DAY_IN_FRONT = re.compile(r"\b(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-z]*\.?\s*$", re.IGNORECASE)
# What makes something else of a number that it stands directly in front of: the first 5, step 5, a multiple of 5.
_NUMBERS = all_of(
    """first last before next every each any some another other step part case question problem option choice equation
    statement chapter page figure no number until from mod modulo choose base times degree order type
    max min gcd lcm det sup function above beyond past within upwards almost"""
)
_SUPPOSES = all_of("assuming depending provided supposing given using via was previously originally before")
_OPERATION_OF = re.compile(
    r"\b(?:roots?|squares?|cubes?|multiples?|factors?|divisors?|powers?|groups?|sets?|sums?|products?|differences?|"
    r"logarithms?|sines?|cosines?|tangents?|choices?|each|none|any|all|out|instead|minute|hour|upwards?|excess) of\s*$"
    r"|\b(?:times|divided|divisible|multiplied|dividing|followed|preceded|raised|modulo|indexed) by\s*$"
    r"|\b(?:up|close|next|prior|before|near|due) to\s*$|\bas (?:many|much|few|little) as\s*$",
    re.IGNORECASE,
)
_ADDS_UP_TO = re.compile(r"\b(?:adds?|sums?|comes?|amounts?) up to\s*$", re.IGNORECASE)
_MINUS_WORD = re.compile(r"\b(?:minus|negative)$", re.IGNORECASE)
# 5 is the answer, 5 is correct. Not: 5 is one of them, 5 is too small.
_IS_THE = re.compile(
    r"(?<=[\w)}\]])\s*(?:\\text\s*\{\s*)?(?:is|are|was|were) (?:the|our|my|your|its|his|her|correct|right|true)\b"
    r"(?P<label>[^\d{}\\]*)\}?$"
)
_RELATIONS = tuple(  # x is at least 5, in signs
    (
        re.compile(
            rf"(?:[Aa]ll |[Aa]ny |[Ee]very )?(?P<name>[A-Za-z]|(?:real )?(?:numbers?|values?)) "
            rf"(?:(?:is|are|must be) )?(?:{words}) (?P<value>.+)"
        ),
        sign,
    )
    for words, sign in (
        ("at least|(?:greater|larger|more|bigger) than or equal to|no less than", r"\ge"),
        ("at most|(?:less|smaller) than or equal to|no (?:greater|more|larger) than", r"\le"),
        ("(?:strictly )?(?:greater|larger|more|bigger) than", ">"),
        ("(?:strictly )?(?:less|smaller) than", "<"),
        ("not equal to|different from", r"\ne"),
    )
)
_INCLUSIVE = re.compile(r"(?<=[\])])\s*\(?\s*(?:\\text\s*\{)?\s*\(?(?:inclusive|included)\)?\s*\}?\s*\)?$")
_REMARK_BEHIND = re.compile(  # y = 2x + 3 (the line through both)
    r"(?<=[\w)}\]])\s*(?:\s|\\text\s*\{\s*)\((?P<label>[A-Za-z][A-Za-z' ,-]*)\)\s*\}?$"
)
_FROM_TO = re.compile(r"[Ff]rom (?P<low>-?[\d.]+|-?\\\w+) to (?P<high>-?[\d.]+|-?\\\w+)")
_BECAUSE = re.compile(r"(?<=[\w)}\]]),?\s*(?:\\text\s*\{,?\s*)?\(?(?:because|since)\b.*$", re.DOTALL)
_NEAR = re.compile(  # \frac{7}{3} (about 2.33)
    r"\s*(?:\\text\s*\{\s*)?\((?:about|approximately|approx\.?|roughly|\\approx)\s*(?P<value>-?\d[\d.]*)\)\s*\}?$"
)
_ROUNDED = Fraction(1, 20)
_ACIDITY = re.compile("p(?:H|OH|K[abw]?)")
_ONLY = re.compile(r"(?<=\w),?\s*(?:\\text\s*\{\s*only\s*\}| only)$|(?<=,)(?P<last>[^,]+),? respectively$")
_HOLDS_FOR = re.compile(  # \frac{x+1}{x-2}, x \ne 2
    r"(?P<value>(?:[^,<>\\]|\\(?!in(?![a-z])|ne(?![a-z])|le(?![a-z])|ge(?![a-z])))+?),?"
    r"\s*(?:\\text\s*\{,?\s*(?:for|where|with|if)\s*\}|,|\s\()\s*(?P<name>[a-z])\s*\\ne\s*-?[\w.]+(?:\s*,\s*-?[\w.]+)*\s*\)?"
)
_CONCLUSION = re.compile(  # 12 each, so 36 in total
    r"(?P<front>.*[\w)}\]])\s*[,;]?\s*(?P<opened>\\text\s*\{)?\s*[,;]?\s*\b(?:(?:and )?(?:so|therefore|thus|hence)"
    r"(?! (?:far|that|many|much|on|forth)\b)|which (?:gives|makes|means)|giving|making|for an? (?:grand )?total of)\b"
    r",?\s*"
    r"(?P<closed>\})?\s*(?P<rest>[^\s}].*)",
    re.DOTALL,
)
_VALUED = re.compile(r"\d|\\(?:frac|sqrt|pi)(?![a-z])")
_VALUE = re.compile(r"\d|\\(?:frac|sqrt|pi)(?![a-z])|^\(?[A-J]\)?$")
_BELOW_ZERO = re.compile(r"(?P<value>\d[\d.]*)(?P<unit>.*?)\s*\bbelow (?:zero|0)(?P<end>\s*\}?)")
_IS = re.compile(
    r"(?P<subject>.+?) (?:is|are|was|were|be|remains?|becomes?|represents?|describes?|forms?|falls on) "
    r"(?P<predicate>.+)"
)


def without_wording(text: str) -> str:
    """Return what a text states as a value, without the words around it: the answer is 5, Maria has 5, negative 5."""
    if (inner := ALL_TEXT.fullmatch(text)) is not None:
        value = without_wording(inner[1].strip())
        return text if value == inner[1].strip() else f"\\text{{{value}}}"
    text = _concluded(text)
    while (shorter := _without_front(text)) != text:
        text = shorter
    if (why := _BECAUSE.search(text)) is not None and _VALUE.search(text[: why.start()]):
        text = text[: why.start()]
        text += "}" * (text.count("{") > text.count("}"))
    if (near := _NEAR.search(text)) is not None and (exact := number(text[: near.start()].strip())) is not None:
        rounded = number(near["value"])
        text = text[: near.start()] if rounded is not None and close(exact.value, rounded.value, _ROUNDED) else text
    text = _ONLY.sub(lambda match: match["last"] or "", text)
    held = _HOLDS_FOR.fullmatch(text)
    if held is not None and held["name"] in held["value"]:
        text = held["value"]
    behind = _IS_THE.search(text)
    if behind is not None and _VALUE.search(text[: behind.start()]) and not changes_value(behind["label"]):
        text = text[: behind.start()]
    remark = _REMARK_BEHIND.search(text)
    if remark is not None and _VALUED.search(text[: remark.start()]) and _only_remarks(remark["label"]):
        text = text[: remark.start()]
    if (cold := _BELOW_ZERO.fullmatch(text)) is not None:
        text = f"-{cold['value']}{cold['unit']}{cold['end']}"
    for relation, sign in _RELATIONS:
        if (found := relation.fullmatch(text)) is not None:
            return f"{found['name'] if len(found['name']) == 1 else 'x'} {sign} {found['value']}"
    if (reach := _FROM_TO.fullmatch(text)) is not None:
        return f"[{reach['low']},{reach['high']}]"
    return _INCLUSIVE.sub("", text)


def _concluded(text: str) -> str:
    """Return what follows from the rest of a text: 36 of "12 each, so 36 in total". The text where nothing does."""
    if (found := _CONCLUSION.fullmatch(text)) is None:
        return text
    front = ALL_TEXT.sub(r" \1 ", found["front"] + "}" * (found["front"].count("{") > found["front"].count("}")))
    words = re.findall(r"(?<![\\A-Za-z])[A-Za-z]+", front)
    if changes_value(" ".join(words)) or not (
        any(map(is_word, words)) or "=" in front or "answer is" in found["rest"]
    ):  # 5, so 7 is no reasoning
        return text
    inside = found["front"].count("{") > found["front"].count("}") or found["opened"]
    if "=" in front and "\\text" not in found["front"] and (not inside or found["closed"]):
        return rf"{found['front']} \Rightarrow {found['rest']}"  # x = 5 does not follow from x = 7
    return f"\\text{{{found['rest']}" if inside and not found["closed"] else found["rest"]


def _without_front(text: str) -> str:
    """Return a text without words in front of its value, or as it is where they make another value of it."""
    if (front := _WORDS_IN_FRONT.match(text)) is not None:
        words = " ".join(ALL_TEXT.sub(r" \1 ", front["label"]).split())
        rest, minus = text[front.end() :], _MINUS_WORD.search(words)
        if minus is not None and (minus.start() == 0 or _tells_what(words[: minus.start()].rstrip())):
            return f"-{rest}"
        if minus is None and _tells_what(words):
            return rest
    if (label := _LABELLED.match(text)) is not None:
        named = label["label"] or ""
        return text if changes_value(named) or _LETTER_LAST.search(named) else text[label.end() :]
    prefix = _PREFIX.match(text)
    return text if prefix is None else text[prefix.end() :]


def stated(words: str) -> str:
    """Return what words say of their subject: isosceles of "the triangle is isosceles". The words where they do not."""
    found = _IS.fullmatch(re.sub(r"(?<=they|that)'(?:re|s) |(?<=it)'s ", " is ", words))
    return words if found is None or changes_value(found["subject"]) else found["predicate"]


def _only_remarks(words: str) -> bool:
    """Return whether words in brackets behind a value leave it as it is: 2x + 3 (the line through both)."""
    each = words.lower().split()
    return any(is_word(word) for word in each) and not (changes_value(words.lower()) or set(each) & _SUPPOSES)


def _tells_what(words: str) -> bool:
    """Return whether words in front of a value only say what has it."""
    each = words.split()
    if not words.isascii():
        return not re.search("不|非|没|或|至少|至多|超过|少于|多于|大于|小于|除", words)
    if not each or len(each) > _MAX_WORDS or (len(each) == 1 and words[0].isupper()):  # Vendor 2 is a name
        return False
    if not any(is_word(word) or word in ("is", "are", "has") or _ACIDITY.fullmatch(word) for word in each):
        return False
    if _OPERATION_OF.search(words) and not _ADDS_UP_TO.search(words):
        return False
    return not (each[-1].lower() in _NUMBERS or _DAY_IN_FRONT.search(words) or changes_value(words))
