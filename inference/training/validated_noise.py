r"""The noise of a likelihood, by rows that its network was not fitted to.

What a network of many weights leaves of its training targets is less than it leaves of new ones:
σ, learnt on the training rows, goes to nothing while the network learns them by heart, and each
prediction is then far surer than it is right. Where a checkpoint is judged, σ is therefore that of
the validation rows, for means that stay as they are; and so are the degrees of freedom of Student's
t, and the dispersion of counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...data import PyroccamError
from ...guides import Guide
from ...models import Model
from ...models.likelihoods import LEAST_ROWS, learns_noise, noise_of_rows, set_noise
from ...models.networks import PRIOR_ROWS, closed_form_of
from ..posterior import Posterior, outputs_by_depth

if TYPE_CHECKING:
    from ...data import Dataset


def has_validated_noise(model: Model, guide: Guide, data: Dataset) -> bool:
    """True if the noise is that of the validation rows: weights that are numbers or points, noise
    that is learnt, and validation rows enough. Beside random weights the bound itself holds it: the
    posterior cannot learn rows by heart for nothing."""
    numbers = guide.traits.point or not model.random_weights
    return numbers and len(data.x_val) >= LEAST_ROWS and learns_noise(model.likelihood)


@torch.no_grad()
def validate_noise(pair: Posterior, data: Dataset) -> None:
    """Set the noise to that of the validation rows, in place; model in evaluation mode.

    Where q(d) is the exact posterior, which depends on the noise, the two are made to agree.
    """
    model, guide = pair.model, pair.guide
    if not (guide.traits.moves or guide.traits.sums_out):
        noise = noise_of_rows(model.likelihood, *pair.validation(data), data.y_val)
        set_noise(model.likelihood, noise)
        return
    outputs = outputs_by_depth(model, data.x_val)

    def training() -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in data.parts("train"):
            yield outputs_by_depth(model, x), y

    # What is streamed does not fit into memory: its outputs are found anew for every noise.
    known = None if data.streamed else [*training()]
    log_prior = model.get_buffer("log_prior").double()
    for _ in range(10):
        parts = training() if known is None else known
        log_p = torch.stack([model.log_prob(x, y).double().sum(1) for x, y in parts]).sum(0)
        before = {n: p.clone() for n, p in model.likelihood.named_parameters()}
        q = (log_prior + log_p).softmax(0)
        noise = noise_of_rows(model.likelihood, outputs, q, data.y_val)
        set_noise(model.likelihood, noise)
        if all(torch.allclose(noise[n].to(before[n]), before[n], atol=1e-3) for n in noise):
            break


@torch.no_grad()
def condition_head(model: Model, data: Dataset) -> None:
    """Give a last layer in closed form the validation rows, in place of those before.

    Raises:
        PyroccamError: where there are none, or the network changes what the layer gives.
    """
    head = closed_form_of(model)
    assert head is not None
    weights = data.val_weights
    if not (rows := len(data.x_val) if weights is None else float(weights.sum())):
        raise PyroccamError("likelihood='closed-form' without validation rows", "val_fraction=0.1")
    seen: list[Tensor] = []
    own: list[Tensor] = []
    depths = head.depths

    def note(_: Any, given: tuple[Tensor], found: Tensor) -> None:
        seen.append(given[0].unflatten(0, (depths, -1)))
        own.append(found.unflatten(0, (depths, -1)))

    hook = head.register_forward_hook(note)
    try:
        outputs = outputs_by_depth(model, data.x_val)
    finally:
        hook.remove()
    if not own or not torch.equal(torch.cat(own, 1).nan_to_num(), outputs.nan_to_num()):
        found = "outputs of the network that are not those of its last linear layer"
        raise PyroccamError(found, "a network that ends in it, as registered and as run")
    likelihood: Any = model.likelihood
    head.condition(torch.cat(seen, 1), data.y_val, likelihood.scale, weights)
    likelihood.df.fill_(PRIOR_ROWS + rows)
