r"""The final answer of a response: what its last boxes say, taken together.

`3 \text{ or } 5` in one box is a list of two answers, and `either \boxed{3} or \boxed{5}` says the same with two boxes.
So boxes that one sentence joins are read as one text, `3 \text{ or } 5`, and the reading of that text decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nemo_ada.verify.latex import english_joints
from nemo_ada.verify.thoughts import parts_outside_thoughts

_START = re.compile(r"\\f?box(?:ed)?(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character is skipped, so that \{ and \} do not count
# What \boxed takes without braces: a number, a capital letter, a command with its arguments.
_BARE = re.compile(r"[-+]?[\d.][\w.,/%^]*|[A-Z](?![A-Za-z])|\\(?:d?frac|sqrt|pi|text)(?![a-z])(?:\{[^{}]*\})*")
MAX_BETWEEN = 200  # characters between two boxes of one claim

# What stands between two boxes. Mathematics and markup that change nothing are taken out before.
_MARKUP = re.compile(
    r"\\text\s*\{([^{}]*)\}|\$|\\\\|\\[\[\]();,:! ]|\\(?:quad|qquad|left|right|displaystyle)(?![a-z])|\*\*|[()`]"
)
_SENTENCE = re.compile(r"(?<!\n\d)(?<!\A\d)[.!?](?=\s|$)|\n\s*\n")  # 2. may number a line
_SIGNS = re.compile(r"(?:[^\w\s.,;!?\\]|\\[A-Za-z]+|\s)+")
_NAME = r"(?:\\?[A-Za-z]+(?:_\w|_\{\w+\})?'*(?:\([^()]{1,9}\))?\s*(?:=|\\in(?![a-z])))"
_LIST = re.compile(rf"[\s,;.?!]*(?:[-*]\s+)?(?P<name>{_NAME}?)\s*")
_ITEM = re.compile(r"\s*[-*+•]\s+\S?")  # of a list in markdown
_NEXT_ITEM = re.compile(r"[\s$,;.*)\\]*?\n\s*[-*+•]\s+(?:\$|\*\*|\\\()*\s*")
_LABELLED = re.compile(r"\s*[,;]\s*[A-Za-z][A-Za-z ]{0,30}:\s*")
_NAME_AT_END = re.compile(rf"(?P<name>{_NAME})\s*$")
_AND = re.compile(r"[\s,;]*(?:(?:and|also|as well as|plus)\b)[\s,]*(?P<rest>.*)", re.DOTALL | re.IGNORECASE)
_REPLACES = re.compile(
    r"\b(?:so|then|therefore|thus|hence|finally|actually|rather|instead|again|wait|no)\b", re.IGNORECASE
)
_ALTERNATIVE = re.compile(
    r"\b(?:or|either|alternatively|otherwise|else|maybe|perhaps|possibly|depending|versus|vs)\b"
    r"|\b(?:could|might|may|can) (?:also )?be\b|\bif (?:not|instead)\b|\bchance\b"
    r"|\b(?:(?:an)?other|second|third|different) (?:possible )?(?:answer|candidate|possibility|reading|interpretation"
    r"|option|guess|choice)\b",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"[\s,;:]*(?:and |but |or )?(?:if|when|for|unless|in case|provided|assuming|case)\b", re.IGNORECASE
)
_RESTATED = re.compile(
    r"[\s,;]*(?:i\.\s?e\.|that is|which is|namely|equivalently|meaning),?(?:\s+(?:equal to|the same as))?\s*",
    re.IGNORECASE,
)
_ALSO = re.compile(
    r"[^.!?\n]*\b(?:(?:also|equally|just as) (?:possible|valid|correct|right|fine|works?|plausible|conceivable"
    r"|reasonable|acceptable)|too)\b"
    r"|[\s$)*,\\\]]*(?:otherwise|else|instead|alternatively|if not)\b",
    re.IGNORECASE,
)
_OR_ANOTHER = re.compile(  # \boxed{5} or 6
    r"[\s$*),\\\]]*(?:\(\s*)?(?:\\text\s*\{\s*)?(?:or|alternatively|possibly)\s*\}?\s*\$?"
    r"(?P<value>-?\d[\d.,/]*%?|\\d?frac\{\w+\}\{\w+\}|[A-J](?!\w))"
)
_NOT = re.compile(r"(?:\b(?:not|never|neither)|n't|rather than|instead of)\s*$", re.IGNORECASE)
_WRONG = r"(?:wrong|incorrect|mistaken|erroneous|false)"
_DISOWNED = re.compile(  # A common mistake gives \boxed{8}
    rf"(?<!\w)(?:(?:common|typical|frequent|usual|classic|tempting|na[iï]ve|{_WRONG}) (?:\w+ )?"
    r"(?:mistakes?|errors?|traps?|answers?|approach|method|reasoning|misconception|pitfall|guess|count)"
    r"|mistakes? (?:here |is |would |gives?|leads?)|by mistake"
    r"|if (?:we|you|one|i|someone) (?:\w+ )?(?:for[gt]\w+|ignore\w*|neglect\w*|overlook\w*|miss(?:es|ed)?|mis\w+))\b"
    r"(?P<rest>[^.!?]*)$",
    re.IGNORECASE,
)
_MENDS = re.compile(r"\b(?:correct\w*|fix\w*|avoid\w*|undo\w*|mend\w*|not|but|without|after)\b", re.IGNORECASE)
_DISOWNED_BEHIND = re.compile(
    rf"[\s$)*,\\\]]*(?:is|was|would be|is also|would also be) (?:an? |the )?(?:common |typical |frequent )?"
    rf"(?:{_WRONG}|mistake|error|trap|distractor)\b",
    re.IGNORECASE,
)
_OPPOSITES = re.compile(
    r"[\s,;:*-]*(?:and |but )?"
    r"(?P<setting>with|without|including|excluding|under|allowing|counting|not counting|ignoring)\b",
    re.IGNORECASE,
)
_NUMBERED = re.compile(
    r"\s*(?:[-*]\s+)?(?:\(?(?:\d|[a-h]|i{1,3}|iv|v)\s*[):]|\d\s*\.|(?:case|part|option|answer|solution|root|"
    r"possibility|interpretation|question|value)\s+\(?(?:\d|[a-h]|i{1,3}|one|two|three)\b)",
    re.IGNORECASE,
)
_NUMBERED_LATER = re.compile(rf"(?:^|[\s.,;]){_NUMBERED.pattern}[^.\n]*$", re.IGNORECASE)


_CONCLUDES = re.compile(rf"{_REPLACES.pattern}|\b(?:answer|total|result|final)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Box:
    """A box.

    Attributes:
        start: where it begins in its text.
        end: where it ends.
        content: what is in it. None where it is not closed.
    """

    start: int
    end: int
    content: str | None


def last_boxed(text: str) -> str | None:
    r"""Return what the last boxes of a response say. None where it has no box, or where the last one is not closed.

    An unclosed last box means that the response was cut off in its answer. An earlier box does not replace it. A box
    in a thought does not count (`thoughts`). An empty box counts only where no other does. `\boxed 5` is a box, too.

    Boxes of one claim are joined: `\boxed{3} and \boxed{5}` is `3\text{ and }5`. A later sentence replaces what was
    said before: `First \boxed{3}. Wait: \boxed{5}.` is `5`. Takes time linear in the length of the text.
    """
    empty: str | None = None
    for part in reversed(parts_outside_thoughts(text)):
        found = read_claims(part)
        if found and found[-1] != "":
            return found[-1]
        empty = "" if found else empty
    return empty


def plain_reference(reference: str) -> str:
    r"""Return the reference answer, without its \boxed{} if it has one."""
    inner = last_boxed(reference)
    return reference.strip() if inner is None else inner


def read_claims(text: str) -> list[str | None]:
    """Return the claims of a text without thoughts, in order: what one box says, or what several say together.

    None stands for a last box that is not closed. Where all boxes are empty there is one empty claim.
    """
    boxes = _boxes(text)
    filled = [box for box in boxes if box.content != ""]
    if not filled:
        return [""] if any(text[box.end - 1] == "}" for box in boxes) else []
    if len(filled) > 1:  # the answer to a problem about wrong answers stands alone
        filled = [box for box in filled if box.content is None or not _disowned(text, box)] or filled
    found: list[str | None] = []
    group, joined = [filled[0]], _named(text, filled[0])
    for box in filled[1:]:
        between = text[group[-1].end : box.start]
        joint = _joint(text[_sentence_start(text, group[-1].start) : group[-1].start], between)
        if joint is None and len(between) <= MAX_BETWEEN and _ALSO.match(text, box.end, box.end + MAX_BETWEEN):
            joint = r"\text{ or }"  # 5, although 7 is also possible
        if joint is None:
            found.append(_claim(text, group, joined))
            group, joined = [box], _named(text, box)
        else:
            group.append(box)
            joined += joint + (box.content or "")
    if (other := _OR_ANOTHER.match(text, filled[-1].end)) is not None and filled[-1].content is not None:
        joined += rf"\text{{ or }}{other['value']}"
        group = [*group, Box(other.start(), other.end(), other["value"])]
    found.append(_claim(text, group, joined))
    return found


def _disowned(text: str, box: Box) -> bool:
    """Return whether a box stands in a sentence that calls it wrong: a common mistake gives 8, 8 would be wrong."""
    before = _without_markup(text[_sentence_start(text, box.start) : box.start])
    called = _DISOWNED.search(before)
    if called is not None and not (_MENDS.search(before) or _REPLACES.search(called["rest"])):
        return True
    return _DISOWNED_BEHIND.match(text, box.end, box.end + MAX_BETWEEN) is not None


def _claim(text: str, group: list[Box], joined: str) -> str | None:
    """Return what boxes say that belong together."""
    contents = [box.content for box in group]
    if contents[-1] is None:
        return None
    if _NOT.search(_without_markup(text[max(0, group[-1].start - 40) : group[-1].start])):
        return rf"\text{{not }}{contents[-1]}" if len(group) == 1 else rf"{joined}\text{{ not }}"
    return contents[0] if len({"".join((content or "").split()) for content in contents}) == 1 else joined


def _named(text: str, box: Box) -> str:
    """Return a first box with the name in front of it: x = 3, for a list that goes on with y = 4."""
    name = _NAME_AT_END.search(_without_markup(text[max(0, box.start - 40) : box.start]))
    return (name["name"] if name else "") + (box.content or "")


def _joint(before: str, between: str) -> str | None:
    """Return what joins a box to the one before it, as it would stand in one box. None where it makes a new claim.

    Args:
        before: the sentence in which the earlier box stands, up to this box.
        between: what stands between both.
    """
    if len(between) > MAX_BETWEEN:
        return None
    bare = _without_markup(between).strip()
    if _NEXT_ITEM.fullmatch(between) and _ITEM.match(before):
        return ", "
    if (listed := _LIST.fullmatch(bare)) is not None:  # nothing, a comma, ", y ="
        return f", {listed['name']}" if listed["name"] or set(",;") & set(bare) else r"\text{ or }"
    if _LABELLED.fullmatch(bare) and not _CONCLUDES.search(bare):  # sum: 3, product: 5
        return ", "
    if _SIGNS.fullmatch(bare):
        return f" {bare} "
    if (restated := _RESTATED.match(bare)) is not None and restated.end() == len(bare):
        return " = "
    *earlier, last = _SENTENCE.split(bare)
    both_conditional = _CONDITION.match(before) and _CONDITION.match(last)
    settings = _OPPOSITES.match(before), _OPPOSITES.match(last)
    if settings[0] and settings[1] and (settings[0]["setting"] != settings[1]["setting"] or "under" in last.lower()):
        return r"\text{ or }"
    both_numbered = _NUMBERED.match(before) and _NUMBERED_LATER.search(between)
    if both_conditional or both_numbered or (_ALTERNATIVE.search(last) and not _REPLACES.search(last)):
        return r"\text{ or }"
    if earlier:
        return None
    if _CONDITION.match(bare) or (_CONDITION.match(before) and _CONDITION.search(last)):
        return r"\text{ or }"
    added = _AND.match(bare)
    if added is None or _REPLACES.search(added["rest"]):
        return None
    name = _NAME_AT_END.search(added["rest"])
    return r"\text{ and }" + (name["name"] if name else "")


def _sentence_start(text: str, end: int) -> int:
    """Return where the sentence begins that goes on at a place."""
    begin = max(0, end - MAX_BETWEEN)
    starts = [match.end() for match in _SENTENCE.finditer(text, begin, end)]
    line = text.rfind("\n", begin, end) + 1
    return max([begin, line, *(start for start in starts if start < end)])


def _without_markup(text: str) -> str:
    return english_joints(_MARKUP.sub(lambda match: match[1] or " ", f" {text} "))


def _boxes(text: str) -> list[Box]:
    """Return the outer boxes of a text in order. One that is not closed counts only where no box follows it."""
    starts = list(_START.finditer(text))
    if not starts:
        return []
    closed = _closing_braces(text, starts[0].start())
    boxes: list[Box] = []
    end = 0
    for match in starts:
        if match.start() < end:  # inside another one
            continue
        if text.startswith("{", match.end()):
            last = closed.get(match.end())
            content = None if last is None else _inner(text[match.end() + 1 : last])
            end = match.end() if last is None else last + 1
        else:
            bare = _BARE.match(text, match.end())
            content = bare.group().rstrip(".,") if bare is not None else ""
            end = bare.end() if bare is not None else match.end()
        boxes.append(Box(match.start(), end, content))
    return [box for box in boxes if box.content is not None or box is boxes[-1]]


def _inner(content: str) -> str:
    r"""Return the content of a box, without the boxes in it: \boxed{\boxed{3}}."""
    starts = [match for match in _START.finditer(content) if content.startswith("{", match.end())]
    if not starts:
        return content.strip()
    closed = _closing_braces(content, starts[0].start())
    cuts = sorted(
        cut
        for match in starts
        if (last := closed.get(match.end())) is not None
        for cut in ((match.start(), match.end() + 1), (last, last + 1))
    )
    kept = zip([0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(content)], strict=True)
    return "".join(content[start:end] for start, end in kept).strip()


def _closing_braces(text: str, begin: int) -> dict[int, int]:
    """Return where each brace from `begin` on is closed."""
    pairs, open_ones = {}, []
    for match in _BRACE.finditer(text, begin):
        if match[0] == "{":
            open_ones.append(match.start())
        elif match[0] == "}" and open_ones:
            pairs[open_ones.pop()] = match.start()
    return pairs
