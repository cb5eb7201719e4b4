"""From step times to job slots: how long a job must be, and how many of them a run needs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from nemo_ada.errors import UserError
from nemo_ada.lab.plan.forecast import Forecast
from nemo_ada.lab.plan.planned_run import Schedule
from nemo_ada.run.job_control import MARGIN_SECONDS

MAX_SECONDS = 366 * 86400  # of a slot, or of its start


@dataclass(frozen=True, slots=True)
class JobSlots:
    """The job slots of a run.

    Attributes:
        seconds: length of a slot.
        cold_start: seconds from a slot's start to its first step.
        origin: where cold_start comes from.
        lead: seconds before the end at which the batch script must be signalled (--signal=B:USR1@lead).
        steps: expected steps per slot.
        guaranteed: steps per slot even if each is the worst.
        count: slots until the last step.
        gpu_hours: of all slots.
        save_share: share of a slot's used seconds that saves take, with the one at its end.
        useful: share of the used seconds that steps take. The rest goes to starts, saves, validations and the lead.
        step_seconds: seconds for steps in the worst case: the slot without its start, a validation, a save and a
            margin.
    """

    seconds: float
    cold_start: float
    origin: str
    lead: int
    steps: int
    guaranteed: int
    count: int
    gpu_hours: float
    save_share: float
    useful: float
    step_seconds: float

    @property
    def fits(self) -> bool:
        """Whether the start, one worst step and its save fit into a slot."""
        return self.guaranteed >= 1


def parse_time(text: str) -> float:
    """Return the seconds of SLURM's [days-]hours:minutes:seconds, or minutes. Raises UserError."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        raise UserError(f"--time={text}: write it as SLURM does, e.g. 04:00:00, 2-00:00:00 or 240 (minutes)")
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1] is not None:
        seconds = days * 86400 + first * 3600 + second * 60 + third
    elif match[4] is not None:
        seconds = first * 3600 + second * 60 + third
    else:
        seconds = first * 60 + second
    if not 0 < seconds <= MAX_SECONDS:
        raise UserError(f"--time={text}: a job slot lasts at least a second and at most a year, e.g. 04:00:00")
    return float(seconds)


def format_time(seconds: float) -> str:
    """Return the seconds as hh:mm:ss, rounded up to a minute."""
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def plan_slots(
    forecast: Forecast,
    schedule: Schedule,
    *,
    seconds: float,
    cold_start: float,
    gpus: int,
    origin: str = "assumed",
) -> JobSlots:
    """The slots of a run.

    The lead has time for a step, a validation and a save, because NeMo-RL validates a step before it checks whether to
    save and end.

    Args:
        forecast: seconds of a step.
        schedule: steps, validations and saves of the run.
        seconds: length of a slot.
        cold_start: seconds from a slot's start to its first step.
        gpus: GPUs of the job.
        origin: where cold_start comes from.
    """
    steps, val_period, save_period = schedule.steps, schedule.val_period, schedule.save_period
    step, save, evaluation = forecast.step, forecast.save, forecast.evaluation
    before_save = (evaluation.p95, evaluation.worst) if val_period else (0.0, 0.0)
    lead = math.ceil((step.p95 + before_save[0] + save.worst + MARGIN_SECONDS) / 30) * 30
    between = save.p50 / save_period + (evaluation.p50 / val_period if val_period else 0.0)
    usable = seconds - cold_start - lead
    each = max(1, int(usable / (step.p50 + between))) if usable > 0 else 0
    worst_between = save.worst / save_period + (evaluation.worst / val_period if val_period else 0.0)
    step_seconds = seconds - cold_start - before_save[1] - save.worst - MARGIN_SECONDS
    worst = step.worst + worst_between
    # A step that begins before the signal is made; after it none begins.
    guaranteed = max(int(min(step_seconds, usable) / worst), int(usable > 0 and step_seconds >= worst))
    count = math.ceil(steps / each) if each else 0
    left = steps - (count - 1) * each if each else 0
    last = cold_start + left * (step.p50 + between) + save.p50
    used = (count - 1) * seconds + min(last, seconds) if count else 0.0  # seconds of all slots
    first = min(each, steps)  # steps of a slot that is used to its end, or of the only one
    saves = first // save_period + (1 if first % save_period else 0)  # a slot ends with a save of its own
    return JobSlots(
        seconds, cold_start, origin, lead, each, guaranteed, count, used / 3600 * gpus,
        save_share=saves * save.p50 / min(seconds, used) if count else 0.0,
        useful=steps * step.p50 / used if count else 0.0, step_seconds=step_seconds,
    )  # fmt: skip
