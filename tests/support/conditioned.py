"""Pairs for posteriors that are functions of a number."""

import torch
from guide_case import structured
from pyroccam import models
from pyroccam.models import priors


def spread(guide, seed=0):
    """Other values at every pivot."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in guide.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return guide


def weight_drawn(guide, seed):
    """λ and u of the first call after a seed, as :class:`torch.rand` is documented."""
    torch.manual_seed(seed)
    u = torch.rand(())
    return float(guide.low * (guide.high / guide.low) ** u.double()), u


def stacked_blocks(rows):
    torch.manual_seed(0)
    stack = models.networks.residual_mlp((2,), 3, width=4, max_depth=2)
    return models.BayesianStack(stack, rows, prior=priors.GroupHalfCauchy(0.5))


def enumerated(rows):
    return models.StructuredNetwork(
        structured(rows).first_network(), rows, structure=priors.Categorical([0.3, 0.7]),
        prior=priors.Normal(),
    )  # fmt: skip
