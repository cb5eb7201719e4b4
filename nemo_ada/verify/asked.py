r"""What a prompt asks for, where the answer depends on it.

The same words answer one question and not another: `diverges` is No to "does it converge?", 800 cents are the 8 of "how
much do 12 apples cost?" beside a price of $2, 5 \le n \le 9 are five numbers to whoever asks for integers, and
x = (y-1)/2 is no answer to "solve for y". `in_asked_unit` and `forbids` come before a comparison, and `other_words`
says how else an answer may be read where the comparison failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from nemo_ada.verify.amounts import measured, scaled
from nemo_ada.verify.latex import all_of, compact, plain, split, tidy
from nemo_ada.verify.numbers import number
from nemo_ada.verify.units import Unit, unit
from nemo_ada.verify.words import NOTHING, Choice, meaning, read_option

_EQUALS = re.compile(r"(?:(?<![<>!\\])|(?<=\d!))=")
_JOINT = re.compile(r"[,;]|\\text\{ and \}|\band\b")
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])|\\lambda")
_MATHEMATICS = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+")


# Yes or no

_QUESTION = re.compile(
    r"(?:.*[,:;]\s*)?(?:(?:then |and |so )?(?:is|are|was|were|does|do|did|can|could|will|would|has|have)\b"
    r"|.*\b(?:whether|determine if|decide if)\b)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_NO_YES_OR_NO = re.compile(r"\b(?:or|nor|both|which|what|who|how|why|when|where|not|never|find)\b|n't\b", re.IGNORECASE)
_ENDING = re.compile(r"(?:ence|ent|ing|ed|es|ly|s|e)$")
_OPPOSITES = (
    ("converg", "diverg"), ("prim", "composit"), ("even", "odd"), ("independ", "depend"), ("invertibl", "singular"),
    ("tru", "fals"), ("increas", "decreas"), ("convex", "concav"), ("acut", "obtus"), ("parallel", "perpendicular"),
    ("parallel", "skew"), ("parallel", "intersect"), ("above", "below"),
)  # fmt: skip
_NEGATIVE = "un", "in", "im", "ir", "dis", "non", "non-"
_FORM_WORDS = all_of(
    """the a an is are was were it they this that these those both does do to be of for in on at and has have
    yes no so hence therefore thus indeed really actually necessarily linearly also"""
)
_NOUNS = all_of(
    """series sequence integral function number integer value triangle line lines vector vectors matrix statement answer
    set event events graph system relation polygon improper limit point sum"""
)
_DENIES = all_of("no not none without cannot doesn't don't isn't aren't never can't")


@lru_cache(maxsize=4096)
def _question(prompt: str) -> tuple[str, ...]:
    """Return the words of a question for yes or no, without its mathematics. None of them for another prompt."""
    last = _SENTENCE_END.split(prompt.strip())[-1]
    asked = _QUESTION.fullmatch(_MATHEMATICS.sub(" ", last))
    if asked is None or _NO_YES_OR_NO.search(asked["rest"]):
        return ()
    may = ("possible",) if re.match(r"\W*can\b", last, re.IGNORECASE) else ()
    return *may, *re.findall(r"[a-z]+(?:-[a-z]+)*", asked["rest"].lower())


def _stem(word: str) -> str:
    return _ENDING.sub("", word) if len(word) > 4 else word


def _says_yes(text: str, question: tuple[str, ...]) -> bool | None:
    """Return whether words say yes to a question, False where they say no, None where they do neither."""
    said = plain(text) if meaning(text) == NOTHING else meaning(text)
    if said in ("yes", "true", "no", "false"):
        return said in ("yes", "true")
    words = re.findall(r"[a-z]+(?:['-][a-z]+)*", said)
    if not words or "\\" in re.sub(r"\\text\s*\{", "", text) or re.search(r"[<>=]", text):
        return None
    stems = {_stem(word) for word in question}
    named: set[str] = set()
    opposed: set[str] = set()
    turned = sum(word in _DENIES for word in words)
    for word in words:
        stem = _stem(word)
        if stem in stems:
            named.add(word) if word not in _NOUNS | _FORM_WORDS or question[-2:] in (
                ("a", word),
                ("an", word),
            ) else None
        elif word not in _FORM_WORDS | _NOUNS | _DENIES and len(word) > 1:
            if not _is_opposite(stem, stems):
                return None
            opposed.add(word)
            turned += 1
    if named and opposed:  # "it converges and diverges"
        return None
    adverbs = {word for word in question if word.endswith("ly")} - _FORM_WORDS
    return turned == 0 if (named or opposed) and turned < 2 and adverbs <= set(words) else None


def _is_opposite(stem: str, stems: set[str]) -> bool:
    """Return whether one of the stems says the opposite of this one: composite and prime, dependent and independent."""
    pairs = any(stem in pair and set(pair) - {stem} & stems and stems & set(pair) for pair in _OPPOSITES)
    return pairs or any(f"{no}{stem}" in stems or stem.removeprefix(no) in stems - {stem} for no in _NEGATIVE)


# Units

_COUNT_ASKED = re.compile(
    r"how many (?:more |total |whole |full |extra |additional |fewer )?((?:square |cubic )?[a-z]+)"
    r"|\b(?:in|to|into|number of) \$?((?:square |cubic )?"
    r"(?:[a-z]{2,}(?: per [a-z]+)?|(?:km|m|cm|ft|mi)/(?:s|h|hr|min)))",
    re.IGNORECASE,
)
_MONEY_ASKED = re.compile(
    r"how much|cost|price|\bpa(?:y|id)|earn|spen[dt]|money|charge|profit|revenue|sav(?:e|ing)", re.IGNORECASE
)
_DOLLARS, _CENTS = (
    re.compile(r"\$\s?\d|dollar", re.IGNORECASE),
    re.compile(r"\bcents?\b|¢|penn(?:y|ies)", re.IGNORECASE),
)


@lru_cache(maxsize=4096)
def _asked_units(prompt: str) -> frozenset[Unit]:
    found = [unit(match[1] or match[2]) for match in _COUNT_ASKED.finditer(prompt)]
    question = _SENTENCE_END.split(prompt.strip())[-1]
    money = _MONEY_ASKED.search(question) and "how many" not in question.lower()
    if money and _DOLLARS.search(prompt) and not _CENTS.search(prompt):
        found.append(unit("dollars"))
    return frozenset(one for one in found if one is not None and one.dimension and one.known and one.scale == 1)


def in_asked_unit(prompt: str, answer: str) -> str:
    """Return an answer in the unit that a prompt asks for, without it: 8 of 800 cents, 1.5 of 90 minutes.

    As it is where it has no such unit, where the prompt asks for two, and where the prompt says the amount itself.
    """
    amount = measured(answer)
    if amount is None or amount.unit is None or amount.number is None or amount.unit.turned:
        return answer
    asked = {one for one in _asked_units(prompt) if one.powers == amount.unit.powers}
    factors = {one.factor for one in asked}
    if len(factors) != 1 or (scale := amount.unit.factor / factors.pop()) == 1:
        return answer
    digits = re.match(r"[^\d]*(\d[\d.,]*)", answer)
    if digits is not None and re.search(rf"(?<![\d.]){re.escape(digits[1])}(?![\d.]*\d)", prompt):
        return answer
    converted = scaled(amount, scale).number
    return answer if converted is None else f"\\frac{{{converted.value.numerator}}}{{{converted.value.denominator}}}"


# Choices

_LABEL = re.compile(
    r"(?:\\(?:text|mathrm|text(?:bf|rm|it))\s*\{\s*)?\(([A-J])\)\s*\}?:?|(?<![A-Za-z])([A-J])[.)](?=\s|\\|\$)"
)


@lru_cache(maxsize=4096)
def _choices(prompt: str) -> dict[str, str]:
    """Return what the letters of a prompt stand for. Nothing where they are no choices: A, B, C in order."""
    labels = list(_LABEL.finditer(prompt))
    letters = "".join(label[1] or label[2] for label in labels)
    if len(letters) < 2 or letters != "ABCDEFGHIJ"[: len(letters)]:
        return {}
    ends = [*(label.start() for label in labels[1:]), len(prompt)]
    texts = [prompt[label.end() : end].strip().split("\n")[0] for label, end in zip(labels, ends, strict=True)]
    return {letter: tidy(text.strip(" ,;$\\")) for letter, text in zip(letters, texts, strict=True)}


def _of_choices(prompt: str, wanted: str, given: str) -> Iterator[tuple[str, str]]:
    """Yield the content of a choice in place of its letter."""
    choices = _choices(prompt)
    letters = [re.sub(r"\\text\s*\{(.*)\}", r"\1", text).strip(" ().") for text in (wanted, given)]
    ours, theirs = (choices.get(letter, "") for letter in letters)
    contents = [compact(content) for content in choices.values()]
    if ours and not theirs and contents.count(compact(ours)) == 1:
        yield ours, given
    if theirs and not ours and compact(wanted) in contents:
        yield wanted, theirs


# Mathematics

_FOR_WHICH_VARIABLE = re.compile(
    r"\b(?:solve|rearrange|make)\b[^.?!]{0,80}?\b(?:for|express) \$?\\?\(?(?P<name>[A-Za-z])\\?\)?\$?(?=$|[\s.,;:?!])"
    r"|\bmake \$?(?P<subject>[A-Za-z])\$? the subject"
    r"|\b(?:express|write) \$?(?P<of>[A-Za-z])\$? (?:in terms|as a function)",
    re.IGNORECASE,
)
_FORM = re.compile(
    r"(?:in (?:the )?(?:\w+ ){0,2}form(?: of)?|(?:write|express)\b[^.?!]{0,60} as) \$([^$]+)\$", re.IGNORECASE
)
_SYMBOL = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_FOR_A_POLYNOMIAL = re.compile(r"\b(?:polynomial|quadratic|cubic|quartic|equation)\b", re.IGNORECASE)
_FOR_ANOTHER = re.compile(
    r"\b(?:solve|factor\w*|simplif\w*|expand|evaluate|compute|roots? of|solutions?)\b", re.IGNORECASE
)
_INTERCEPT = re.compile(r"\b\$?([xy])\$?-intercept")
_ON_AXIS = {
    "x": re.compile(r"\(\s*([^(),]+?)\s*,\s*0\s*\)|x\s*="),
    "y": re.compile(r"\(\s*0\s*,\s*([^(),]+?)\s*\)|y\s*="),
}
_REQUEST = re.compile(
    r"\b(?:find|compute|calculate|evaluate|determine|simplify|expand|factor\w*|what is|write|differentiate)\b"
    r"(?P<rest>[^?!]*)",
    re.IGNORECASE,
)


def forbids(prompt: str, wanted: str, given: str) -> bool:
    """Return whether a prompt asks for another form than an answer has: `x = (y-1)/2` does not solve for y."""
    if _other_content(prompt, wanted, given):
        return True
    sides = split(given, _EQUALS)[0]
    if len(sides) < 2:
        return False
    if "=" not in wanted:  # what the prompt says is no answer
        states = len(sides[0]) > 1 and number(wanted) is not None and not _choices(prompt)
        return states and _bare(given) in _mathematics(prompt)
    match = _FOR_WHICH_VARIABLE.search(prompt)
    name = match and (match["name"] or match["subject"] or match["of"])
    if not name or "," in given or split(wanted, _EQUALS)[0][0] != name:
        return False
    alone = re.compile(rf"{name}(?:_\{{?\w+\}}?)?(?:\([^()]*\))?")
    bare = [re.sub(r"\\text\s*\{[^{}]*\}|\\[A-Za-z]+", " ", side).strip() for side in sides]
    return any(name in side and not alone.fullmatch(side) for side in bare)


def _other_content(prompt: str, wanted: str, given: str) -> bool:
    """Return whether an answer names the right letter with another choice's number, or another choice's letter."""
    content, said = _choices(prompt).get(wanted, ""), read_option(given)
    if not content or not isinstance(said, Choice) or not said.meaning:
        return False
    if said.letter != wanted:
        return True
    ours, theirs = number(content), number(said.meaning)
    return ours is not None and theirs is not None and not ours.equals(theirs)


def other_words(prompt: str, wanted: str, given: str) -> Iterator[tuple[str, str]]:
    """Yield what else a reference and an answer may say to a prompt, in pairs that are compared in their place."""
    if question := _question(prompt):
        ours, theirs = _says_yes(wanted, question), _says_yes(given, question)
        if ours is not None and ours is theirs:
            yield "yes", "yes"
    yield from _of_choices(prompt, wanted, given)
    yield from _short_names(prompt, wanted, given)
    if (axis := _INTERCEPT.search(prompt)) is not None:
        point = _ON_AXIS[axis[1]]
        yield point.sub(r"\1", wanted), point.sub(r"\1", given)
    sides = split(given, _EQUALS)[0]
    if not _FOR_ANOTHER.search(prompt) and _FOR_A_POLYNOMIAL.search(prompt) and _LETTER.search(wanted):
        if sides[-1] == "0" and "=" not in wanted:
            yield wanted, given.rpartition("=")[0].strip()
        elif len(sides) == 1 and compact(wanted).endswith("=0"):
            yield wanted.rpartition("=")[0].strip(), given
    if len(sides) == 2 and sides[0] == "x" and "inverse" in prompt and set(_LETTER.findall(sides[1])) == {"y"}:
        yield wanted, re.sub(r"(?<![\\A-Za-z])y(?![A-Za-z])", "x", sides[1])
    if len(sides) > 1 and "=" not in wanted and len(compact(sides[0])) > 1 and _is_asked(prompt, sides[0], given):
        yield wanted, sides[-1]
    if (form := _FORM.search(prompt)) is not None and "=" in given and number(wanted) is None:
        values = dict(item.split("=") for item in map(compact, split(given, _JOINT)[0]) if item.count("=") == 1)
        letters = set(_SYMBOL.findall(tidy(form[1])))
        if len(values) > 1 and values.keys() <= letters and "x" not in values:
            yield (
                wanted,
                _SYMBOL.sub(lambda match: f"({values[match[0]]})" if match[0] in values else match[0], tidy(form[1])),
            )


def _mathematics(prompt: str) -> set[str]:
    """Return the formulas of a prompt, without blanks."""
    return {_bare(next(filter(None, match))) for match in _MATHEMATICS.findall(prompt)}


def _bare(text: str) -> str:
    return tidy(text.strip(" .$")).replace(" ", "")


def _is_asked(prompt: str, name: str, equation: str) -> bool:
    """Return whether a prompt asks for what the left side of an equation writes, and does not state the equation."""
    requests = [request["rest"] for request in _REQUEST.finditer(prompt)]
    requested = {*map(_bare, requests), *(text for request in requests for text in _mathematics(request))}
    return _bare(name) in requested and _bare(equation) not in _mathematics(prompt)


# Names

_WHO = re.compile(r"\b(?:who|whose|whom|name)\b", re.IGNORECASE)
_FULL_NAME = re.compile(r"(?:[A-Z][\w'.-]+ )+(?P<last>[A-Z][\w'-]{2,})")
_TITLE = r"(?:(?:Mr|Mrs|Ms|Miss|Dr|Sir|Prof|Professor|President|King|Queen|Captain|General)\.? )?"


def _short_names(prompt: str, wanted: str, given: str) -> Iterator[tuple[str, str]]:
    """Yield the full name for a surname, where a prompt asks who and knows nobody else of this name."""
    ours, theirs = (re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip() for text in (wanted, given))
    full = _FULL_NAME.fullmatch(ours)
    if full is None or not _WHO.search(prompt):
        return
    last = re.escape(full["last"])
    another = re.search(rf"\b(?!{re.escape(ours.split()[0])}\b)[A-Z]\w+ {last}\b", prompt)
    if another is None and re.fullmatch(rf"{_TITLE}(?:{last}|{re.escape(ours)})", theirs):
        yield wanted, wanted


# Integers

_INTEGERS_ASKED = re.compile(
    r"\b(?P<sign>positive |non-?negative |negative )?(?P<kind>integers?|natural numbers?|whole numbers?)\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def least_integer(prompt: str) -> int | None:
    """Return the least integer that a prompt asks for, -10^9 where it asks for any. None where it asks for none."""
    last = _INTEGERS_ASKED.search(prompt)
    if last is None or re.search(r"\breal\b", prompt, re.IGNORECASE):
        return None
    sign, kind = (last["sign"] or "").lower().strip(), last["kind"].lower()
    if sign == "positive" or kind.startswith("natural"):
        return 1
    return 0 if sign.startswith("non") or kind.startswith("whole") else -(10**9)
