"""Compress a fit under a mixture of normals: weights become the means of their components."""

from functools import partial

import pytest
import torch
from fitting import blobs, fit_weights
from pyroccam import guides, inference, models
from pyroccam.inference import compress
from pyroccam.inference.packing import read, write
from pyroccam.inference.posterior.predict import evaluate_net
from pyroccam.inference.pruning.weight_sharing import assign
from pyroccam.models import priors
from torch import nn


@pytest.fixture(scope="module")
def result():
    """Two layers, most of whose weights are near zero and others near -½, ½ and 1."""
    torch.manual_seed(0)
    rows = blobs()
    net = nn.Sequential(nn.Linear(2, 400), nn.ReLU(), nn.Linear(400, 3))
    model = models.BayesianNetwork(net, rows, prior=priors.GaussianMixture(5, zero=0.8))
    guide = guides.Delta(model)
    fit = inference.fit(
        model, guide, rows, epochs=1, lr=1e-4, kl_weight=0.003, progress=False, device="cpu"
    )
    shared = model.layers["0"].prior.held[0]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        shared.loc.copy_(torch.tensor([-0.5, 0.5, 1.0, 2.0]) / 0.2)
        shared.log_precision.fill_(8.0 / 6.0)
        for name in ("0.weight", "2.weight"):
            v = guide.posterior(name).v
            values = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, -0.5, 0.5, 1.0])
            v.copy_(values[torch.randint(8, v.shape, generator=generator)])
            v.add_(0.003 * torch.randn(v.shape, generator=generator))
    return fit


def test_weights_become_means_and_few_bits(result, tmp_path):
    small = compress(result)
    found = assign(result.model, result.guide)
    whole = result.model.plain(
        {
            name: (one.weight, result.guide.posterior(f"{name}.bias").v)
            for name, one in found.items()
        }
    )
    x = result.data.x_test
    torch.testing.assert_close(small.net(x), whole(x), rtol=1e-4, atol=1e-5)
    values = {float(v) for p in small.net.parameters() if p.dim() == 2 for v in p.detach().unique()}
    assert values == {0.0, *(float(torch.tensor(v)) for v in (-0.5, 0.5, 1.0))}
    one, other = whole[0].weight, whole[2].weight
    alive = (one.count_nonzero(1) > 0) & (other.count_nonzero(0) > 0)  # of the hidden units
    kept = int(one[alive].count_nonzero() + other[:, alive].count_nonzero())
    assert small.nonzero == kept
    assert 0.2 * small.rates.total < kept < 0.55 * small.rates.total
    # ceil(log2 3), of the components that have weights: the one at 2 has none.
    assert {name: bits.total for name, bits in small.bits.items()} == {"0": 2, "2": 2}
    size = write(small.net, tmp_path / "small.pocc", rest=torch.float16)
    assert sum(t.bits for t in size.tensors if "weight" in t.name) < 2 * small.rates.total
    again = read(tmp_path / "small.pocc")
    one, other = (evaluate_net(n, result.model, result.data) for n in (small.net, again))
    assert one["nll"] == pytest.approx(other["nll"], rel=1e-2)


def test_the_fit_stays_as_it_was(result):
    before = result.guide.posterior("0.weight").v.detach().clone()
    compress(result)
    assert torch.equal(result.guide.posterior("0.weight").v, before)
    assert result.guide.posterior("0.weight").v.unique().numel() > 10


def test_a_random_posterior_is_compressed_as_any_other():
    """Its spread says what it does not need; nothing is assigned."""
    drawn = partial(guides.MeanField, local=False)
    fit = fit_weights(priors.GaussianMixture(5), nn.Linear(2, 3), guide=drawn, epochs=1)
    small = compress(fit, threshold=100.0)
    assert small.thresholds == {"": 100.0}
    assert small.nonzero == 6


def test_a_rule_for_bits_is_of_no_use_where_all_weights_share_values(result):
    normal = fit_weights(priors.Normal(), epochs=1)
    for rule, value in (("significand", "deviation"), ("exponent", "published_three")):
        with pytest.raises(ValueError, match=f"{rule}='{value}' changes nothing .* share values"):
            compress(result, **{rule: value})
        compress(normal, threshold=100.0, codebook={"0": 2}, **{rule: value})
        with pytest.raises(ValueError, match=f"{rule}='{value}' changes nothing"):
            compress(normal, threshold=100.0, codebook=2, **{rule: value})
