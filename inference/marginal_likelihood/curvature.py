"""The curvature of the joint density of a network: dense, diagonal, or by Kronecker factors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from ...data import PyroccamError
from ...models import plain_kernels
from ..posterior import at_once
from .joint import Joint
from .normals import Blocks, Dense, Diagonal, Kronecker, Precision

MOST_DENSE = 5000
"""Weights of which a dense matrix is made: 200 MB, and a minute for its factor."""

NUMBERS_AT_ONCE = 2**24  # of the Jacobians of a chunk of rows
ROWS = 1024  # of a pass, where no Jacobian is made


def full(density: Joint, theta: Tensor) -> Precision:
    r"""The generalised Gauss-Newton matrix of all rows, and the curvature of the prior.

    .. math:: P = \sum_n J_n^T Λ_n J_n - \nabla^2 \log p(θ), \qquad
        Λ_n = -\nabla^2_f \log p(y_n | f_n)

    which is the curvature of the joint density of the network that is linear in θ about here. It
    is that of the network itself where outputs are linear in the weights, or residuals are zero.

    Arguments:
        theta: ``(n,)``.

    Raises:
        PyroccamError: for more than 5,000 weights.

    References:
        Martens 2020, New insights and perspectives on the natural gradient method,
        arXiv:1412.1193; Immer, Korzepa, Bauer 2021, arXiv:2008.08400.
    """
    _refuse_large(density)
    total = _prior_curvature(density, theta)
    for jacobian, weight in _jacobians(density, theta):
        total += torch.einsum("bkn,bkl,blm->nm", jacobian, weight, jacobian)
    return Dense(0.5 * (total + total.T))


def hessian(density: Joint, theta: Tensor) -> Precision:
    """The curvature itself, ``-∇² log p(y, θ)``, ``(n, n)``."""
    _refuse_large(density)
    found = _prior_curvature(density, theta)
    for x, y in density.parts():
        found += _hessian(density, theta, partial(density.of_rows, x=x, y=y), len(x))
    return Dense(0.5 * (found + found.T))


def diagonal(density: Joint, theta: Tensor) -> Precision:
    """The diagonal of :func:`full`. It leaves out that weights depend on each other, and so takes
    the posterior for narrower than it is."""
    _, scale = _normal_prior(density, "diagonal")
    total = scale.square().reciprocal()
    for jacobian, weight in _jacobians(density, theta):
        total += torch.einsum("bkn,bkl,bln->n", jacobian, weight, jacobian)
    return Diagonal(total)


def kronecker(density: Joint, theta: Tensor) -> Precision:
    r"""For each linear layer ``G ⊗ A + δ I``; exact for a network of linear layers with one number
    as output and normal errors, and in it nothing of one layer depends on another.

    .. math:: A = \sum_n a_n a_n^T, \qquad
        G = \frac{1}{N} \sum_n D_n^T Λ_n D_n, \qquad D_n = \partial f_n / \partial s_n

    with inputs ``a`` of a layer (and a one for its bias) and its outputs ``s``.

    Raises:
        PyroccamError: for a layer that is not linear or is used for several places of an input, or
            a prior that is not normal with one scale for the layer.

    References:
        Martens, Grosse 2015, Optimizing neural networks with Kronecker-factored approximate
        curvature, arXiv:1503.05671; Ritter, Botev, Barber 2018, A scalable Laplace approximation
        for neural networks.
    """
    _, scale = _normal_prior(density, "kronecker")
    parts: list[tuple[Tensor, Precision]] = []
    factors = _factors(density, theta)
    for name in density.model.layers:
        where = _positions(density, name)
        scales = scale[where]
        if float(scales.max() - scales.min()) > 1e-6 * float(scales.max()):
            raise PyroccamError(
                f"scales of {float(scales.min()):.3g} to {float(scales.max()):.3g} in the prior of "
                f"layer {name!r}",
                'one scale, for curvature="kronecker"',
            )
        inner, outer = factors[name]
        damping = 1.0 / float(scales.flatten()[0]) ** 2
        parts.append((where.flatten(), Kronecker(outer / density.rows, inner, damping)))
    return Blocks(parts)


CURVATURES: dict[str, Callable[[Joint, Tensor], Precision]] = {
    "full": full,
    "hessian": hessian,
    "kronecker": kronecker,
    "diagonal": diagonal,
}


def _refuse_large(density: Joint) -> None:
    if density.size > MOST_DENSE:
        raise PyroccamError(
            f"a dense curvature of {density.size:,} weights", f"at most {MOST_DENSE:,}"
        )


def _normal_prior(density: Joint, word: str) -> tuple[Tensor, Tensor]:
    found = density.normal_prior()
    if found is None:
        layers = density.model.layers.values()
        kinds = ", ".join(sorted({layer.prior.kind for layer in layers}))
        raise PyroccamError(f'priors of {kinds}, with curvature="{word}"', "normal ones")
    return found


def _hessian(
    density: Joint, theta: Tensor, value: Callable[[Tensor], Tensor], count: int
) -> Tensor:
    """Minus the second derivatives of ``value`` ``(S,) <- (S, n)`` at θ, a few rows at a time."""
    rows = []
    identity = torch.eye(density.size, dtype=theta.dtype, device=theta.device)
    for directions in identity.split(min(256, at_once(density.numbers, count))):
        with torch.enable_grad(), plain_kernels():
            # The same θ once for each direction: one pass gives the products with all of them.
            copies = theta.detach().expand(len(directions), -1).clone().requires_grad_()
            (slope,) = torch.autograd.grad(value(copies).sum(), copies, create_graph=True)
            if not slope.requires_grad:  # linear in θ
                rows.append(torch.zeros_like(directions))
                continue
            (product,) = torch.autograd.grad((slope * directions).sum(), copies)
        rows.append(-product)
    return torch.cat(rows)


def _prior_curvature(density: Joint, theta: Tensor) -> Tensor:
    """``-∇² log p(θ)``, ``(n, n)``."""
    if (normal := density.normal_prior()) is not None:
        return normal[1].square().reciprocal().diag()
    return _hessian(density, theta, density.log_prior, 1)


def _output_curvature(density: Joint, outputs: Tensor, y: Tensor) -> Tensor:
    """``-∇²_f log p(y_n | f_n)`` of each row, ``(B, K, K)``, for outputs ``(B, K)``."""
    with torch.enable_grad():
        outputs = outputs.detach().requires_grad_()
        value = density.model.log_prob(outputs, y).sum()
        (slope,) = torch.autograd.grad(value, outputs, create_graph=True)
        columns = []
        for one in slope.unbind(1):
            (second,) = torch.autograd.grad(one.sum(), outputs, retain_graph=True)
            columns.append(-second)
    return torch.stack(columns, 1)


def _jacobians(density: Joint, theta: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Of chunks of rows the Jacobians ``∂f/∂θ``, ``(B, K, n)``, and the curvature of the likelihood
    in its outputs, ``(B, K, K)``."""

    def single(theta: Tensor, row: Tensor) -> Tensor:
        return density.outputs(theta, row[None])[0]

    first, _ = next(density.parts(1))
    outputs = density.outputs(theta, first)
    if outputs.dim() != 2:
        raise PyroccamError(f"outputs of shape {tuple(outputs.shape)}", "(rows, outputs)")
    each = outputs.shape[1] * density.size
    rows = max(1, NUMBERS_AT_ONCE // max(each, 1))
    for x, y in density.parts(rows):
        out = density.outputs(theta, x)
        with plain_kernels():
            jacobian = vmap(jacrev(single), in_dims=(None, 0))(theta, x)
        density.passes += outputs.shape[1] * len(x) / density.rows
        yield jacobian.detach(), _output_curvature(density, out, y)


def _positions(density: Joint, layer: str) -> Tensor:
    """Positions in θ of the weights of a linear layer, and of its bias behind them, ``(out, in)``
    or ``(out, in + 1)``."""
    start, found, own = 0, [], density.model.layers[layer]
    for (site, shape), size in zip(density.shapes.items(), density.sizes, strict=True):
        if site in (own.site("weight"), own.site("bias")):
            place = torch.arange(start, start + size, device=density.device).reshape(shape)
            found.append(place if len(shape) == 2 else place[:, None])
        start += size
    return torch.cat(found, 1)


def _factors(density: Joint, theta: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """``Σ a aᵀ`` and ``Σ Dᵀ Λ D`` of each layer, by its name."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    layers = {name: density.net.get_submodule(name) for name in density.model.layers}
    for name, layer in layers.items():
        if type(layer) is not nn.Linear:
            kind = type(layer).__name__
            raise PyroccamError(
                f'layer {name!r} of {kind}, with curvature="kronecker"', "linear layers"
            )
    weights = density.weights(theta[None])
    own = {name: value[0].detach() for name, value in weights.items()}
    for x, y in density.parts(ROWS):
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        hooks = [layer.register_forward_hook(_noting(name, seen)) for name, layer in layers.items()]
        try:
            with torch.enable_grad():
                outputs = functional_call(density.net, own, (x,))
        finally:
            for one in hooks:
                one.remove()
        curvature = _output_curvature(density, outputs, y)
        made = [seen[name][1] for name in layers]
        with torch.enable_grad():
            slopes = [
                torch.autograd.grad(outputs[:, k].sum(), made, retain_graph=True)
                for k in range(outputs.shape[1])
            ]
        density.passes += (1 + outputs.shape[1]) * len(x) / density.rows
        for place, name in enumerate(layers):
            given, _ = seen[name]
            if density.model.layers[name].latents().keys() >= {"bias"}:
                given = torch.cat([given, given.new_ones(len(given), 1)], 1)
            back = torch.stack([one[place] for one in slopes], 1)  # (B, K, out)
            inner, outer = given.T @ given, torch.einsum("bko,bkl,blp->op", back, curvature, back)
            before = found.get(name, (torch.zeros_like(inner), torch.zeros_like(outer)))
            found[name] = (before[0] + inner, before[1] + outer)
    return found


def _noting(name: str, seen: dict[str, tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """A hook that notes inputs and outputs of a layer, and makes the outputs differentiable."""

    def hook(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
        if made.dim() != 2 or name in seen:
            said = f'layer {name!r} at several places of an input, with curvature="kronecker"'
            raise PyroccamError(said, "one place")
        kept = made if made.requires_grad else made.requires_grad_()
        seen[name] = (given[0].detach(), kept)
        return kept

    return hook
