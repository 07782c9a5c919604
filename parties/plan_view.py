"""What the planner found, for a person and for a program."""

from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from parties.console import size
from splitlearn.pipeline.planner import Plan, closed_forms, leakage
from splitlearn.pipeline.speeds import Speeds

__all__ = ["figures", "show"]


def figures(found: Plan, speeds: Speeds) -> dict[str, Any]:
    """A plan as `--json` has it."""
    costed = found.costed
    return {
        "setting": asdict(found.setting),
        "step_s": found.step_s,
        "limit_s": costed.limit_s,
        "kept_step_s": costed.kept_s,
        "up_bytes": costed.up,
        "down_bytes": costed.down,
        "largest_message_bytes": costed.largest,
        "error": costed.error,
        "leakage": asdict(leakage(found.setting, width=speeds.width)),
        "closed_forms": asdict(closed_forms(costed.chain)),
        "busy_s": {
            lane: found.run.busy_s(lane) for lane in sorted({span.lane for span in found.run.spans})
        },
    }


def show(
    given: Plan, best: Plan | None, shorter: Plan | None, *, speeds: Speeds, job: Path
) -> None:
    """A plan as a person reads it. given: the job as it is; shorter: the same with steps that interleave."""
    screen = Console(soft_wrap=True, highlight=False, emoji=False)
    screen.print(_table(given, best, speeds))
    if best is None:
        screen.print("no setting keeps what is wanted", markup=False)
    if shorter is not None:
        screen.print(_interleaved(best or given, shorter), markup=False)
    screen.print(_closed(best or given), markup=False)
    screen.print(
        "the class of leakage is a guess from cut and rank; splitlearn trusted preflight "
        f"{job} measures it",
        markup=False,
    )


def _table(given: Plan, best: Plan | None, speeds: Speeds) -> Table:
    plans = [given] if best is None else [given, best]
    table = Table("", "the job as it is", *(["the plan"] if best is not None else []), box=None)
    rows = [_column(found, speeds) for found in plans]
    for name in rows[0]:
        table.add_row(name, *(row[name] for row in rows))
    return table


def _column(found: Plan, speeds: Speeds) -> dict[str, str]:
    setting, costed = found.setting, found.costed
    class_ = leakage(setting, width=speeds.width)
    kinds = ("activation", "output", "gradient", "input_gradient")
    used = 4 if setting.returns else 3 if setting.gradients else 2
    inner = dict(zip(("inner", "inner_gradient"), setting.inner, strict=True))
    parts = pairwise((setting.first, *setting.starts, setting.last))
    return {
        "trunk": f"layers {' + '.join(f'[{a}, {b})' for a, b in parts)} of {speeds.layers}",
        "micro_batches": str(setting.micro_batches),
        "in_flight": str(setting.in_flight),
        "order": setting.order,
        "staleness": str(setting.staleness),
        **dict(zip(kinds[:used], setting.codecs, strict=False)),
        **(dict(list(inner.items())[: 2 if setting.gradients else 1]) if setting.starts else {}),
        "step, simulated": f"{found.step_s:.3g} s",
        "no schedule under": f"{costed.limit_s:.3g} s",
        **(
            {}
            if costed.kept_s is None
            else {"later epochs": f"{costed.kept_s:.3g} s, nothing sent"}
        ),
        "sent, received": f"{size(costed.up)}, {size(costed.down)}",
        "error of codecs": f"{costed.error:.2g}",
        "text": class_.text,
        "labels": class_.labels,
    }


def _interleaved(found: Plan, shorter: Plan) -> str:
    saved = 1 - shorter.step_s / found.step_s
    price = (
        "and another model: gradients of weights one step old"
        if shorter.setting.gradients
        else "without a change of numbers, for no gradient leaves"
    )
    return (
        f"schedule.staleness = 1 would make a step {shorter.step_s:.3g} s, {saved:.0%} less, {price}; "
        "the planner never takes it by itself"
    )


def _closed(found: Plan) -> str:
    chain = found.costed.chain
    closed = closed_forms(chain)
    return (
        f"closed forms, {len(chain.stages) + 2} equal stages: {closed.alone_s:.3g} s with free "
        f"transfers, {closed.blocking_s:.3g} s with blocking ones, {closed.overlapped_s:.3g} s overlapped"
    )
