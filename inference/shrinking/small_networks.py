"""The door to small networks: they are made of a fit, and read from files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from ...data import PyroccamError, checked
from ...models.likelihoods import Likelihood
from ...models.networks import DepthStack
from ..draws import Draw, draw, draw_own
from ..files import Small, load_folder, read
from ..posterior import refuse_undecided
from .compression import compressed
from .decision import decide
from .depth import at_depth, settled
from .graph import discretise
from .options import Code, Cut
from .thresholds import refuse_uncut
from .weight_path import Budget, path

if TYPE_CHECKING:
    from ..training import Fit


@checked
def shrink(
    fit: Fit,
    *,
    cut: Cut | None = None,
    code: Code | Draw | None = None,
    budget: Budget | None = None,
    exits: Literal["average", "last"] | None = None,
) -> Small:
    """The small plain network that a fit leaves: without what was learnt not to be needed, whether
    that is depth, operations, groups of weights or digits of them.

    Of **learnt depth** the blocks up to the chosen depth are left. Of **random structure** the most
    probable operation of each edge is, with the posterior means. Of **random weights** (at the
    chosen depth, where that was learnt, too) groups, or for a prior without groups single weights,
    whose irrelevance is above the threshold of their layer are zero; what dies of it is cut out,
    and the rest is rounded to the digits that the posterior knows.

    A point estimate (:class:`~pyroccam.guides.Delta` and its kinds) does not say what it does not
    need, nor how well it knows a digit, unless a ``Search`` finds that by Laplace's method: what is
    exactly zero is cut, shared values and whole
    multiples of a step stay as they are, and other weights keep 23 of float32's 24 significand
    bits, unless a ``Codebook`` is asked for. Under
    :class:`~pyroccam.models.priors.GaussianMixture` every weight is first set to the mean of its
    component, or to zero (:func:`~pyroccam.inference.shrinking.weight_sharing.books`). Under
    :class:`~pyroccam.models.priors.MultiSpike` means are rounded to the nearest level of their
    layer (:func:`~pyroccam.inference.shrinking.weight_sharing.on_levels`), with any posterior that
    has means, and what is above the thresholds is zero; cuts are judged by such weights.

    Batch normalisation leaves a scale and a shift, so that the network is right in evaluation mode
    alone: train on before.

    Arguments:
        fit: is not changed.
        cut: of random weights, where: ``ByValidation``, ``Valley``, ``Noise``, ``Thresholds`` or
            ``Search``. By default ``ByValidation()``, or ``Valley()`` where there are no validation
            rows. What would leave no network is weakened to what leaves the smallest within 0.001
            nats (without validation rows, the smallest), with a warning; one that is not by these
            rows warns if it costs more than 0.05 nats on them.
        code: of random weights, how they are sent: ``Digits``, ``Steps``, ``Codebook`` or ``Draw``.
        budget: ``Bytes`` or ``Milliseconds``, of a fit of :class:`~pyroccam.guides.Conditional`:
            the best network on its path that meets it, see :func:`~pyroccam.inference.path`.
        exits: of learnt depth, whose probabilities are given: an ``average`` over those of all
            depths that are left, by default, or of the ``last`` alone.

    Raises:
        PyroccamError: for what does not apply to the model, unknown layers, weights without a mean,
            or a budget that nothing meets.

    References:
        Louizos, Ullrich, Welling 2017, arXiv:1705.08665.

    Example:
        >>> from pyroccam import data, guides, inference, models
        >>> digits = data.load("digits")
        >>> net = models.networks.perceptron((1, 8, 8), 10, hidden=(20,))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.GroupNormalJeffreys())
        >>> fit = inference.fit(model, guides.MeanField(model), digits, epochs=2, progress=False)
        >>> small = inference.shrink(fit, cut=inference.Thresholds(100.0))
        >>> small.report.architecture, small.bytes < 4 * model.parameters_before
        ('64-20', True)
    """
    model: Any = getattr(fit, "model", None)
    of_weights = {"cut": cut, "code": code, "budget": budget}
    if not getattr(model, "random_weights", True):
        _refuse(fit, of_weights)
        net = at_depth(fit, exits or "average")
        return Small(net, fit.structure, data=fit.data)
    _refuse(fit, {"exits": exits})
    if getattr(model, "structure", None) and fit.structure is None:
        _refuse(fit, of_weights)
        refuse_undecided(fit)
        (chosen,) = fit.structures
        return Small(
            discretise(fit, chosen.choice), chosen, data=fit.data, likelihood=model.likelihood
        )
    if budget is not None:
        _refuse(fit, {"code": code})
        return path(fit, cut=cut).within(budget)[1].small
    if not isinstance(code, Draw):
        return compressed(fit, cut, code)
    if code.posterior == "own":
        _refuse(fit, {"cut": cut})
        fit = settled(fit)
        refuse_uncut(fit.guide)
        return draw_own(fit, code)
    decision = decide(fit, cut)
    return draw(decision.net, fit.data, code, likelihood=copy.deepcopy(fit.model.likelihood))


def _refuse(fit: Fit, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise PyroccamError(f"{name}={value} of {type(fit.model).__name__} in this way", "none")


@checked
def load(
    path: str | Path, like: nn.Module | None = None, likelihood: Likelihood | None = None
) -> nn.Module:
    """The network in a folder or a file that :meth:`Small.save
    <pyroccam.inference.Small.save>` wrote, in evaluation mode, on the CPU; runs no pickled
    code.

    It may be a stranger's: it is compared with its digests, and memory is asked for before it is
    taken.

    Arguments:
        path: of a folder, or of a ``.pocc`` file.
        like: the network as its own code builds it, where it cannot be described; its numbers do
            not matter. Of a folder with exits of several depths it is the stack.
        likelihood: in the same way, of exits, where it is one's own.

    Raises:
        MissingFile: if a file is missing; a ``FileNotFoundError``.
        DamagedFile, PackedFileError: if a file is not what was written.
        NetworkFolderError: if the description cannot be used, or the weights do not fit.
        TooLarge: if it asks for more memory than a file may (:mod:`pyroccam.data.limits`).
    """
    if Path(path).is_file():
        return read(path, skeleton=like)
    stack = like if isinstance(like, DepthStack) else None
    return load_folder(path, stack, likelihood)
