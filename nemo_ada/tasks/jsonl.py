r"""A task from a local file of prompts and answers, in any layout that `lines` reads.

Lines that cannot be used are skipped, counted and logged with their numbers. A file without a usable line is an error.
The split sorts prompts by a hash of (seed, prompt), so the order of the lines does not matter. The demonstrations are
the answers of the supervision share, without noise. For `math` they stand in a \boxed{}, because it reads nothing else.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path

from nemo_ada.errors import UserError
from nemo_ada.run.data_files import FORMS, read_records
from nemo_ada.run.files import join_some
from nemo_ada.standing import get_users_folder, get_whole_path
from nemo_ada.tasks.lines import pair_of
from nemo_ada.tasks.protocol import (
    Demonstration,
    Prompt,
    Splits,
    Tokenizer,
    make_canonical,
    make_content_id,
)
from nemo_ada.tasks.settings import JsonlSettings
from nemo_ada.tasks.tokenizer import CharTokenizer
from nemo_ada.verify.audit import AUDITED, describe_kinds
from nemo_ada.verify.judge import make_judge, normalise_text
from nemo_ada.verify.verdict import Verdict

log = logging.getLogger(__name__)


class JsonlTask:
    """Prompts and answers of a file, which the constructor reads.

    Lines count from 1.

    Attributes:
        settings: Settings of the task.
        tokenizer: The model's tokenizer, or a character tokenizer that covers the file.
        malformed: Line that cannot be used -> reason.
        repeated: Lines that repeat an earlier prompt with the same answer.
        conflicting: Lines that repeat an earlier prompt with another answer.
        layouts: Layout in words -> number of lines.
        systems: System message of a list of messages -> number of lines. It is not part of the prompt.
        overlong: Lines whose prompt is longer than `settings.max_prompt_tokens`.
        max_prompt_tokens: Tokens of the longest prompt.
        max_new_tokens: Longest response in tokens.

    Raises:
        UserError: The file is missing or has no usable line. `splits` raises it when there are too few prompts.
    """

    name = "jsonl"

    def __init__(self, settings: JsonlSettings, tokenizer: Tokenizer | None = None) -> None:
        self.settings = settings
        self.malformed: dict[int, str] = {}
        self.repeated: list[int] = []
        self.conflicting: list[int] = []
        self.overlong: list[int] = []
        self.layouts: Counter[str] = Counter()
        self.systems: Counter[str] = Counter()
        self._judge = make_judge(settings.verifier, settings.reward, key="task.reward")
        self._path = get_whole_path(Path(settings.path))
        rows = self._read()
        self._judge.try_on(rows[0].entry["reference"])
        if tokenizer is None:
            tokenizer = CharTokenizer.cover(text for row in rows for text in (row.text, self._write_right(row)))
        self.tokenizer: Tokenizer = tokenizer
        self._prompts = self._drop_repeats(rows)
        for warning in self.warnings():
            log.warning("%s", warning)
        self.max_prompt_tokens = max(self._count_tokens(row) for row in self._prompts)
        self.max_new_tokens = settings.max_new_tokens or max(len(self._write_right(row)) for row in self._prompts) + 1

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the prompts and answers. The settings name only the path of the file."""
        rows = sorted((row.text, row.answer) for row in self._prompts)
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]

    def splits(self) -> Splits:
        """Return the three splits. Each has at least one prompt, except supervision with a fraction of 0."""
        return self._splits

    def submit(self, prompt: Prompt, text: str, finished: bool) -> Verdict | Future[Verdict]:
        """Start to label a response 1.0 when it ended by itself and the verifier accepts it, else 0.0.

        `exact` takes no time. `math` and the user's reward work in processes of their own.
        """
        return self._judge.submit(text, prompt.entry["reference"], finished, prompt.text)

    def close(self) -> None:
        """End the verifier's processes."""
        self._judge.close()

    def audit(self) -> list[str]:
        """One sentence for each kind of reference that only an answer in the same words equals."""
        entries = [prompt.entry for prompt in self._prompts[:AUDITED]]
        return describe_kinds(self._judge.audit((entry["line"], entry["reference"]) for entry in entries))

    def warnings(self) -> list[str]:
        """One sentence for each kind of line that was left out, and for system messages."""
        kinds = (
            ([f"line {number}: {why}" for number, why in self.malformed.items()], "malformed"),
            (self.repeated, "repeat an earlier prompt with the same answer"),
            (self.conflicting, "repeat an earlier prompt with another answer (the first one is kept)"),
            (self.overlong, "hold a prompt above max_prompt_tokens"),
        )
        left_out = [
            f"{self._path}: left out {len(lines)} line(s), {what}: {join_some(lines, '; ')}"
            for lines, what in kinds
            if lines
        ]
        systems = [(text, count) for text, count in self.systems.most_common() if text]
        return left_out + [
            f"{self._path}: {count} prompt(s) have the system message {text[:100]!r}, which is not part of them; set "
            "policy.tokenizer.system if the model has a chat template"
            for text, count in systems[:1]
        ]

    @cached_property
    def _splits(self) -> Splits:
        seed = self.settings.seed
        prompts = sorted(self._prompts, key=lambda p: hashlib.sha256(f"{seed}:{p.prompt_id}".encode()).digest())
        heldout, supervision = (
            max(1, round(len(prompts) * share)) if share else 0
            for share in (self.settings.heldout_fraction, self.settings.supervision_fraction)
        )
        if len(prompts) <= heldout + supervision:
            raise UserError(
                f"task.path: {self._path} has {len(prompts)} different prompts, too few for {heldout} held-out, "
                f"{supervision} supervision and at least one train prompt; add lines or lower task.supervision_fraction"
            )
        supervised = prompts[heldout : heldout + supervision]
        return Splits(
            tuple(prompts[heldout + supervision :]),
            tuple(prompts[:heldout]),
            tuple(Demonstration(p.text, self._write_right(p)) for p in supervised),
        )

    def _write_right(self, prompt: Prompt) -> str:
        return self._judge.write_right(prompt.entry["reference"])

    def _read(self) -> list[Prompt]:
        path = str(self._path)
        if not self._path.exists() and "*" not in path:
            raise UserError(f"task.path: {path!r} is no file (from {str(get_users_folder())!r}); {FORMS}")
        rows: list[Prompt] = []
        names = self.settings
        try:
            for number, record in read_records(self._path, on_damage=self.malformed.__setitem__):
                try:
                    pair = pair_of(record, names.prompt_fields, names.answer_fields, self._judge)
                except ValueError as problem:
                    self.malformed[number] = str(problem)
                    continue
                text = pair.prompt + names.prompt_suffix
                self.layouts[pair.layout] += 1
                self.systems[pair.system] += 1
                entry = {"line": number, "answer": pair.answer, "reference": pair.reference}
                rows.append(Prompt(make_content_id(self.name, text), text, pair.answer, entry))
        except UserError as problem:
            raise UserError(f"task.path: {problem}") from None
        if not rows:
            reasons = join_some([f"line {number}: {why}" for number, why in self.malformed.items()], "; ")
            why = f"has no line that can be used ({reasons})" if reasons else "is empty"
            prompt, answer = (
                next((name for name in fields if "." not in name), fields[0])
                for fields in (names.prompt_fields, names.answer_fields)
            )
            example = json.dumps({prompt: "2+3=", answer: "5"})
            raise UserError(
                f"task.path: {path!r} {why}; each line must be a JSON object such as {example}; "
                "set other field names in task.prompt_fields and task.answer_fields"
            )
        return rows

    def _drop_repeats(self, rows: Sequence[Prompt]) -> list[Prompt]:
        """Return the first row of each prompt that the tokenizer can read and that is not too long."""
        limit = self.settings.max_prompt_tokens
        distinct: dict[str, Prompt] = {}
        for row in rows:
            try:
                overlong = self._count_tokens(row) > limit
            except ValueError as reason:
                self.malformed[row.entry["line"]] = f"its prompt {reason}"
                continue
            if overlong:
                self.overlong.append(row.entry["line"])
                continue
            first = distinct.setdefault(make_canonical(row.text), row)
            if first is not row:
                same = normalise_text(first.answer) == normalise_text(row.answer)
                (self.repeated if same else self.conflicting).append(row.entry["line"])
        if not distinct and not self.overlong:
            raise UserError(f"task.path: the model's tokenizer can read no prompt; {self.warnings()[0]}")
        if not distinct:
            shortest = min(self._count_tokens(row) for row in rows if row.entry["line"] in self.overlong)
            raise UserError(
                f"task.max_prompt_tokens={limit} leaves out every prompt of {str(self._path)!r}; the shortest has "
                f"{shortest} tokens, so use that or more"
            )
        return list(distinct.values())

    def _count_tokens(self, row: Prompt) -> int:
        return len(row.text) if isinstance(self.tokenizer, CharTokenizer) else len(self.tokenizer.encode(row.text))
