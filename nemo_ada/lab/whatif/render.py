"""The answer as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nemo_ada.lab.evaluation.statistics import Estimate
from nemo_ada.lab.whatif.answer import DOUBTFUL, Check, Drift, Silent, WhatifReport
from nemo_ada.lab.whatif.forecast import GRPO, REFILL_ROW, Row

if TYPE_CHECKING:
    from rich.table import Table


SINGLE = "ada_single"
LITTLE, MUCH = 0.1, 0.95  # shares of groups without signal below which there is little to win, above which all is lost
SHAPED = 0.02  # between the shares of groups with equal rewards and with equal labels: rewards are more than two values
PUBLISHED = ("ada_seq_balance", "ada_seq_lean")
SPOKEN = (*PUBLISHED, REFILL_ROW)
"""Rows that the sentences name."""


def as_json(answer: WhatifReport) -> str:
    """JSON without NaN, which JSON does not have."""
    return json.dumps(_plain(asdict(answer)), indent=1)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sentences(answer: WhatifReport) -> str:
    """Return the answer in sentences: what was lost, what each way of sampling would lose, and for how many answers."""
    rows = {row.name: row for row in answer.rows}
    logged, n, lines = answer.log.zero_signal, answer.log.depth, list[str]()
    if answer.widened > DOUBTFUL:
        lines.append(
            "Do not trust the forecasts below: right and wrong answers alone do not give such a log. The group size "
            "may be another one, the reward may have more values than two, or answers may be missing (see the notes)."
        )
    if not math.isnan(logged.value):
        lines.append(
            f"{_percent(logged.value)} of your groups taught nothing: their {n} answers all got the same reward."
        )
    elif GRPO in rows:
        zero = rows[GRPO].zero_signal
        lines.append(
            f"Between {_percent(zero.low)} and {_percent(zero.high)} of your groups of {n} taught nothing. The log "
            "has averages only, so it says no more."
        )
    if abs(answer.log.equal_labels - logged.value) > SHAPED:
        lines.append(
            f"What follows is about right and wrong alone: so read, "
            f"{_percent(answer.log.equal_labels)} of them are all equal. Rewards between tell more than that."
        )
    if logged.value > 1.0 - 1e-9:
        lines.append("No group had any signal, so nothing here says what more answers would find. Is the reward right?")
        return "\n".join([*lines, _next_step(answer)])
    if answer.group != n and GRPO in rows:
        lines.append(f"In groups of {answer.group} it would be {_range(rows[GRPO].zero_signal)}.")
    for name in SPOKEN:
        row = rows.get(name)
        if row is not None:
            times = row.responses.value / answer.group
            cost = "no more answers" if times < 1.005 else f"{times:.1f} times the answers"
            lines.append(f"{name}: {_range(row.zero_signal)}, for {cost}.")
    ours = [rows[name] for name in PUBLISHED if name in rows and not math.isnan(rows[name].signal_per_response.value)]
    if ours:
        lines += _at_equal_answers(ours)
        best = max(ours, key=lambda row: row.signal.value)
        lines.append(
            f"Per update, a group of {best.name} carries {_bare(best.signal)} times the signal. It pays where an "
            "update costs more than its answers; elsewhere, GRPO on more prompts is cheaper."
        )
    single = next((row for row in answer.rows if row.name.startswith(SINGLE)), None)
    if single is not None and not math.isnan(single.signal_per_response.value):
        lines.append(
            f"{SINGLE}: one answer for each of {answer.group} times the prompts, so no groups without signal, and "
            f"{single.signal_per_response.value:.2g} times GRPO's signal for as many answers. What its baseline "
            "guesses wrong adds noise, which no log shows."
        )
    lines.append("How much a run would learn is another question, which no log of GRPO answers.")
    return "\n".join([*lines, _next_step(answer)])


def _next_step(answer: WhatifReport) -> str:
    """Say what to do after this answer."""
    zero = answer.log.zero_signal.value
    if math.isnan(zero):
        zero = next((row.zero_signal.value for row in answer.rows if row.name == GRPO), math.nan)
    if answer.widened > DOUBTFUL:
        step = "give the right --group, or name the reward that says right or wrong with --column reward=NAME"
    elif zero > MUCH:
        now, better = ("hard", "easier ones, or a model that was trained further")
        if answer.log.pass_rate.value > 0.5:
            now, better = "easy", "harder ones"
        step = (
            "read ten answers beside their rewards. Where the reward is right, the prompts are too "
            f"{now} for every method here: take {better}"
        )
    elif zero < LITTLE:
        step = "stay with GRPO, whose groups nearly all teach. Another learning rate, or more updates, may help more"
    else:
        step = (
            f"train GRPO and one other row for 50 steps each, and compare them at equal answers: {SINGLE} where you "
            f"have {answer.group} times the prompts, ada_seq_lean where you do not. With TRL these are two lines "
            "(recipes/guide/trl.md), with NeMo-RL reinforce_ada.preset=NAME"
        )
    return f"Next: {step}."


def _at_equal_answers(ours: Sequence[Row]) -> list[str]:
    """Say who gives more signal per answer: GRPO, a preset, or nobody knows from this log."""
    behind = [row for row in ours if row.signal_per_response.high < 1.0]
    ahead = [row for row in ours if row.signal_per_response.low > 1.0]
    unclear = [row for row in ours if row not in behind and row not in ahead]
    lines = []
    if behind:
        them = "either" if len(behind) == len(ours) == 2 else " and ".join(row.name for row in behind)
        lines.append(f"At equal answers GRPO gives more signal than {them}.")
    lines += [
        f"At equal answers {row.name} gives {_bare(row.signal_per_response)} times the signal of GRPO." for row in ahead
    ]
    if unclear:
        them = " and ".join(f"{row.name} ({_bare(row.signal_per_response)} times its signal)" for row in unclear)
        lines.append(f"At equal answers this log does not settle whether GRPO gives more signal than {them}.")
    return lines


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _range(figure: Estimate) -> str:
    low, high = _percent(figure.low).removesuffix(" %"), _percent(figure.high)
    return _percent(figure.value) + ("" if f"{low} %" == high else f" ({low} to {high})")


def _bare(figure: Estimate) -> str:
    return f"{figure.value:.2g} ({figure.low:.2g} to {figure.high:.2g})"


def introduction(answer: WhatifReport) -> str:
    """Return what the log holds, in lines of text."""
    log = answer.log
    held = (
        f"averages of {log.steps:,} steps" if log.responses is None
        else f"{log.responses:,} responses in {log.groups:,} groups, {log.prompts:,} prompts, {log.steps:,} steps"
    )  # fmt: skip
    lines = [
        f"{', '.join(log.forms)}: {held}",
        f"logged: pass rate {_estimate(log.pass_rate)}"
        + ("" if math.isnan(log.zero_signal.value) else f", groups without signal {_estimate(log.zero_signal)}")
        + f", depth {log.depth}" + ("" if math.isnan(log.tokens) else f", {log.tokens:,.0f} tokens per response"),
        *([] if answer.drift is None else _drift(answer.drift)),
        *_silent(answer.silent, log.depth),
        *([] if answer.check is None else [_check(answer.check, log.depth)]),
        *(f"note: {note}" for note in answer.notes),
    ]  # fmt: skip
    return "\n".join(lines)


def _drift(drift: Drift) -> list[str]:
    lines = [f"drift: pass rate {_estimate(drift.first)} in the first third, {_estimate(drift.last)} in the last"]
    if drift.same is not None:
        same = drift.same
        lines.append(
            f"  {same.prompts:,} prompts came again: {same.difference:+.3f} [{same.low:+.3f}, {same.high:+.3f}] from "
            "first to last visit"
        )
    return lines


def _silent(silent: Silent, depth: int) -> list[str]:
    known = [] if math.isnan(silent.never_correct) else [
        f"prompts that never taught: {silent.never_correct:.1%} never correct, {silent.always_correct:.1%} always"
    ]  # fmt: skip
    return [
        *known,
        f"  pass rate below 1 %: {_share(silent.below)} of the groups, above 99 %: {_share(silent.above)}",
        f"  of the groups without a correct response, {silent.pool} responses instead of {depth} would find one in "
        f"{_share(silent.rescued)}",
    ]


def table(answer: WhatifReport) -> Table:
    """Return a table of rich: what is drawn and learned."""
    from rich.table import Table

    shown = Table(
        title=f"per prompt, n = {answer.group}, {answer.prompts} prompts per step: value and bounds",
        caption="signal and signal per response: relative to grpo",
    )
    shown.add_column("sampling", overflow="fold")
    for name in ("at most", "responses", "tokens", "zero-signal", "signal", "signal per response"):
        shown.add_column(name, justify="right", overflow="fold")
    for row in answer.rows:
        cap = "" if row.max_responses is None else str(row.max_responses)
        shown.add_row(
            row.name, cap, _figure(row.responses), _figure(row.tokens), _share(row.zero_signal), _figure(row.signal),
            _figure(row.signal_per_response),
        )  # fmt: skip
    return shown


def _check(check: Check, depth: int) -> str:
    """Say whether the forecast holds where the log knows the answer."""
    held = "which the bounds hold" if check.predicted.low <= check.seen <= check.predicted.high else (
        "which is OUTSIDE the bounds: do not trust the forecasts"
    )  # fmt: skip
    return (
        f"check: from {check.half} answers of each group, groups of {depth} without signal are "
        f"{_share(check.predicted)}; the log has {check.seen:.1%}, {held}"
    )


def _estimate(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _figure(figure: Estimate) -> str:
    if math.isnan(figure.value):
        return "n/a"
    return f"{_number(figure.value)} [{_number(figure.low)}, {_number(figure.high)}]"


def _share(figure: Estimate) -> str:
    if math.isnan(figure.value):
        return "n/a"
    return f"{figure.value:.1%} [{figure.low:.1%}, {figure.high:.1%}]"


def _number(value: float) -> str:
    """Three digits, and whole numbers from 100 on."""
    if not math.isfinite(value):
        return "?"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
