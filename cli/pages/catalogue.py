"""The figures of a run: their order, their titles, and what they say to those who cannot see."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .files import RunFiles
from .html import Picture

DIAGNOSIS = "diagnose-"  # files of diagnostics begin with it


_CATALOGUE = {
    r"depth": (
        "How deep?",
        "The learnt distribution over depth beside the exact posterior given the weights, and "
        "below the negative log-likelihood of the network cut at each depth.",
    ),
    r"path": (
        "A network for every weight of the KL",
        "All are read off one fit: their losses, the bytes of their files, and what is left of "
        "the network. The line is at the one that was chosen.",
    ),
    r"trade": (
        "What do other sizes cost?",
        "Networks beside the chosen one, of other depths or of other weights of the KL, cut and "
        "packed by the same posterior.",
    ),
    r"bytes": (
        "Is the file as small as the bound says?",
        "On the dashed line it is. The bound counts weights, the file also numbers beside them.",
    ),
    r"functions": (
        "What each depth computes",
        "Probability of class 1 over the plane of the inputs, with the training rows.",
    ),
    r"structure.*": (
        "Which operation goes where?",
        "A line is as wide as its operation is probable; those that were chosen are in colour.",
    ),
    r"sparsity": (
        "What is left of each layer",
        "Dark is what is left. Units are sorted, since their order means nothing; pixels stand "
        "where they are in the image.",
    ),
    r"scales": (
        "What the posterior knows of each scale",
        "The median with its interval; what is kept in colour, what is cut in grey behind the "
        "dashed line.",
    ),
    r"irrelevance": (
        "Where the cut is made",
        "How little each group or weight matters; right of the line is what was cut. Grey on "
        "its left is what led nowhere then.",
    ),
    r"bits": (
        "Bits and bytes",
        "Bits of a weight that its posterior knows, and what takes the file.",
    ),
    r"predictive.*": (
        "Predictions and how sure they are",
        "The narrow band is what the network does not know, the wide one adds noise. Intervals "
        "are honest where as many rows lie inside as they say.",
    ),
    r"reliability": (
        "Is it as sure as it is right?",
        "On the dashed line confidence is earned; below it the network is too sure.",
    ),
    r"confusions": (
        "Which class is taken for which?",
        "Of the test rows of each class, the percentage for each predicted one; on the diagonal "
        "it is right.",
    ),
    r"training": (
        "Training",
        "What was recorded after each epoch; loss and NLL in nats per row.",
    ),
}
"""Titles and texts of figures by a pattern of their names, in reading order."""


def slug(name: str) -> str:
    """The name of a finding as part of a file's: ``k-hat of the depth`` to
    ``k-hat-of-the-depth``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def pictures(run: RunFiles) -> dict[str, Picture]:
    """The figures of a run by name, in reading order; those of diagnostics are left out.

    Figures that the catalogue does not know come last, under their own names.
    """
    files = {n: p for n, p in run.figures().items() if not n.startswith(DIAGNOSIS)}
    found: dict[str, Picture] = {}
    for name in reading_order(files):
        known = (said for pattern, said in _CATALOGUE.items() if re.fullmatch(pattern, name))
        title, text = next(known, (name.replace("-", " ").replace("_", " "), ""))
        alt = f"Figure “{title}” of {run.name}. {text}".strip()
        of_one = len(run.seeds) > 1 and files[name].parent != run.folder / "figures"
        seed = f"Seed {run.first['seed']}." if of_one else ""
        found[name] = Picture(files[name], alt, title, text, seed)
    return found


def reading_order(names: Iterable[str]) -> list[str]:
    """Names of figures as the catalogue has them, those that it does not know last."""

    def place(name: str) -> int:
        matches = (k for k, pattern in enumerate(_CATALOGUE) if re.fullmatch(pattern, name))
        return next(matches, len(_CATALOGUE))

    return sorted({*names}, key=lambda name: (place(name), name))
