"""Derivatives of functions of dicts of tensors by differences, and how far results are off."""

import torch

F64 = torch.float64


def differences(f, h, step=1e-3):
    """Of a function of a dict, central and of fourth order."""
    found = {}
    for name, value in h.items():
        slopes = []
        for i in range(value.numel()):
            unit = torch.zeros(value.numel(), dtype=F64)
            unit[i] = step
            unit = unit.reshape(value.shape)
            far, near = (
                f({**h, name: value + k * unit}) - f({**h, name: value - k * unit}) for k in (2, 1)
            )
            slopes.append((8 * near - far) / (12 * step))
        found[name] = torch.stack(slopes).reshape(value.shape)
    return found


def error(found, expected):
    """The greatest one, relative to the greatest entry."""
    assert {*found} == {*expected}
    gap = max(float((found[n] - e).abs().max()) for n, e in expected.items())
    return gap / max(float(e.abs().max()) for e in expected.values())


def along(f, h, direction, step=1e-3):
    """The derivative in one direction, a dict of the shapes of h."""

    def line(p):
        return f({n: v + p["t"] * direction[n] for n, v in h.items()})

    return float(differences(line, {"t": torch.zeros((), dtype=F64)}, step)["t"])


def dot(one, other):
    """Of two dicts."""
    return float(sum((t * other[n]).sum() for n, t in one.items()))


def directions(h, count, seed=0):
    """At random."""
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield {n: torch.randn(t.shape, generator=g, dtype=F64) for n, t in h.items()}


def gradient_ascent(lr):
    """Plain steps ``θ + lr ∇L``, as an update of two levels."""
    return lambda theta, slope, state: ({n: t + lr * slope[n] for n, t in theta.items()}, ())
