"""The two-level problem: hyperparameters that are best for Q, of posteriors that are best for L."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from ...models.bayesian import BayesianNetwork
from ...models.checks import one_of, unknown_name
from ...models.contexts import seeded
from ..fits.fitting import Fit, pick_device
from ..posterior.predict import component_weights
from ..training.settings import Settings
from ..training.terminal import FitProgress
from ..training.trainer import Interrupted
from .hypergradient import IndefiniteCurvature, NonFiniteGradient
from .levels import Level, Objectives
from .search import Rows, Search, word_of

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = ["METHODS", "Method", "Selection", "select"]

Method = Literal["one-level", "greedy", "unrolled", "implicit", "drmad", "random"]
METHODS = ("one-level", "greedy", "unrolled", "implicit", "drmad", "random")

# Of random search: uniform, by the last part of a hyperparameter's name and where it belongs.
RANGES: dict[str, tuple[float, float]] = {
    "log_scale": (-5.0, 1.0),  # of a precision, (-2, 10) in its logarithm, as in the source
    "log_scale_bias": (-5.0, 1.0),
    "loc": (-1.0, 1.0),
    "logits": (-3.0, 3.0),
    "likelihood": (-3.0, 1.0),
}


@dataclass
class Selection:
    """What a selection found.

    Attributes:
        fit: the pair at the outer step with the largest Q.
        method: of the hypergradient.
        history: a row for each outer step: ``outer``, ``Q``, ``L``, ``log_likelihood`` and ``kl``
            in nats over all rows (the same noise in every row), ``inner`` steps and ``seconds``
            up to there.
        best: position in ``history``.
    """

    fit: Fit
    method: Method
    history: list[dict[str, float]]
    best: int

    @property
    def Q(self) -> float:
        """The largest Q, in nats over all rows."""
        return self.history[self.best]["Q"]


def select(
    model: BayesianNetwork,
    guide: nn.Module,
    data: Dataset,
    L: Level | None = None,
    Q: Level | None = None,
    *,
    method: Method = "greedy",
    outer_steps: int = 50,
    inner_steps: int = 50,
    lr: float = 1e-2,
    outer_lr: float = 1e-2,
    inner: Literal["adam", "sgd"] = "adam",
    batch_size: int = 512,
    particles: int = 1,
    restart: bool = False,
    damping: float = 0.0,
    max_iter: int = 50,
    skip: float = 0.05,
    every: int = 1,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    draws: int = 20,
    seed: int = 0,
    device: str = "auto",
    progress: bool | None = None,
) -> Selection:
    r"""Choose what the priors learn by Q, where the guide is trained by L.

    .. math:: h^* = \arg\max_h Q(θ^*(h), h), \qquad θ^*(h) = \arg\max_θ L(θ, h)

    h are the parameters of priors (``priors.Normal(learn="weight")``,
    ``priors.GumbelSoftmax(learn=True)``) and the noise of a regression; θ those of the guide.
    Some choices of L and Q that have names:

    ========================  ================================================================
    evidence, ELBO            the defaults
    expected likelihood       ``Q=Level(prior=0)``
    least complexity          ``Q=Level(likelihood=0)``
    sample of size m / λ      ``L=Level(prior=λ)``, ``Q=Level(prior=λ)``
    hold-out                  ``Q=Level(prior=0, split="val")``
    all structures in turn    ``Q=Level(..., structure=[Against(found, -1)])``
    ========================  ================================================================

    What greedy steps of a small ``lr`` converge to knows little of the λ_prior of Q, which only
    the term of order ``lr`` sees: where L and Q differ, ``implicit`` is the one that solves the
    problem. The outer step with the largest Q is kept; early ones, whose θ is not yet the best for
    L, can have a Q that no solution has.

    Arguments:
        model, guide: a pair, changed in place.
        data: its training rows (and, for ``split="val"``, validation rows).
        L, Q: the objectives.
        method: ``one-level``: one ascent of both, where that is the same problem; ``greedy``: the
            hypergradient through one inner step, after each of them; ``unrolled``: through all;
            ``implicit``: at their end, by the implicit function theorem (HOAG); ``drmad``: through
            all on a straight line; ``random``: draws of h, each with inner steps from the start.
        outer_steps, inner_steps: of these in each of those.
        lr, outer_lr: of θ and of h.
        inner: how θ moves; h moves by Adam. ``drmad`` is about ``sgd``.
        batch_size: rows of a step; different ones for L and Q.
        particles: draws of the latents in a step.
        restart: begin every outer step at the first θ (``unrolled``, ``implicit``, ``drmad``).
        damping, max_iter: of ``implicit``; skip, every: of ``drmad``.
        ranges: of ``random``, by the last part of a hyperparameter's name (``log_scale``,
            ``logits``, ``likelihood`` for its noise).
        draws: of the latents, in the reported Q and L.
        seed: of batches and noise.
        device, progress: as for :func:`~pyroccam.inference.fit`.

    Raises:
        ValueError: for settings that contradict each other, a pair that cannot be traced, or
            nothing to learn at a level.
        NonFiniteGradient: if a gradient, or Q or L after a step, turns NaN or infinite (``random``
            goes on with another h); model and guide are left as they were at the best step so far.
        Interrupted: on Ctrl-C; the same.

    References:
        Bakhteev, Strijov, Bayesian selection of deep learning model structure; Luketina et al.
        2016, arXiv:1511.06727; Pedregosa 2016, arXiv:1602.02355; Fu et al. 2016, arXiv:1601.00917.
    """
    L, Q = L or Level(), Q or Level()
    _check(method, L, Q, inner, restart)
    counts = {"outer_steps": outer_steps, "inner_steps": inner_steps, "draws": draws}
    counts |= {"batch_size": batch_size, "particles": particles}
    for name, number in counts.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}.")
    where = pick_device(device)
    data = data.to(where)
    model.to(where)
    guide.to(where)
    if model.size != data.N:
        raise ValueError(
            f"The model was made for {model.size} training rows, the data has {data.N}: build it "
            "with data=<this data>."
        )
    start = time.perf_counter()
    objectives = Objectives(model, guide, (L, Q), particles)
    words = sorted({word_of(name) for name in objectives.h_names})
    for word in ranges or {}:
        if word not in words:
            raise ValueError(unknown_name("hyperparameter in ranges=", word, words))
    model.train()
    with seeded(seed, where), FitProgress(f"select, {method}", outer_steps, progress) as bar:
        rows = [Rows(*data.split(level.split), batch_size, level.split) for level in (L, Q)]
        search = Search(objectives, rows, inner_steps, lr, outer_lr, inner)
        search.restart = restart
        options: dict[str, dict[str, Any]] = {
            "implicit": {"damping": damping, "max_iter": max_iter},
            "drmad": {"skip": skip, "every": every},
            "random": {**RANGES, **(ranges or {})},
        }
        search.options = options.get(method, {})
        step: Callable[[], None] = getattr(search, method.replace("-", "_"))
        watch = [[objectives.key(*part.batch()) for _ in range(draws)] for part in rows]
        history: list[dict[str, float]] = []
        best, largest, kept = 0, -math.inf, (search.theta, search.h)
        try:
            for outer in range(outer_steps):
                step()
                row = {"outer": outer + 1.0, **search.look(watch)}
                row["inner"] = float(search.count)
                row["seconds"] = time.perf_counter() - start
                history.append(row)
                sound = math.isfinite(row["Q"]) and math.isfinite(row["L"])
                if not sound and method != "random":
                    raise NonFiniteGradient(
                        f"Q is {row['Q']:g} and L {row['L']:g} after outer step {outer + 1}: take "
                        "a smaller lr or outer_lr."
                    )
                if sound and row["Q"] > largest:
                    best, largest, kept = outer + 1, row["Q"], (search.theta, search.h)
                bar.bar.update(bar.task, completed=outer + 1, loss=f"Q {row['Q']:.2f}")
            if not best:
                raise NonFiniteGradient(
                    "Q is finite for none of the h that were drawn: take a smaller lr, or ranges=."
                )
        except KeyboardInterrupt:
            where_left = f"at the best, step {best}" if best else "before"
            raise Interrupted(
                f"Stopped after outer step {len(history)} of {outer_steps}; model and guide are "
                f"as they were {where_left}."
            ) from None
        finally:
            objectives.put(*kept)
            model.eval()
    if search.indefinite:
        warnings.warn(
            f"In {search.indefinite} of {outer_steps} outer steps the inner objective was not "
            "concave where the inner steps ended, and conjugate gradients stopped early: those "
            "hypergradients are not through a maximum. Do more inner steps, or give a damping "
            f"above {damping:g}.",
            IndefiniteCurvature,
            stacklevel=2,
        )
    found = Fit(
        model=model,
        guide=guide,
        data=data,
        settings=Settings(
            lr=lr, optimizer=inner, batch_size=batch_size, particles=particles, seed=seed,
            epochs=outer_steps, weight_decay=0.0, schedule="constant",
        ),
        history=history,
        best_epoch=best,
        val_nll=float("nan"),
        seconds=time.perf_counter() - start,
        structure=None,
        weights=component_weights(model, guide),
        engine={"kind": "graph", "replicates": 1},
    )  # fmt: skip
    return Selection(found, method, history, best - 1)


def _check(method: str, L: Level, Q: Level, inner: str, restart: bool) -> None:
    one_of("method", method, METHODS)
    one_of("inner", inner, ("adam", "sgd"))
    if not L.likelihood:
        raise ValueError("L needs a likelihood: give Level(likelihood=...) above 0.")
    if L.structure or L.hyperprior is not None:
        raise ValueError(
            "structure= and hyperprior= do not depend on θ, so they change nothing in L: give them "
            "to Q."
        )
    if restart and method not in ("unrolled", "implicit", "drmad"):
        raise ValueError(f"restart=True is for unrolled, implicit and drmad, not for {method!r}.")
    if method == "drmad" and inner != "sgd":
        raise ValueError("drmad goes back along plain gradient steps: use inner='sgd'.")
    if method != "one-level":
        return
    same = Q.likelihood > 0 and abs(Q.prior / Q.likelihood - L.prior / L.likelihood) < 1e-12
    if not same or Q.split != L.split:
        raise ValueError(
            "method='one-level' is for objectives that are one and the same up to a factor: "
            "λ_prior / λ_lik must be equal in both, and the rows too. L has "
            f"{L.prior:g} / {L.likelihood:g} on {L.split!r}, Q {Q.prior:g} / {Q.likelihood:g} on "
            f"{Q.split!r}. Use method='greedy'."
        )
