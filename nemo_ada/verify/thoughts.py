r"""What a response says outside its thoughts.

Models think between marks that their templates define: `<think>`, `[THINK]`, `<seed:think>`, `<|channel|>analysis`. The
list here names what makes a mark one of a thought: a word inside a tag, and the few formats that have no such word.
They are those of vLLM's reasoning parsers (`vllm/reasoning`, `vllm/parser`), of NeMo-RL's (`nano_v3`), and of the
templates that have no parser there, such as `<|begin_of_thought|>`.
"""

from __future__ import annotations

import re

# <think>, </thinking>, [THINK], ◁/think▷, <seed:think>, <|END_THINKING|>, <|begin_of_thought|>, <｜end▁of▁thinking｜>
_TAG = (
    r"[<◁][|｜]?(?P<over>/)?(?P<name>[A-Za-z][\w:|.▁-]{2,40}?)(?:\s[^<>\[\]◁▷\n]{0,100})?[|｜]?[>▷]"
    r"|\[(?P<square_over>/)?(?P<square>[A-Z]{3,20})\]"  # in capitals only, because [Reasoning] may be a heading
)
_THOUGHT = re.compile(
    "think|thought|reason|reflect|scratch|monolog|analysis|rationale|deliberat|ponder|brainstorm"
    "|^draft$|^work$|(?:^|_)cot(?:_|$)"
)
_ENDS = re.compile(r"(?:^|[^a-z])end(?:[^a-z]|$)")
# Formats whose marks are no tags with such a word. `speaks` begins the answer, and `ends` ends a thought that is open.
_OPENS = (
    r"<\|?channel\|?>\s*(?:analysis|commentary|thought)|<\|open\|>\s*think\s*<\|sep\|>|to=self\s*<\|message\|>"
    r"|<unused94>\s*thought|<\|im_start\|>\s*think\b"
    r"|Here(?:'s| is) my thought process:|Here are my reasoning steps:|\A\s*analysis(?=\w)"
)
_SPEAKS = (
    r"<\|channel\|>\s*final|<\|content_text\|>|<\|begin_of_solution\|>|<\|START_(?:RESPONSE|TEXT)\|>"
    r"|<\|open\|>\s*response\s*<\|sep\|>|<\|im_start\|>\s*answer\b|\[BEGIN FINAL RESPONSE\]|assistantfinal(?!ly)"
)
_STOPS = r"<\|?(?:end|end_message|eom|return)\|>|<channel\|>|<unused95>|<\|close\|>\s*think\s*<\|sep\|>"
_STOPS += r"|Here(?:'s| is) my response:"
# A block of Markdown that names itself a thought: ```thinking. Other blocks are part of what is said.
_FENCE = r"^[ ]{0,3}(?P<fence>`{3,}|~{3,})[ ]*(?P<info>[^`\n]{0,60})$"
_FOLDED = r"(?i:<details[^<>]{0,100}>\s*<summary>(?P<summary>[^<>]{0,60})</summary>)|(?P<unfolds></details>)"
_BLOCK = re.compile("`|~|details")  # its end alone says nothing of a thought
_MARK = re.compile(
    f"(?P<opens>{_OPENS})|(?P<speaks>{_SPEAKS})|(?P<stops>{_STOPS})|{_FENCE}|{_FOLDED}|{_TAG}", re.MULTILINE
)


# A tag of a model's own, such as <plan>, around what comes before the answer. A tag of HTML or of the answer is none.
_FIRST = re.compile(r"\s*(?:<(?P<name>[A-Za-z][\w:|.-]{1,40})>|\[(?P<square>[A-Z][A-Z_]{2,40})\])")
_NO_THOUGHT = re.compile(
    r"(?:p|div|span|b|i|u|em|strong|center|code|pre|blockquote|section|article|main|body|html|math|table|tr|td|ul|ol|li"
    r"|h\d|details|summary|.*(?:answer|solution|response|result|output|final|boxed|reply|conclusion).*)",
    re.IGNORECASE,
)


def parts_outside_thoughts(text: str) -> list[str]:
    """Return the parts of a response that are no thought, in order. Takes time linear in the length of the text.

    A response that begins with a tag of whatever name, and answers behind its end, has a thought in it.
    A thought that does not end reaches to the end of the text. An end without a beginning ends a thought that began in
    the prompt, so that nothing before it was said. A thought in a thought ends with the outer one.
    """
    parts: list[str] = []
    inside, at = "", _end_of_first_tag(text)  # the word of the mark that began the thought
    for mark in _MARK.finditer(text, at):
        kind, word = _read_mark(mark)
        if kind == "opens" and not inside:
            parts.append(text[at : mark.start()])
            inside = word
        elif kind == "speaks" or (kind == "ends" and not inside and not _BLOCK.match(word)):
            parts, inside, at = [], "", mark.end()
        elif (kind == "ends" and word == inside) or (kind == "stops" and inside):
            inside, at = "", mark.end()
    return parts if inside else [*parts, text[at:]]


def _end_of_first_tag(text: str) -> int:
    """Return where the tag ends with which a response begins, if its answer follows. 0 where that is not so."""
    first = _FIRST.match(text)
    if first is None:
        return 0
    name = first["name"] or first["square"]
    end = f"</{name}>" if first["name"] else f"[/{name}]"
    at = text.find(end, first.end())
    if at < 0 or _NO_THOUGHT.fullmatch(name) or text.find(first[0].strip(), at) >= 0:
        return 0
    return at + len(end) if "\\box" in text[at:] else 0


def _read_mark(mark: re.Match[str]) -> tuple[str, str]:
    """Return what a mark does, and the word by which its end is known. No kind for a tag that is not of a thought."""
    if mark["fence"]:
        if not mark["info"].strip():
            return "ends", mark["fence"]
        return ("opens" if _THOUGHT.search(mark["info"].lower()) else ""), mark["fence"]
    if mark["summary"] is not None:
        return ("opens" if _THOUGHT.search(mark["summary"].lower()) else ""), "details"
    if mark["unfolds"]:
        return "ends", "details"
    name = (mark["name"] or mark["square"] or "").lower()
    if not name:
        return str(mark.lastgroup), "another format"
    word = _THOUGHT.search(name)
    if word is None:
        return "", ""
    return "ends" if mark["over"] or mark["square_over"] or _ENDS.search(name) else "opens", word[0]
