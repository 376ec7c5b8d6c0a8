"""A verdict for people: lines for a terminal, a card for a notebook."""

import base64
import html as markup
from math import inf
from typing import Any

from .verdict import Stage, Verdict

MAX_OUTPUT = 2000  # characters of what the ranks printed
_LOOKS = {Stage.PASSED: ("✓", "#009E73"), Stage.UNSOLVED: ("·", "#767676")}  # Okabe-Ito: green; grey
_REASON = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;margin:0.4em 0;background:none;border:none"
_WRONG = ("✗", "#D55E00")  # vermilion


def text(verdict: Verdict) -> str:
    """Several lines without colour: what, why, budgets, what was printed."""
    mark, _ = _LOOKS.get(verdict.stage, _WRONG)
    first, *rest = verdict.reason.splitlines() or [""]
    lines = [f"{mark} {verdict.name}: {verdict.stage} ({verdict.seconds:.2f} s)"]
    lines += [f"  {first}", *(f"  {line}" for line in rest)]
    lines += [f"  {line}" for line in _columns(verdict)]
    lines += [f"  {line}" for line in _details(verdict)]
    if verdict.output:
        lines += ["  printed:", *(f"    {line}" for line in verdict.output[:MAX_OUTPUT].splitlines())]
    return "\n".join(lines)


def _details(verdict: Verdict) -> list[str]:
    """What makes the same check again, and what this machine can't vouch for."""
    if verdict.case is None:
        return []
    again = f"seed {verdict.seed}: `--seed {verdict.seed}` checks with the same values and sizes"
    lacks = [f"this machine lacks {wall}; see `rankwise doctor`" for wall in verdict.unenforced]
    return lacks if verdict.seed is None else [again, *lacks]


def _columns(verdict: Verdict) -> list[str]:
    """The table of budgets, aligned."""
    if not verdict.table:
        return []
    rows = [("", "target", "yours", "optimum", ""), *((*row.cells, f"({row.case})") for row in verdict.table)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in (1, 2, 3)), row[4]]).rstrip()
        for row in rows
    ]


def html(verdict: Verdict, note: str = "") -> str:
    """A card with the reason, the table, and a picture of the run."""
    mark, colour = _LOOKS.get(verdict.stage, _WRONG)
    parts = [
        f'<div style="border-left:4px solid {colour};padding:0.3em 0.9em;margin:0.4em 0;max-width:60em">',
        f'<div><b style="color:{colour}">{mark} {_plain(str(verdict.stage))}</b>'
        f" · <code>{_plain(verdict.name)}</code> · {verdict.seconds:.2f} s</div>",
        f'<pre style="{_REASON}">{_plain(verdict.reason)}</pre>',
        _table(verdict),
        f"<details><summary>printed</summary><pre>{_plain(verdict.output[:MAX_OUTPUT])}</pre></details>"
        if verdict.output
        else "",
        _picture(verdict),
        *(f"<div><small>{_plain(line)}</small></div>" for line in _details(verdict)),
        f"<div><i>{_plain(note)}</i></div>" if note else "",
        "</div>",
    ]
    return "\n".join(part for part in parts if part)


_HEAD = (("", "left"), ("target", "right"), ("yours", "right"), ("optimum", "right"), ("case", "left"))


def _table(verdict: Verdict) -> str:
    if not verdict.table:
        return ""
    head = "".join(f'<th style="text-align:{side}">{name}</th>' for name, side in _HEAD)
    rows = ""
    for row in verdict.table:
        name, target, yours, optimum = row.cells
        colour = "" if row.holds else f";color:{_WRONG[1]};font-weight:bold"
        cells = f'<td style="text-align:left">{name}</td><td>{target}</td>'
        cells += f'<td style="text-align:right{colour}">{yours}</td><td>{optimum}</td>'
        rows += f'<tr>{cells}<td style="text-align:left">{_plain(str(row.case))}</td></tr>'
    return f'<table style="margin:0.4em 0"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _picture(verdict: Verdict) -> str:
    """The run as a timeline. One that can't be drawn is left out: a picture never stands in a verdict's way."""
    try:
        picture = draw(verdict)
    except Exception as error:
        return f"<div><small>no picture: {_plain(f'{type(error).__name__}: {error}'[:200])}</small></div>"
    if picture is None:
        return ""
    data = base64.b64encode(picture).decode()
    seen = "what the ranks said to each other" if verdict.step is None else "what each rank computes when"
    return f'<img alt="{seen}" style="max-width:100%" src="data:image/png;base64,{data}">'


def draw(verdict: Verdict) -> bytes | None:
    """The case of a verdict as a PNG: a lane for each rank, and the messages. None where nothing was said.

    Of a schedule puzzle it is the learner's schedule.
    """
    if verdict.step is not None:
        from visualizations import schedules

        return schedules.draw(verdict.step).png()
    trace = verdict.trace
    if trace is None or not any(trace.events):
        return None
    from reference.trace import Network
    from visualizations import timeline

    steps = trace.replay(Network.uniform(alpha=1.0, beta=inf))
    return timeline.draw(steps, title=_title(verdict, trace, steps), unit="messages one after another").png()


def _title(verdict: Verdict, trace: Any, steps: Any) -> str:
    """What a finished run cost; of a run that broke off, which rank waits for which, where one does."""
    if verdict.stage is Stage.ERROR:
        stuck = any(span.kind.name == "STUCK" for span in steps.spans)
        return "" if stuck else f"{verdict.case}: what the ranks said to each other until then"
    sent = max(trace.bytes_sent, default=0)
    return f"{verdict.case}: {trace.steps} step{'s' * (trace.steps != 1)}, at most {sent:,} B sent by a rank"


def _plain(value: str) -> str:
    return markup.escape(value)
