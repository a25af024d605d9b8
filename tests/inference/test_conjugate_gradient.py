"""Linear systems of which only products are known."""

import torch
from differences import error
from pyroccam.inference.selection.conjugate_gradient import conjugate_gradient

F64 = torch.float64


def system(size=12):
    g = torch.Generator().manual_seed(1)
    a = torch.randn(size, 2 * size, generator=g, dtype=F64)
    a = a @ a.T / size
    b = {"x": torch.randn(2, 3, generator=g, dtype=F64), "y": torch.randn(6, dtype=F64)}

    def product(p, a=a):
        found = a @ torch.cat([p["x"].flatten(), p["y"]])
        return {"x": found[:6].reshape(2, 3), "y": found[6:]}

    return a, b, product


def test_conjugate_gradients_need_as_many_iterations_as_unknowns():
    a, b, product = system()
    found = conjugate_gradient(product, b, tol=0.0, max_iter=12)
    exact = torch.linalg.solve(a, torch.cat([b["x"].flatten(), b["y"]]))
    assert error(found.x, {"x": exact[:6].reshape(2, 3), "y": exact[6:]}) < 1e-10
    assert found.residual < 1e-10
    assert found.iterations == 12
    few = conjugate_gradient(product, b, max_iter=3)
    assert few.iterations == 3
    assert few.residual > 1e-6
    zero = {n: torch.zeros_like(t) for n, t in b.items()}
    nothing = conjugate_gradient(product, zero)
    assert (nothing.iterations, nothing.residual) == (0, 0.0)


def test_conjugate_gradients_notice_an_indefinite_system():
    a, b, product = system()
    shifted = a - 0.5 * (torch.linalg.eigvalsh(a)[:2].sum()) * torch.eye(12, dtype=F64)
    assert int((torch.linalg.eigvalsh(shifted) < 0).sum()) == 1
    found = conjugate_gradient(lambda p: product(p, shifted), b, tol=1e-12)
    assert found.indefinite
    assert 0 < found.iterations < 12
    assert conjugate_gradient(lambda p: product(p, -a), b).iterations == 0
