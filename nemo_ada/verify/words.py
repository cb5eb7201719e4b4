r"""Words and choices: what an answer is that holds no number. Red, no solution, an odd function, (C), C. 13."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from nemo_ada.verify.latex import all_of, is_word, plain
from nemo_ada.verify.numbers import CHOSEN, number
from nemo_ada.verify.sentences import stated
from nemo_ada.verify.units import changes_value


@dataclass(frozen=True, slots=True)
class Text:
    r"""Words, in one spelling.

    Attributes:
        words: the words.
        shown: with their capitals.
        letters: the same, where its letters may stand for something: AA, \text{Co}.
    """

    words: str
    shown: str = ""
    letters: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The letter of a choice, and what it stands for where that is written: (C) 13."""

    letter: str
    meaning: str


_OPTION = re.compile(
    r"(?:\\text\s*\{)?\s*(?:(?P<kind>(?:[Aa]nswer )?[A-Za-z][a-z]{2,}|选项?)\s*(?:is\s)?:?\s*)?"
    r"(?:\(\s*(?:\\text\s*\{)?\s*(?P<round>[A-Za-z])\s*\}?\s*\)|(?P<dotted>[A-J])(?:[).]|:(?=[ }]))"
    r"|(?P<bare>[A-Z])(?=\s*\}?\s*[?!]?$|[^=]*\b(?:correct|right)\b))\s*\}?\s*[:.?!]?\s*(?P<rest>.*)",
    re.DOTALL,
)
_EXPLAINED_OPTION = re.compile(  # D (8)
    r"(?:\\text\s*\{)?\s*(?P<letter>[A-J])\s+(?:\\text\s*\{)?\s*\(\s*(?P<rest>[^()]*|[^()]*\([^()]*\)[^()]*)\)\s*\}?"
)
_CHOSEN_OPTION = re.compile(  # I choose E, the correct option is (B)
    r"(?:\\text\s*\{)?\s*(?P<words>(?:I|[A-Za-z][a-z']+)(?: (?:I|[A-Za-z]?[a-z']+)){1,12})\s*:?\s*\}?\s*"
    r"(?:\\text\s*\{)?\s*(?:\(\s*(?P<round>[A-J])\s*\)|(?P<bare>[A-J]))\s*\}?"
)
_IS_RIGHT = re.compile(
    r"\(?\s*(?:\\text\s*\{)?\s*\(?(?:is )?(?:the )?(?:correct|right)(?: one| option| choice| answer)?\s*\)?\s*\}?\s*\)?"
)
_VALUE_OF_OPTION = re.compile(r"(?P<bare>[A-H])\s*=\s*(?P<rest>[-\d\\.].*)", re.DOTALL)
_GOES_ON = re.compile(r"[(^_+*=/<>!\-,:;]|\\(?:cdot|cup|times|le|ge|ne)(?![a-z])")  # (C)^2 is no choice
_FIGURE = re.compile(r"\\(?:triangle|angle|odot|square|parallelogram)\s*[A-Z]{1,6}")
_WORDS = re.compile(r"[^\W\d_][\w'.!?-]*(?: [\w'.!?-]+)*")
_TAKES_BACK = all_of(
    """yes no not true false maybe perhaps possibly or and but unless if either neither nor except however although
    loses lost isn't doesn't wasn't never cannot can't won't didn't hardly rarely seldom"""
)
# What words name that answer "which kind": an odd function, a blue marble, divergent series.
_LAWS = all_of("property law theorem")
_CLASSES = (
    all_of(
        """function number integer value solution triangle angle serie series sequence line curve graph matrix set event
    variable player team color colour one ball marble card side shape polygon quadrilateral relation equation"""
    )
    | _LAWS
)
_STRESS = all_of("always definitely clearly certainly indeed")
_GOES_ON_WITH = all_of(
    """at in on with from for of by about through to
    opening passing going having facing lying being containing starting"""
)
_ARTICLE = re.compile(r"(?:the|an?) ", re.IGNORECASE)
_POINTS = re.compile(r"(?<=[^\W\d_])\.(?=\s|$|[^\W\d_])")  # Mr. Smith, U.S.A.
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SHORT = ("no", "ok", "up")  # words of two letters
REALS, NOTHING = "all real numbers", "no solution"
_SYNONYMS = tuple((re.compile(pattern), meant) for pattern, meant in (  # of answers in words
    (r"(?:(?:there (?:is|are)|(?:the )?(?:it|equation|system|inequality) has|has) )?no (?:real |valid |integer |such )*"
     r"(?:solution|root|value|answer|number)s?(?: exists?)?", NOTHING),
    (r"(?:there (?:is|are|exists?) )?no such [a-z]+(?: [a-z]+)?(?: exists?)?|none"
     r"|(?:empty|null) ?set|empty|\\emptyset|\\\{ ?\\\}", NOTHING),
    (r"(?:x is |x can be )?(?:(?:the )?set of )?(?:all|any|every|each) (?:the )?reals?"
     r"(?: number| value| x)?s?(?: of x| x)?|r|reals|real numbers|\\?mathbb ?(?:\{r\}|r)", REALS),
    (r"(?:all |the )?integers|mathbb ?\{?z\}?", "integers"),
    (r"(?:all |the )?natural numbers|mathbb ?\{?n\}?", "natural numbers"),
    (r"(?:an )?infinit(?:e|ely many|e number of)(?: (?:solution|value|answer|root)s?)?", "infty"),
    (r"(?:(?:it )?(?:diverges|tends|goes) to )?(?:positive )?infinity|\+infty", "infty"),
    (r"doesn't exist|dne|no limit exists|(?:the )?(?:limit|it) does not exist", "does not exist"),
    (r"(?:(?:it|this|that) is |it's )?(?:not true|isn't true|untrue)", "false"),
    (r"(?:(?:it|this|that) is |it's )?(?:not false|isn't false)", "true"),
    (r"(?:(?:it|this|that) is |it's )?(?:not possible|impossible|cannot be done)", "impossible"),
    *((rf"(?:on )?(?:a )?{day[:3]}(?:{day[3]}|{day[3:5]}|{day[3:]}s?)?", day) for day in _DAYS),
    (r"neither even nor odd|neither odd nor even", "neither"),
    (r"divergent|(?:it |(?:series|sequence|integral) )diverges", "diverges"),
    (r"convergent|(?:it |(?:series|sequence|integral) )converges", "converges"),
))  # fmt: skip
_DECISION = re.compile(
    r"(?:\\text\s*\{)?\s*(?P<word>yes|no|true|false)\b\s*\}?"
    r"\s*(?:(?:\\text\s*\{)?\s*(?:because|since|as|it|they|he|she|there|this)\b|[,.;:(]|-+(?=\s))",
    re.IGNORECASE,
)
_EXPLAINED = re.compile(
    r"(?:\\text\s*\{)?\s*(?P<word>[^\W\d_]+(?:[ '-][^\W\d_]+){0,3}?)\s*\}?,?\s*(?:\\text\s*\{)?\s*"
    r"(?:(?:because|since|with|who|which|having|on|over|of|in|at|centere?d|opening|passing"
    r"|for (?:all|any|every|each))\b"
    r"|\((?P<remark>(?:the|who|with|because|since|also known as) |[^()]*\)\s*\}?$))",
)
_PARTS_OF = all_of("none all some any one each most many few both neither either part half two three rest")
_REMARK = re.compile(  # behind a name: (largest), (12 points), (not Russia), (the closest to it)
    r"(?P<not>not )?(?:[a-z]+(?:est|st)|first|last|winner|[^()]*\d[^()]*|[a-z]+(?: [a-z]+)+|(?(not)[A-Z]?[a-z]+))"
)
_NO_REMARK = _TAKES_BACK | all_of("sure certain confident correct right answer also alternatively another else it")
_OTHER_OPTION = re.compile(
    r"(?:\\text\s*\{)?\s*\(?\s*[A-J]\s*\)?\s*\}?|.*(?:\(\s*[A-J]\s*\)|\b[B-J][.)](?:\s|$)).*", re.DOTALL
)
_ALTERNATIVE = re.compile(r"\s*(?:\\text\s*\{\s*)?(?:and|or|is|not|isn't|but|if|/|\\lor|\\land)(?![a-z])")


_PARITY = re.compile(  # n odd, n is an odd integer, all odd n, every even integer n
    r"(?:for )?(?P<name>[a-z]) (?:is |must be |has to be )?(?:an? )?(?P<kind>odd|even)(?: (?:integer|number))?"
    r"|(?:for )?(?:all|any|every|each) (?P<which>odd|even)(?: (?:integers?|numbers?|values? of))?,? (?P<of>[a-z])"
)


_ANY_SYNONYM = re.compile("|".join(f"(?:{pattern.pattern})" for pattern, _ in _SYNONYMS))


@lru_cache(maxsize=4096)
def meaning(text: str) -> str:
    """Return the words of a tidy text, and of words that mean the same the same ones."""
    words = _POINTS.sub("", plain(text)) if len(text) < 80 else text
    if (parity := _PARITY.fullmatch(words)) is not None:
        return f"{parity['name'] or parity['of']} is {parity['kind'] or parity['which']}"
    for written in (words, text):
        if _ANY_SYNONYM.fullmatch(written):
            return next(whole for pattern, whole in _SYNONYMS if pattern.fullmatch(words) or pattern.fullmatch(text))
    return words


def read_words(text: str) -> Text | None:
    r"""Words: inside \text{}, or bare ones that are no product of letters."""
    bare = " ".join(re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).split())
    if _FIGURE.fullmatch(bare):
        return Text(plain(text), bare, bare)
    if not _WORDS.fullmatch(bare):
        return None
    words = bare.split()
    marked = bare != text and any(len(word) > 1 for word in words)
    capitals = len(bare) > 1 and bare.isalpha() and bare.isupper()
    long = any(word.isalpha() and is_word(word) for word in words) or bare.lower() in _SHORT
    few = bare.isalpha() and len(bare) < 3 and bare.lower() not in _SHORT
    letters = bare if few or (capitals and bare == text.strip()) else ""
    return Text(meaning(text), bare, letters) if marked or capitals or long or not bare.isascii() else None


def elaborates(short: Text, long: Text) -> bool:
    """Return whether words say the same as fewer words: Yes, it is possible; Tom wins; odd function.

    What follows the fewer words may not be an answer of its own, as in red blue, or take them back.
    """
    predicate = stated(long.words)
    if predicate != long.words and not set(predicate.split()) & _TAKES_BACK - {short.words}:
        said = Text(meaning(predicate), predicate)
        if said.words == short.words or elaborates(short, said):
            return True
    adverb, _, rest = long.words.partition(" ")
    if adverb in _STRESS and rest == short.words:
        return True
    if long.words in (NOTHING, REALS):
        return False
    head, _, last = long.words.rpartition(" ")
    if last.removesuffix("s") in _CLASSES and meaning(head) == short.words:
        return True
    bare, _, law = short.words.rpartition(" ")
    if law in _LAWS and bare == long.words:
        return True  # commutative, for the commutative property
    if not long.words.startswith(short.words) or short.words == "":
        return False
    rest = long.words[len(short.words) :]
    words = re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", rest)
    if (
        not words
        or rest[0].isalpha()
        or set(words) & (_TAKES_BACK - ({"not"} if short.words in ("no", "false") else set()))
    ):
        return False
    if short.words in ("yes", "no", "true", "false"):
        return rest[0] in ",;.:-" or words[0] in ("it", "they", "he", "she", "because", "since", "as", "there")
    if rest[0] != " " or not all(char.isalpha() or char == " " for char in rest):
        return False
    if words[0] in _GOES_ON_WITH or (len(words[0]) > 4 and words[0].endswith("ed")):  # an ellipse centered at 0
        return True
    named = short.shown[:1].isupper() and long.shown.startswith(short.shown)
    return named and long.shown[len(short.shown) :].islower()


def read_head(text: str) -> Text | None:
    """Return the words that an answer begins with, where what follows only explains them. None for another text.

    Yes, because 3 < 5. Alice, with 12 points. Increasing on (0, 1). It is a rhombus with side 5. What follows may hold
    mathematics, but no answer.
    """
    match = _DECISION.match(text) or _EXPLAINED.match(text)
    if match is None and (said := stated(text)) != text:
        text = _ARTICLE.sub("", said)
        match = _EXPLAINED.match(text)
    if match is None:
        return None
    rest = set(re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", text[match.end("word") :].lower()))
    head = _ARTICLE.sub("", stated(match["word"]))
    words = meaning(head)
    if match.re is _EXPLAINED and match["remark"] is not None and match["remark"].endswith((")", "}")):
        return Text(words, head) if _remarks(match["remark"]) else None
    if head.lower().split()[0] in _PARTS_OF:
        return None
    explained = text[match.end() - 1] == ":" or any(len(one) > 1 for one in rest)
    if not explained or rest & (_TAKES_BACK - ({"not", "no"} if words in ("no", "false") else set())):
        return None
    return Text(words, head)


def _remarks(bracket: str) -> bool:
    """Return whether what stands in brackets behind a name only explains it: Canada (largest), Alice (12 points)."""
    said = bracket.rstrip("} )").strip()
    match = _REMARK.fullmatch(said)
    words = set(re.findall("[a-z']+", said.lower()))
    return (
        match is not None
        and not changes_value(said if not match["not"] else said[4:])
        and not words & (_NO_REMARK - ({"not"} if match["not"] else set()))
    )


def read_option(text: str) -> Choice | Text | None:
    """(C), C. 13, a bare capital letter. A letter beside another one is only that text."""
    if (valued := _VALUE_OF_OPTION.fullmatch(text)) is not None and number(valued["rest"]) is not None:
        return Choice(valued["bare"], valued["rest"])
    if (named := _EXPLAINED_OPTION.fullmatch(text)) is not None and not CHOSEN.fullmatch(text):
        said = named["rest"].strip()
        if _ALTERNATIVE.match(said) or _OTHER_OPTION.fullmatch(said) or changes_value(said):
            return None
        return Choice(named["letter"], f"({said})" if "," in said else said)
    if (picked := _CHOSEN_OPTION.fullmatch(text)) is not None:
        words = picked["words"]
        told = any(map(is_word, words.split())) and not changes_value(words)
        return Choice(picked["round"] or picked["bare"], "") if told else None
    match = _OPTION.fullmatch(text)
    if match is None:
        return None
    kind = (match["kind"] or "option").lower()
    if changes_value(kind) or not (is_word(kind) or kind in ("set", "box")):
        return None
    letter, rest = match["round"] or match["dotted"] or match["bare"], match["rest"].strip()
    if _IS_RIGHT.fullmatch(rest):
        rest = ""
    if rest and (_GOES_ON.match(rest) or _ALTERNATIVE.match(rest) or not letter.isupper()):
        return None
    if rest and _OTHER_OPTION.fullmatch(rest):
        return Text(plain(text), text)
    return Choice(letter.upper(), rest)
