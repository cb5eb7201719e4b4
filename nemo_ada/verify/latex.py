r"""One spelling for what LaTeX, Unicode and plain text write in many ways: `½`, `\dfrac12` and `\frac{1}{2}`.

`tidy` removes what does not change an answer: spacing, colours, fonts, invisible characters, the punctuation of a
sentence. `split` and `inside` know brackets. Every function takes time linear in the length of a text, apart from
nested commands, whose depth is bounded.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache

MAX_NESTED = 12  # commands inside commands that are rewritten

_INVISIBLE = re.compile(
    "[\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180e\\u200b-\\u200f\\u202a-\\u202e"
    "\\u2060-\\u206f\\ufe00-\\ufe0f\\ufeff]"
)
_SYMBOLS = {
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "⩽": r"\le ", "≦": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≧": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ", "•": r"\cdot ",
    "∙": r"\cdot ", "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℂ": r"\mathbb{C}", "ℚ": r"\mathbb{Q}",
    "∅": r"\emptyset ", "±": r"\pm ", "∓": r"\mp ", "∖": r"\setminus ", "∣": "|", "∶": ":", "⟨": r"\langle ",
    "⟩": r"\rangle ", "〈": r"\langle ", "〉": r"\rangle ", "…": r"\ldots ", "⋯": r"\ldots ", "∠": r"\angle ",
    "º": "°", "˚": "°", "√": r"\sqrt ", "∛": r"\sqrt[3] ", "∜": r"\sqrt[4] ", "⁄": "/", "∕": "/", "“": '"', "”": '"',
    "’": "'", "‘": "'", "′": "'", "、": ",", "。": ".", "，": ",", "；": ";", "：": ":", "【": "[", "】": "]",
    "ℯ": "e", "ⅈ": "i", "ⅇ": "e", "％": "%", "﹪": "%", "＄": r"\$", "⌊": r"\lfloor ", "⌋": r"\rfloor ",
    "⌈": r"\lceil ", "⌉": r"\rceil ", "℃": r"°\text{C}", "℉": r"°\text{F}",
    "Δ": r"\Delta ", "Ω": r"\Omega ", "λ": r"\lambda ",
}  # fmt: skip
_GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi",
    "omicron", "pi", "rho", "varsigma", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
)  # fmt: skip
_CAPITALS = ("Gamma", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Phi", "Psi")
_SYMBOLS |= {char: f"\\{name} " for char, name in zip("ΓΘΛΞΠΣΦΨ", _CAPITALS, strict=True)}
_SYMBOLS |= {chr(ord("α") + i): f"\\{name} " for i, name in enumerate(_GREEK)}
_SCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ", "0123456789+-()ni0123456789+-()n")
_SUPERSCRIPT, _SUBSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ]+")

_DRESS = re.compile(  # commands without a meaning for the value
    r"\\(?:(?:left|right)\s*\.|(?:left|right|middle|[bB]igg?[lrm]?|tiny|small|normalsize|large|Large|LARGE|huge|Huge|checkmark|(?:display|text|script)style|(?:no)?limits|mathstrut|strut|phantom\{[^{}]*\}"
    r"|hfill|centering|bf|it|rm|tt|sf|color(?:\[[^\]]*\])?\s*\{[^{}]*\}|tag\*?\{[^{}]*\}|label\{[^{}]*\}|[hv]space\*?\{[^{}]*\})(?![a-zA-Z]))"
    r"|\\\(|\\\)|(?<!\\)\\\[|(?<!\\)\\\]"
)
_ARTICLE = re.compile(r"^(?:the|an?) (?![^\w\s]|\w\b)")
_STYLED = re.compile(r"(?<=\d)\{\s*\\(?:display|text|script)style\s*((?:[^{}]|\{[^{}]*\})*)\}")  # 4{\textstyle\frac14}
_BRACED_SIGN = re.compile(r"(?<![\^_])\{([:=<>+\-/;])\}")  # TeX's way to change the room around a sign
_BLANKS = re.compile(r"(?<!\\)\\[ ,;:>\n\t]|(?<!\\)~|\\(?:q?quad|space|thinspace|enspace|nobreakspace)(?![a-zA-Z])|\s+")
_NAMES = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "nicefrac": "frac", "sfrac": "frac", "leq": "le",
    "leqslant": "le", "leqq": "le", "geq": "ge", "geqslant": "ge", "geqq": "ge", "neq": "ne", "not=": "ne",
    "lbrace": "{", "rbrace": "}", "infin": "infty", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots",
    "dotsb": "ldots", "textnormal": "text", "textbf": "text", "textit": "text", "textrm": "text", "textsf": "text",
    "texttt": "text", "textsc": "text", "mbox": "text", "hbox": "text", "mathrm": "text", "emph": "text",
    "operatorname": "text", "varnothing": "emptyset", "textpi": "pi", "wedge": "land", "vee": "lor", "lg": "log",
    "neg": "lnot", "dbinom": "binom", "tbinom": "binom", "backslash": "setminus",
    "divided": "div", "ast": "cdot", "tg": "tan", "ctg": "cot", "arctg": "arctan", "cosec": "csc", "gt": ">", "lt": "<",
    "colon": ":", "lvert": "|", "rvert": "|", "vert": "|", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")",
    "textdollar": "$", "textpercent": "%", "dollar": "$", "degree": "°", "textdegree": "°", "simeq": "approx",
    "thickapprox": "approx", "doteq": "approx", "euro": "€", "pounds": "£",
    "mathring": "hat", "bmod": "mod", "R": "mathbb{R}", "N": "mathbb{N}", "Z": "mathbb{Z}",
    "Q": "mathbb{Q}", "C": "mathbb{C}", "reals": "mathbb{R}", "lang": "langle", "rang": "rangle",
}  # fmt: skip
_UNESCAPED = {">", "<", ":", "|", "[", "]", "(", ")", "%", "°", "€", "£"}
_COMMAND = re.compile(r"\\([a-zA-Z]+)\*?")
_UNWRAPPED = {  # command -> how many arguments it has; the last one is what is seen
    "boxed": 1, "fbox": 1, "mathbf": 1, "mathit": 1, "mathsf": 1, "mathtt": 1, "mathcal": 1, "mathnormal": 1,
    "boldsymbol": 1, "bm": 1, "pmb": 1, "underline": 1, "uline": 1, "ensuremath": 1, "textcolor": 2, "colorbox": 2,
    "cancel": 1, "mathop": 1, "mathord": 1, "smash": 1, "underbrace": 1, "mathopen": 1, "mathclose": 1,
}  # fmt: skip
_SIGN = re.compile(r"[<>=]|\\(?:le|ge|ne)(?![a-z])")
_LONE = re.compile(r"([\^_])\{\s*(\w)\s*\}(?!\w)")  # x_{1} is x_1
_ARRAY = re.compile(r"[(\[]\s*\\begin\{array\}(?:\s*\{[^{}]*\})?(.*?)\\end\{array\}\s*[)\]]", re.DOTALL)
_ROWS = re.compile(
    r"(?:\\left\s*\\?\{\s*)?\\begin\{(aligned|align\*?|gathered|split|cases|array)\}(?:\{[^{}]*\})?(.*?)\\end\{\1\}(?:\s*\\right\s*\.)?",
    re.DOTALL,
)
_IN_CASES = re.compile(r"\\text\s*\{\s*,?\s*(?:if|for|when)\s*\}")
_SYMBOL_IN_TEXT = re.compile(r"\\text\s*\{\s*([A-Z][A-Za-z]?O?)\s*\}(?=_)")  # of an element
_UNIT_VECTOR = re.compile(  # \hat{i}, \mathbf i, \hat{\mathbf{i}}, {\bf i}
    r"\\(?:hat|widehat|vec|mathbf|boldsymbol|bm|bf)(?![a-z])\s*(?:\{\s*\\(?:mathbf|boldsymbol|bm|hat|vec)\s*\{\s*\\?([ijk])(?:math)?\s*\}\s*\}"
    r"|\{\s*\\?([ijk])(?:math)?\s*\}|\s\s*\\?([ijk])(?![a-z])|\\([ijk])math(?![a-z]))"
)
_CIS = re.compile(
    r"(?:\\text\s*\{\s*cis\s*\}|\\?\bcis\b)\s*(?P<angle>\((?:[^()]|\([^()]*\))*\)"
    r"|\\frac(?:\s*(?:\{[^{}]*\}|\\[a-z]+|\d)){2}|\d*\\?\w+\s*°?)"
)
_A_CONSTANT = re.compile(
    r"(?<=\+)\s*\\text\s*\{\s*(?:const\.?|(?:a |any )?constant)\s*\}|(?<=\+)\s*(?:const|constant)\b"
)
_CE = re.compile(r"\\ce\s*(?=\{)")
_ARROW = r"(?:\\(?:to|(?:long)?rightarrow|Rightarrow|rightleftharpoons|longrightarrow)(?![a-z])|<?[-=]+>)"
_CHARGE = re.compile(r"\^\{?([+-]?)(\d?)([+-]?)\}?")
_ATOM = r"[A-Z][a-z]?(?:_?\{?\d{1,2}\}?)?"
_SPECIES = rf"\d*(?:{_ATOM}|\((?:{_ATOM}){{2,}}\)(?:_?\{{?\d\}}?)?)+(?:\^\{{?(?:\d?[+-]|[+-]\d?)\}}?)?"
_CHEMISTRY = re.compile(rf"{_SPECIES}(?:(?:\+|{_ARROW}){_SPECIES})*")
_SEVERAL_ATOMS = re.compile(r"[A-Za-z)]\}?_|[A-Z][a-z]?\d+[A-Z(]|[A-Z][a-z]?[A-Z][a-z]?\d")
_IS_CHEMISTRY = re.compile(rf"\\ce|\\text\{{|\^\{{?[+-]|\^\{{?\d?[+-]|{_ARROW}")
_FORMULA = re.compile(r"(?:[A-Z][a-z]?\d{0,2}){2,8}")
_LINE_OVER = re.compile(r"\\overline\s*\{\s*([A-Z]{2})\s*\}")  # a segment by its ends
_CONSTANT = r"[A-Za-z](?:_\w)?"
_PARAMETER = re.compile(  # what a constant or an integer in the answer may be, behind the answer
    r"(?:,|\s)\s*(?:\\text\s*\{\s*(?:where|for|with)?\s*\}|\()?\s*(?:[kmn]\s*\\in\s*(?:\\mathbb\s*\{?Z\}?|Z)"
    rf"|(?<=[\s,}}(]){_CONSTANT}\s*\\in\s*(?:\\mathbb\s*\{{?[RC]\}}?|R))\s*\)?\s*[$.]*\s*$"
    r"|(?<=\S),?\s*(?:\\forall(?![a-z])|\\text\s*\{\s*for (?:all|every|any|some)\s*\}|for (?:all|some) ).*$"
    r"|(?<=\S),?\s*(?:\\text\s*\{\s*)?(?:where |for |with )?(?:any |some |an? )?(?:arbitrary |real )*"
    rf"(?:\}}?\s*{_CONSTANT}\s*(?:\\text\s*\{{)?\s*(?:is |are )?(?:an? )?(?:arbitrary |real )*constants?"
    rf"|constants?\s*\}}?\s*{_CONSTANT})\s*\}}?\s*$"
    r"|(?<=\S),?\s*(?:\\text\s*\{\s*,?\s*)?(?:for|where) (?:any |all |every |some |each |an )?(?:arbitrary )?integers?"
    r"\s*\}?\s*[kmn]\s*\}?\s*$"
)
_MODULUS = re.compile(r"(?:\(\s*(?:\\text\s*\{\s*mod\s*\}|\\?mod(?![a-z]))|\\pmod)\s*\{?\s*(\w+)\s*\}?\s*\)?")
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![a-z])([^{}]*)\}")
_POWER_IN_TEXT = re.compile(r"(\\text\s*\{[^{}]*)(\^\s*\{-?\d+\})\s*\}")
_MARKDOWN = re.compile(r"^\s*(\*\*|__|`)(.+)\1\s*$", re.DOTALL)
_TEXT = re.compile(r"\\text\s*\{\s*([^{}]*?)\s*\}")
_TEXT_IN_TEXT = re.compile(r"\\text\s*\{([^{}]*)\\text\s*\{([^{}]*)\}")  # \text{\textbf{Amy}}
_VALUE_BEFORE = re.compile(r"(?:[\d})\]]|\\mu|\\cdot|/)\s*$")
_WORDS = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-zA-Z]+|[A-Za-z]+")
_PLAIN = {  # a word of plain text -> LaTeX
    "pi": r"\pi ", "Pi": r"\pi ", "sqrt": r"\sqrt ", "infinity": r"\infty ", "infty": r"\infty ", "inf": r"\infty ",
    "oo": r"\infty ", "theta": r"\theta ", "alpha": r"\alpha ", "beta": r"\beta ", "union": r"\cup ", "U": r" U ",
    "deg": "°", "degrees": "°", "degree": "°", "percent": "%", "percentage": "%", "pct": "%",
} | {name: f"\\{name} " for name in ("sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "arcsin", "arccos",
     "arctan", "sinh", "cosh", "tanh", "exp", "frac", "gcd", "lcm", "lambda", "omega", "phi")}  # fmt: skip
_CIRCLE = re.compile(r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\}|\{\s*°\s*\}|°)|\\circ(?=\s*$)")
_OPERATORS = (
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<![<\\])<=(?!>)|=<"), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"(?<!\d)!=|\\not\s*="), r"\\ne "),  # 5!=120
    (re.compile(r"\\\|"), "|"),
    (re.compile(r"~=|=~"), r"\\approx "),
    (re.compile(r"\.\.\.+"), r"\\ldots "),
    (re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)"), r"\\times "),
)
# "and" and "or" in other languages, where they stand between two things. One letter counts in \text{} only.
_OR = r"oder|ou|eller|lub|albo|veya|atau|или|либо|або|hoặc"
_AND = r"und|et|och|og|oraz|ve|dan|и|та|as well as"
_FOREIGN = tuple(
    (re.compile(
        rf"(?<=[\s{{}}])(?:{words})(?=[\s}}{{])|\\text\s*\{{\s+(?:{letters})\s+\}}|(?<=[\w)}}\]$.\s])(?:{signs})(?=[\w\s\\({{$.-])"
    ), meant)
    for words, letters, signs, meant in (
        (_OR, "o|u|ó", "或者|或是|或|または|もしくは|あるいは|또는|혹은", "or"),
        (_AND, "y|e|i|a", r"以及|(?<![^\W\d_a-zA-Z])(?:及|和|与|與|および|と|그리고|와|과)(?![^\W\d_a-zA-Z])", "and"),
    )
)  # fmt: skip
_OPERATOR_HINT = re.compile(r"\*\*|[<>!=~]=|=[<~]|\\not|\\\||\.\.\.|\d\s*[xX]\s*10")
_PARAMETER_HINT = re.compile(r"\\in(?![a-z])|for|constant|integer")
_RADICAND = re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*")
_ROOT_OF = re.compile(r"\d+(?:\.\d+)?|[A-Za-z]")
_FRACTION = re.compile(r"\\(?:frac|binom)\s*")
_POWER_OF = re.compile(r"([\^_])\s*\(")
_END = re.compile(r"(?:[\s.,;:]|\\\\|(?<!\\)\\)+$")
_QUOTED = re.compile(r"""\s*(["'])([^"']+)\1\s*""")
_ESCAPED_TWICE = re.compile(r"\\\\(?=[a-zA-Z]{2,})")  # \\frac, as where JSON was written into JSON
_OPEN = "([{"
_WORD = re.compile(r"\w+")
_THREE_LETTERS = re.compile(r"[^aeiou][aeiou][^aeiou]|[aeiou]([^aeiou])\1")


def undressed(text: str) -> str:
    """Return a text without what changes only how it looks: dollars, sizes of brackets, fonts, styles of fractions."""
    if not text.isascii():
        text = _ascii(text)
    if (marked := _MARKDOWN.fullmatch(text)) is not None:
        text = marked[2]
    text = _dollars(text)
    text = text.replace("\\$", "\x00").replace("\\%", "%").replace("\\&", "&").replace("\\#", "#").replace("\\_", "_")
    text = _written(text, "style", _STYLED, r" \1 ")
    text = _COMMAND.sub(_renamed, text)
    for _ in range(MAX_NESTED if "\\text" in text else 0):
        before, text = text, _TEXT_IN_TEXT.sub(r"\\text{\1\2", text)
        if text == before:
            break
    if "\\" in text:
        text = text.replace("\\!", "").replace("^{\\prime}", "'").replace("^\\prime", "'")
        text = _DRESS.sub(" ", _written(text, "\\begin", _ROWS, _rows))
    text = _written(text, "{", _BRACED_SIGN, r"\1")
    text = _BLANKS.sub(" ", text)
    return text


def tidy(text: str) -> str:
    """Return the text in one spelling, without dressing and without the punctuation at its end."""
    if "\\\\" in text and "\\begin" not in text:
        text = _ESCAPED_TWICE.sub(r"\\", text)
    if (quoted := _QUOTED.fullmatch(text)) is not None:
        text = quoted[2]
    text = undressed(text)
    if "\\" in text:
        text = _unwrapped(_UNIT_VECTOR.sub(lambda match: rf"\hat{{{next(filter(None, match.groups()))}}}", text))
    text = english_joints(_written(_chemical(text), "cis", _CIS, r" e^{i(\g<angle>)}"))
    text = _written(text, "const", _A_CONSTANT, " C")
    text = _written(text, "\\overline", _LINE_OVER, lambda match: "".join(sorted(match[1])))
    if "\\text" in text:
        text = _TEXT.sub(_text, _SYMBOL_IN_TEXT.sub(r"\1", _POWER_IN_TEXT.sub(r"\1}\2", text)))
    shorter = _PARAMETER.sub("", text) if _PARAMETER_HINT.search(text) else text
    if len(shorter) < len(text) and shorter.count("{") > shorter.count("}"):  # \text{true for all n}
        shorter += "}"
    text = _written(shorter, "mod", _MODULUS, r"\\pmod{\1}")
    if _FORMULA.fullmatch(text):  # H2O is H_2O
        text = re.sub(r"(?<=[A-Za-z])(\d+)", lambda match: f"_{{{match[1]}}}", text)
    text = _written(text, "choose", _CHOOSE, r"\\binom{\1}{\2}")
    for written, meant in _OPERATORS if _OPERATOR_HINT.search(text) else ():
        text = written.sub(meant, text)
    if ("\\land" in text or "\\lor" in text) and _SIGN.search(text):  # of relations; p \land q is one statement
        text = text.replace("\\land", "\\text{ and }").replace("\\lor", "\\text{ or }")
    text = _WORDS.sub(lambda match: _PLAIN.get(match[0], match[0]), text)
    text = _CIRCLE.sub("°", text)
    text = _written(_arguments(text), "array", _ARRAY, r"\\begin{pmatrix}\1\\end{pmatrix}")
    text = _LONE.sub(r"\1\2", text)
    text = _END.sub("", _BLANKS.sub(" ", text).replace("\x00", "\\$").strip())
    while text.startswith("{") and closing(text, 0) == len(text) - 1:
        text = _END.sub("", text[1:-1].strip())
    return text


def _written(text: str, mark: str, pattern: re.Pattern[str], new: str | Callable[[re.Match[str]], str]) -> str:
    """Return a text with what a pattern finds written anew. `mark` stands in all that it finds, and is found sooner."""
    return pattern.sub(new, text) if mark in text else text


def all_of(words: str) -> frozenset[str]:
    """Return the words of a list that is written as one text."""
    return frozenset(words.split())


def is_word(text: str) -> bool:
    """Return whether letters are a word, not a product of variables: four or more, or three like `red` and `odd`."""
    if len(text) != 3 or not text.isascii():
        return len(text) > 3 or not text.isascii()
    return _THREE_LETTERS.fullmatch(text.lower()) is not None and not set(text.lower()) <= set("abcxyz")


def english_joints(text: str) -> str:
    """Return a text whose "and" and "or" between two answers are English, such as `3 oder 5` and `3 或 5`."""
    if text.isascii() and " " not in text and "\\text" not in text:
        return text
    for foreign, meant in _FOREIGN:
        text = foreign.sub(rf"\\text{{ {meant} }}" if "\\text" in text else f" {meant} ", text)
    return text


def words_in(text: str) -> list[str]:
    r"""Return the words of a text with LaTeX, which \dfrac, \left and \text do not change."""
    bare = _arguments(_unwrapped(undressed(text))).replace("\\text", " ").replace("\x00", " ")
    return [word for word in _WORD.findall(bare) if word not in ("cdot", "times")]


def compact(text: str) -> str:
    """Return a tidy text without the blanks that separate no two words or numbers."""
    return re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", text)


def plain(text: str) -> str:
    r"""Return the words of a tidy text: no \text{}, no brackets around them, case folded, single blanks."""
    bare = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).replace("$", " ").replace("\\", " ")
    words = " ".join(unicodedata.normalize("NFKC", bare[:4000]).casefold().split()).strip(" .,;:!?'\"")

    return _ARTICLE.sub("", words)


def closing(text: str, start: int) -> int | None:
    """Return the place of the bracket that closes the one at `start`, whatever its shape. None where there is none."""
    return _pairs(text).get(start)


@lru_cache(maxsize=64)
def _pairs(text: str) -> dict[int, int]:
    """Return where each bracket of a text is closed."""
    pairs, open_ones = {}, []
    for place, char in brackets(text):
        if char in _OPEN:
            open_ones.append(place)
        elif open_ones:
            pairs[open_ones.pop()] = place
    return pairs


def brackets(text: str) -> Iterable[tuple[int, str]]:
    r"""Return the brackets of a text: place and character. `\{` counts like `{`, `\langle` and \begin like `(`."""
    for match in _BRACKET.finditer(text):
        found = match[0]
        if found in "()[]{}":
            yield match.start(), found
        elif found[:2] in ("\\{", "\\}"):
            yield match.start(), found[1]
        elif found.startswith(("\\begin", "\\langle", "\\lfloor", "\\lceil")):
            yield match.start(), "("
        elif found.startswith(("\\end", "\\rangle", "\\rfloor", "\\rceil")):
            yield match.start(), ")"


_BRACKET = re.compile(r"[()\[\]{}]|\\[{}]|\\(?:begin|end|langle|rangle|lfloor|rfloor|lceil|rceil)(?![a-zA-Z])|\\\\")


def split(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Split a text where `separator` stands outside brackets. Returns the parts and the separators between them."""
    depths, places, depth = [0], [0], 0
    for place, char in brackets(text):
        depth += 1 if char in _OPEN else -1
        places.append(place + 1)
        depths.append(max(depth, 0))
    parts, found, start, at = [], [], 0, 0
    for match in separator.finditer(text):
        while at + 1 < len(places) and places[at + 1] <= match.start():
            at += 1
        if depths[at] == 0:
            parts.append(text[start : match.start()].strip())
            found.append(match[0].strip())
            start = match.end()
    return [*parts, text[start:].strip()], found


def _ascii(text: str) -> str:
    text = _INVISIBLE.sub("", text)
    text = _SUPERSCRIPT.sub(lambda match: "^{" + match[0].translate(_SCRIPTS) + "}", text)
    text = _SUBSCRIPT.sub(lambda match: "_{" + match[0].translate(_SCRIPTS) + "}", text)
    text = "".join(_SYMBOLS.get(char, char) for char in text)
    return text if text.isascii() else "".join(map(_compatible, text))


def _compatible(char: str) -> str:
    """A character that Unicode calls another form of ASCII, as ASCII: full-width, mathematical, vulgar fractions."""
    if char.isascii() or char == "°":
        return char
    other = unicodedata.normalize("NFKC", char)
    if "⁄" in other:
        above, _, below = other.partition("⁄")
        return f"\\frac{{{above}}}{{{below}}}"
    return _SYMBOLS.get(other, other if other.isascii() else char)


def _dollars(text: str) -> str:
    """Remove the dollars around mathematics. A lone one before or behind a number is money."""
    loose = re.findall(r"(?<!\\)\$", text)
    if not loose:
        return text
    if len(loose) == 1 and re.match(r"\s*-?\s*\$\s*[\d.]|.*\d\s*\$\s*$", text, re.DOTALL):
        return text.replace("$", "\\$")
    return re.sub(r"(?<!\\)\$", " ", text)


def _rows(match: re.Match[str]) -> str:
    """Rows of equations as a list of them. A row that starts with a sign goes on with the one before."""
    rows = [row.replace("&", " ").strip(" ,") for row in match[2].split("\\\\") if row.strip()]
    if not (len(rows) == 1 and "&" not in match[2]) and (
        not all("=" in row for row in rows) or ("&" in match[2] and match[1] == "cases")
    ):
        return re.sub(r",(?=\s*&|\s*\\\\)", "", _IN_CASES.sub(" ", match[0]))
    return " , ".join(rows).replace(" , =", " =")


def _chemical(text: str) -> str:
    r"""Return a formula or a reaction in one spelling: \ce{2H2 + O2 -> 2H2O} is 2H_2+O_2\to 2H_2O.

    Other texts as they are.
    """
    if not _IS_CHEMISTRY.search(text) or len(text) > 400:
        return text
    if "\\ce" in text:
        text = re.sub(r"(?<=[A-Za-z\d)])([+-])(?=$|\s|\})(?<!\^\d[+-])", r"^\1", text)
    bare = re.sub(r"\\text\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1", _CE.sub("", text)).replace(" ", "")
    while bare.startswith("{") and bare.endswith("}"):
        bare = bare[1:-1]
    if not _CHEMISTRY.fullmatch(bare) or not (_SEVERAL_ATOMS.search(text) or "^" in bare or "\\ce" in text):
        return text
    bare = re.sub(_ARROW, "→", bare)
    bare = re.sub(r"(?<=[A-Za-z)])_?\{?(\d+)\}?", lambda m: f"_{{{m[1]}}}" if len(m[1]) > 1 else f"_{m[1]}", bare)
    bare = _CHARGE.sub(lambda m: f"^{{{m[2] if m[2] != '1' else ''}{m[1] or m[3]}}}", bare)
    return bare.replace("→", r"\to ")


def _renamed(match: re.Match[str]) -> str:
    new = _NAMES.get(match[1])
    if new is None:
        return match[0]
    if new == "$":
        return "\x00"
    return new if new in _UNESCAPED else f"\\{new}"


def _unwrapped(text: str) -> str:
    r"""Replace \textcolor{red}{5} by 5, and other commands that only change how an answer looks."""
    for _ in range(MAX_NESTED):
        done, changed = _each(text, _COMMAND, _seen), False
        changed, text = done != text, done
        if not changed:
            break
    return text


def _seen(text: str, match: re.Match[str]) -> tuple[str, int] | None:
    count = _UNWRAPPED.get(match[1])
    if count is None:
        return None
    end, content = match.end(), ""
    for _ in range(count):
        start = end + len(text[end:]) - len(text[end:].lstrip())
        last = closing(text, start) if text.startswith("{", start) else None
        if last is None:
            return ("", end) if content == "" else (content, end)
        content, end = text[start + 1 : last], last + 1
    return f" {content} " if content[:1].isalnum() else content, end


def _text(match: re.Match[str]) -> str:
    r"""\text{i} is i, and an empty text is nothing."""
    word = match[1]
    if word in (*"ABCDEFGH",) and _VALUE_BEFORE.search(match.string, max(0, match.start() - 12), match.start()):
        return match[0]  # 5 \text{ C} are coulombs
    if word in (*"ieABCDEFGHabcd", ""):
        return f" {word} " if word else " "
    return "\\text{ " + word + " }" if word in ("and", "or", ",") else "\\text{" + word + "}"


def _each(text: str, pattern: re.Pattern[str], rewrite: Callable[[str, re.Match[str]], tuple[str, int] | None]) -> str:
    """Replace matches by what `rewrite` returns: the new text, and where the old one ends. None keeps a match."""
    parts, start = [], 0
    for match in pattern.finditer(text):
        if match.start() < start:
            continue
        new = rewrite(text, match)
        if new is not None:
            parts += [text[start : match.start()], new[0]]
            start = new[1]
    return "".join([*parts, text[start:]])


def _arguments(text: str) -> str:
    r"""Give \sqrt, \frac, ^ and _ their arguments in braces: \frac12, \frac\pi4, \sqrt2, \sqrt(x), x^(2)."""
    text = _POWER_OF.sub(r"\1(", text)
    for _ in range(MAX_NESTED):
        before = text
        text = _each(text, _RADICAND, _root)
        text = _each(text, _FRACTION, _fraction)
        text = _each(text, _SCRIPT, _power)
        if text == before:
            break
    return text


_SCRIPT = re.compile(r"[\^_]\(")


def _root(text: str, match: re.Match[str]) -> tuple[str, int] | None:
    index, at = (match[1] or ""), match.end()
    if text.startswith("{", at):
        return None if match[0] == f"\\sqrt{index}" else (f"\\sqrt{index}", at)
    if text.startswith("(", at):
        last = closing(text, at)
        return None if last is None else (f"\\sqrt{index}{{{text[at + 1 : last]}}}", last + 1)
    argument = _ROOT_OF.match(text, at)
    if argument:
        return f"\\sqrt{index}{{{argument[0]}}}", argument.end()
    token = _token(text, at)
    return None if token is None else (f"\\sqrt{index}{{{token[0]}}}", token[1])


def _fraction(text: str, match: re.Match[str]) -> tuple[str, int] | None:
    above = _token(text, match.end())
    below = None if above is None else _token(text, above[1])
    if above is None or below is None:
        return None
    written = match[0].strip() + f"{{{above[0].strip()}}}{{{below[0].strip()}}}"
    return (written, below[1]) if text[match.start() : below[1]] != written else None


def _power(text: str, match: re.Match[str]) -> tuple[str, int] | None:
    last = closing(text, match.end() - 1)
    return None if last is None else (f"{text[match.start()]}{{{text[match.end() : last]}}}", last + 1)


def _token(text: str, at: int) -> tuple[str, int] | None:
    """Return what TeX takes as an argument at a place: a group, a command with its own arguments, or one character."""
    while at < len(text) and text[at] == " ":
        at += 1
    if at >= len(text) or text[at] in ")]}^_":
        return None
    if text[at] == "{":
        last = closing(text, at)
        return None if last is None or text[last] != "}" else (text[at + 1 : last], last + 1)
    command = _COMMAND.match(text, at)
    if command is None:
        return (text[at], at + 1) if text[at] != "\\" else None
    end = command.end()
    while end < len(text) and text[end] == "{":
        last = closing(text, end)
        if last is None:
            return None
        end = last + 1
    return text[at:end], end
