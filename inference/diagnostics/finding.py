"""A finding of a diagnostic, in words."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

from ...data import card
from ..storage import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal["good", "doubtful", "poor", "refused"]
"""The outcome of a finding, in one word."""

WORST_FIRST: tuple[Verdict, ...] = ("poor", "doubtful", "good", "refused")


def verdict_of(value: float, good: float, most: float) -> Verdict:
    """``good`` up to one limit, ``doubtful`` up to another, then (and of what is no number)
    ``poor``."""
    return "good" if value <= good else "doubtful" if value <= most else "poor"


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    Attributes:
        name: of the diagnostic, short: ``ELBO``, ``k-hat of the depth``.
        verdict: ``refused`` where the diagnostic would mean nothing here.
        text: one or two sentences for a person: what was found, and what to do about it.
        numbers: behind the words, of Python's own types, as they go into JSON.
        figure: that shows it, or ``None``.
    """

    name: str
    verdict: Verdict
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)
    figure: Figure | None = None

    def __str__(self) -> str:
        return f"{self.verdict}: {self.name}. {self.text}"

    def _repr_html_(self) -> str:
        facts = {k: v for k, v in self.numbers.items() if isinstance(v, bool | int | float | str)}
        shown = card(f"{self.name}: {self.verdict}", facts, [self.text])
        if self.figure is None:
            return shown
        file = BytesIO()
        self.figure.savefig(file, format="png", dpi=100)
        image = b64encode(file.getvalue()).decode()
        picture = f'<img alt="{escape(self.name)}" src="data:image/png;base64,{image}"/>'
        return f"<div>{shown}<br/>{picture}</div>"

    def to_json(self) -> dict[str, Any]:
        """All but the figure; numbers that are not finite are ``None``."""
        found = {name: value for name, value in vars(self).items() if name != "figure"}
        return dict(plain(found))
