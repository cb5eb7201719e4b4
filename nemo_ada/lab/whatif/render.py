"""The answer as text and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from nemo_ada.lab.evaluation.statistics import UNKNOWN, Estimate
from nemo_ada.lab.whatif.answer import DOUBTFUL, MUCH, WhatifReport
from nemo_ada.lab.whatif.forecast import GRPO, REFILL_ROW

if TYPE_CHECKING:
    from rich.table import Table


SINGLE = "ada_single"
VAGUE = 0.5  # between the bounds of a share that says nothing
LITTLE = 0.1  # share of groups without signal below which there is little to win
SHAPED = 0.02  # between the shares of groups with equal rewards and with equal labels: rewards are more than two values
PUBLISHED = ("ada_seq_balance", "ada_seq_lean")
SPOKEN = (*PUBLISHED, REFILL_ROW)
"""Rows that the sentences name."""


def write_json(answer: WhatifReport) -> str:
    """JSON without NaN, which JSON does not have."""
    return json.dumps(json.loads(json.dumps(asdict(answer)), parse_constant=lambda _: None), indent=1)


def write_sentences(answer: WhatifReport) -> str:
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
            f"{_format_percent(logged.value)} of your groups taught nothing: their {n} answers all got the same reward."
        )
    elif GRPO in rows:
        zero = rows[GRPO].zero_signal
        lines.append(
            f"Between {_format_percent(zero.low)} and {_format_percent(zero.high)} of your groups of {n} taught "
            "nothing. The log has averages only, so it says no more."
        )
    if abs(answer.log.equal_labels - logged.value) > SHAPED:
        lines.append(
            f"What follows is about right and wrong alone: so read, "
            f"{_format_percent(answer.log.equal_labels)} of them are all equal. Rewards between tell more than that."
        )
    if answer.log.repeated:
        lines.append(
            "The answers of a group repeat each other, as with greedy decoding (temperature 0). So a group is one "
            "answer, and the log does not say what sampling would find: the forecasts below do not hold."
        )
        return "\n".join([*lines, _advise(answer)])
    if logged.value > 1.0 - 1e-9:
        lines.append("No group had any signal, so nothing here says what more answers would find. Is the reward right?")
        return "\n".join([*lines, _advise(answer)])
    if answer.group != n and GRPO in rows:
        lines.append(f"In groups of {answer.group} it would be {_format_range(rows[GRPO].zero_signal)}.")
    for name in SPOKEN:
        row = rows.get(name)
        if row is not None:
            times = row.responses.value / answer.group
            cost = "no more answers" if times < 1.005 else f"{times:.1f} times the answers"
            lines.append(f"{name}: {_format_range(row.zero_signal)}, for {cost}.")
    for name in PUBLISHED:
        if name in rows and not math.isnan(rows[name].signal_per_response.value):
            per_update, per_answer = _format_ratio(rows[name].signal), _format_ratio(rows[name].signal_per_response)
            lines.append(f"Signal of {name}: {per_update} times GRPO's per update, {per_answer} times per answer.")
    if SINGLE in rows and not math.isnan(rows[SINGLE].signal_per_response.value):
        lines.append(
            f"{SINGLE}: one answer for each of {answer.group} times the prompts, so no groups without signal, and "
            f"{rows[SINGLE].signal_per_response.value:.2g} times GRPO's signal for as many answers. What its baseline "
            "guesses wrong adds noise, which no log shows."
        )
    lines.append(
        "Below 1 time per answer, GRPO on more prompts gives more. How much a run would learn, no log of GRPO says."
    )
    return "\n".join([*lines, _advise(answer)])


def _advise(answer: WhatifReport) -> str:
    """Say what to do after this answer."""
    zero, vague = answer.log.zero_signal.value, False
    if math.isnan(zero):
        forecast = next((row.zero_signal for row in answer.rows if row.name == GRPO), UNKNOWN)
        zero, vague = forecast.value, forecast.high - forecast.low > VAGUE
    if answer.log.repeated:
        step = (
            f"sample {answer.group} answers per prompt with temperature 1, each with a seed of its own, and ask again "
            "with that log"
        )
    elif answer.widened > DOUBTFUL:
        step = "give the right --group, or name the reward that says right or wrong with --column reward=NAME"
    elif vague:
        step = (
            "log the responses of some steps, and ask again with them, because the mean reward alone leaves nearly "
            "everything open: trainer.rollout_data_dir=FOLDER in verl, log_completions=True in TRL, "
            "--save-debug-rollout-data in slime and miles"
        )
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


def _format_percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _format_range(figure: Estimate) -> str:
    low, high = _format_percent(figure.low).removesuffix(" %"), _format_percent(figure.high)
    return _format_percent(figure.value) + ("" if f"{low} %" == high else f" ({low} to {high})")


def _format_ratio(figure: Estimate) -> str:
    return f"{figure.value:.2g} ({figure.low:.2g} to {figure.high:.2g})"


def write_introduction(answer: WhatifReport) -> str:
    """Return what the log holds, in lines of text."""
    log, lines = answer.log, list[str]()
    held = f"averages of {log.steps:,} steps"
    if log.responses is not None:
        held = f"{log.responses:,} responses in {log.groups:,} groups, {log.prompts:,} prompts, {log.steps:,} steps"
    zero = (
        "" if math.isnan(log.zero_signal.value) else f", groups without signal {_format_figure(log.zero_signal, '.1%')}"
    )
    tokens = "" if math.isnan(log.tokens) else f", {log.tokens:,.0f} tokens per response"
    lines.append(f"log: {held}, pass rate {_format_figure(log.pass_rate, '.3f')}{zero}, depth {log.depth}{tokens}")
    if log.never_correct is not None:
        lines.append(f"prompts never correct: {log.never_correct:.1%}, always correct: {log.always_correct:.1%}")
    check = answer.check
    if check is not None:
        held = "which the bounds hold"
        if not check.predicted.low <= check.seen <= check.predicted.high:
            held = "which is OUTSIDE the bounds: do not trust the forecasts"
        lines.append(
            f"check: from {check.half} answers of each group, groups of {log.depth} without signal are "
            f"{_format_figure(check.predicted, '.1%')}; the log has {check.seen:.1%}, {held}"
        )
    return "\n".join([*lines, *(f"note: {note}" for note in answer.notes)])


def make_table(answer: WhatifReport) -> Table:
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
        figures = [row.responses, row.tokens, row.zero_signal, row.signal, row.signal_per_response]
        cells = (_format_figure(figure, ".1%" if figure is row.zero_signal else "") for figure in figures)
        shown.add_row(row.name, "" if row.max_responses is None else str(row.max_responses), *cells)
    return shown


def _format_figure(figure: Estimate, form: str) -> str:
    """Return a value with its bounds. Without a form a number has three digits, and is whole from 100 on."""
    if math.isnan(figure.value):
        return "n/a"
    value, low, high = (
        format(end, form or (",.0f" if abs(end) >= 100 else ".3g")) for end in (figure.value, figure.low, figure.high)
    )
    return f"{value} [{low}, {high}]"
