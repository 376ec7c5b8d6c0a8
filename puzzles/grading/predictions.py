"""Predict first, then look: `predict` keeps a number, `reveal` holds it against the truth.

Both show what they have to say themselves, wherever in a cell they stand.
"""

import html
import sys
from dataclasses import dataclass
from typing import Any

from reference.errors import BadInput

from .course import Course, here


@dataclass(frozen=True)
class Prediction:
    """What a learner predicted, and the truth where it is known."""

    question: str
    said: dict[str, float]
    truth: dict[str, float]

    def __str__(self) -> str:
        if not self.truth:
            said = ", ".join(f"{name} {_number(value)}" for name, value in self.said.items())
            return (
                f"{self.question}: you say {said}"
                if said
                else f"{self.question}: write your number in place of the dots, then run the cells that follow"
            )
        return "\n".join([self.question, *(f"  {line}" for line in self._lines())])

    __repr__ = __str__

    def _lines(self) -> list[str]:
        lines = []
        for name, true in self.truth.items():
            said = self.said.get(name)
            line = f"{name}: {_number(true)}"
            if said is not None:
                line = f"{name}: you said {_number(said)}, it is {_number(true)}{_off(said, true)}"
            lines.append(line)
        return lines

    def _repr_html_(self) -> str:
        style = "border-left:4px solid #0072B2;padding:0.3em 0.9em;margin:0.4em 0"
        inside = "margin:0;background:none;word-break:normal;overflow-wrap:anywhere"
        return f'<div style="{style}"><pre style="{inside}">{html.escape(str(self))}</pre></div>'


def predict(question: str, *, course: Course | None = None, **numbers: Any) -> None:
    """Keep a prediction, and say it: `predict("naive, 4 ranks", seconds=0.6)`. Dots for a number keep nothing.

    Raises BadInput where it is neither a number nor dots.
    """
    said = {name: _as_number(name, value) for name, value in numbers.items() if value is not ...}
    if said:
        (course or here()).state.predict(question, said)
    _show(Prediction(question, said, {}))


def reveal(question: str, *, course: Course | None = None, **truth: float) -> None:
    """Show the last prediction for a question beside the truth: `reveal("naive, 4 ranks", seconds=0.61)`."""
    said = (course or here()).state.prediction(question) or {}
    _show(Prediction(question, said, {name: float(value) for name, value in truth.items()}))


def _show(prediction: Prediction) -> None:
    """As a box in a notebook, as lines elsewhere."""
    if "IPython" in sys.modules:
        from IPython.display import display

        display(prediction)
    else:
        print(prediction)


def _as_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{name}={value!r} is no number: write one without its unit, such as {name}=0.6") from None


def _number(value: float) -> str:
    return f"{value:,.4g}"


def _off(said: float, true: float) -> str:
    if said == true:
        return " (well predicted)"
    if not said or not true or said * true < 0:
        return ""
    factor = max(said / true, true / said)
    return " (well predicted)" if factor < 1.1 else f" (off by a factor of {factor:.3g})"
