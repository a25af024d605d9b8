"""How far a call is from the mathematics: files and functions entered, frames above the bound.

python tests/support/journeys.py [folder that holds another checkout, called pyroccam]
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

OURS = ("/data/", "/models/", "/guides/", "/inference/", "/experiments/")
KL = "_kl_normal_log_uniform"  # of the prior in all journeys but the last
STEPS = {"progress": False, "device": "cpu", "compile": False, "weight_decay": 0.0, "epochs": 3}


class Walk:
    """What is entered while a call runs; frames are those of this house alone."""

    def __init__(self, root: Path, until: str) -> None:
        self.root, self.until = f"{root}", until
        self.files: set[str] = set()
        self.functions: set[tuple[str, str]] = set()
        self.moves, self.least = 0, 10**6
        self._last = ""

    def own(self, frame: FrameType) -> str:
        name = frame.f_code.co_filename
        inside = name.startswith(self.root) and "/tests/" not in name
        return name if inside and any(room in name for room in OURS) else ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not (name := self.own(frame)):
            return
        self.files.add(name)
        self.functions.add((name, frame.f_code.co_name))
        self.moves += name != self._last
        self._last = name
        if frame.f_code.co_name == self.until:
            self.least = min(self.least, self._above(frame))

    def _above(self, frame: FrameType | None) -> int:
        count = 0
        while (frame := frame.f_back if frame else None) is not None:
            count += bool(self.own(frame))
        return count

    def say(self, name: str) -> None:
        frames = "-" if self.least == 10**6 else self.least
        print(f"{name:28} {len(self.files):5} {len(self.functions):9} {self.moves:6} {frames:>6}")


def walked(root: Path, name: str, call: Callable[[], Any], until: str = KL) -> Any:
    """The result of a call, of which a line is printed."""
    walk = Walk(root, until)
    sys.setprofile(walk)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = call()
    finally:
        sys.setprofile(None)
    walk.say(name)
    return found


def main() -> None:
    if len(sys.argv) > 1:  # not the checkout that is installed
        sys.meta_path = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
        sys.path.insert(0, sys.argv[1])
    from pyroccam import data, guides, inference, models
    from pyroccam.cli.commands import app
    from torch import nn

    root = Path(data.__file__).parents[1]
    digits = data.load("digits", seed=0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))

    def pair() -> Any:
        prior = models.priors.GroupNormalJeffreys()
        model = models.BayesianNetwork(net, digits, prior=prior)
        return model, guides.MeanField(model)

    print(f"{'journey':28} files functions  moves frames to the KL")
    model, guide = walked(root, "build a pair", pair)
    fit = walked(
        root, "inference.fit, 3 epochs", lambda: inference.fit(model, guide, digits, **STEPS)
    )
    walked(root, "fit.evaluate", fit.evaluate)
    walked(root, "compress", lambda: inference.shrink(fit, cut=inference.Thresholds(0.0)))
    walked(root, "narrow", lambda: inference.narrow(fit, cut=inference.Thresholds(0.0)))
    walked(root, "to_arviz", lambda: fit.to_arviz(20))
    with tempfile.TemporaryDirectory() as folder:
        line = ["fit", "ldn", "--data", "spirals", "--set", "max_depth=2", "--set", "steps=20",
                "--set", "compile=false", "--no-compare", "--out", f"{folder}/run"]  # fmt: skip
        run = lambda: app(line, standalone_mode=False)  # noqa: E731
        walked(root, "pyroccam fit ldn", run, until="log_likelihood")


if __name__ == "__main__":
    main()
