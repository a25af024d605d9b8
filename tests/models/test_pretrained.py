"""A prior around the weights of another network."""

import json
import math
from pathlib import Path

import pytest
import torch
from fitting import blobs
from pyroccam import guides, inference
from pyroccam.cli.methods import find
from pyroccam.data import Dataset, PyroccamError
from pyroccam.inference.elbo import evidence
from pyroccam.inference.posterior import mean_network, posterior_of
from pyroccam.models import BayesianNetwork, networks, priors


def network(seed, hidden=(6,)):
    torch.manual_seed(seed)
    return networks.perceptron((2,), 3, hidden=hidden)


@pytest.mark.parametrize("learn", [False, True])
def test_the_kl_is_that_of_normals_around_the_other_weights(learn):
    """By the densities of torch, summed by hand."""
    data, net, other = blobs(), network(0), network(1)
    given = priors.Pretrained(other, 0.3, learn)
    for p in other.parameters():
        p.data.add_(1.0)  # what is trained afterwards is another network
    model = BayesianNetwork(net, data, prior=given)
    guide = guides.MeanField(model, scale=0.05)
    kl = 0.0
    for name, p in net.named_parameters():
        p0 = torch.distributions.Normal(other.get_parameter(name) - 1.0, 0.3)
        kl += torch.distributions.kl_divergence(torch.distributions.Normal(p, 0.05), p0).sum()
    found = evidence(model, guide, data, rows=1, passes=2).kl
    assert found == pytest.approx(float(kl.detach()), rel=1e-5)
    scales = [p for n, p in model.named_parameters() if n.endswith("log_scale")]
    assert len(scales) == 2 * learn


def test_weights_are_gone_or_near_those_of_the_other_network():
    """The KL of gates, by probabilities of both values and densities of torch."""
    data, net = blobs(), network(0)
    given = {
        "1": priors.Pretrained(net, 0.3, odds=-1.0),
        "3": priors.Pretrained(net, odds=-4.0, block=3),
    }
    other = network(1)
    model = BayesianNetwork(other, data, prior=given)
    guide = guides.Gates(model)
    assert guide.posterior("3.gate").event_shape == (2,)
    logits = guide.factor_of("3.gate").logits
    logits.data.copy_(torch.tensor([2.0, -3.0]))
    expected = 0.0
    for q, p in ((guide.factor_of("1.gate").logits, -1.0), (logits, -4.0)):
        one, prior = q.sigmoid(), 1 / (1 + math.exp(-p))
        gone = (1 - one) * ((1 - one) / (1 - prior)).log()
        expected += (one * (one / prior).log() + gone).sum()
    for name, scale in (("1", 0.3), ("3", 0.1)):
        for kind in ("weight", "bias"):
            centre = net.get_parameter(f"{name}.{kind}")
            density = torch.distributions.Normal(centre, scale)
            expected -= density.log_prob(other.get_parameter(f"{name}.{kind}")).sum()
    found = evidence(model, guide, data, rows=1, passes=2).kl
    assert found == pytest.approx(float(expected.detach()), rel=1e-4)
    assert {*map(id, guide.structure_parameters())} >= {id(logits)}
    logits.data.copy_(torch.tensor([60.0, -60.0]))
    drawn = posterior_of(model, guide).draw(2)["3.gate"]
    assert drawn.equal(torch.tensor([[1.0, 0.0]] * 2))
    mean = mean_network(model, guide).get_parameter("3.weight")
    assert mean[:, :3].equal(other.get_parameter("3.weight")[:, :3])
    assert mean[:, 3:].abs().max() < 1e-20
    result = inference.fit(model, guide, data, epochs=1, lr=1e-9, guide_lr=1e-9, progress=False)
    small = inference.shrink(result, cut=inference.Thresholds(0.0))
    assert small.report.layers["3"].inputs.tolist() == [0, 1, 2]  # one gate of three groups
    with pytest.raises(PyroccamError):
        BayesianNetwork(other, data, prior=priors.Pretrained(net, odds=0.0, block=4))


def test_a_network_of_another_structure_is_refused():
    for other in (network(1, hidden=(7,)), network(1, hidden=())):
        with pytest.raises(PyroccamError):
            BayesianNetwork(network(0), blobs(), prior=priors.Pretrained(other))


def test_another_prior_is_another_checkpoint(tmp_path):
    data = blobs()

    def pair(seed):
        model = BayesianNetwork(network(0), data, prior=priors.Pretrained(network(seed)))
        return model, guides.MeanField(model)

    inference.fit(*pair(1), data, epochs=2, out=tmp_path, progress=False)
    with pytest.raises(inference.CheckpointError):
        inference.fit(*pair(2), data, epochs=2, out=tmp_path, resume=True, progress=False)
    inference.fit(*pair(1), data, epochs=2, out=tmp_path, resume=True, progress=False)


def test_half_of_the_rows_choose_a_prior_that_says_more():
    """A certificate of the other half, beside one of all rows under a prior that knows nothing."""
    data, net = blobs(n=600), network(0)
    first, second = data.halves()
    assert not len(first.x_val)
    assert len(second.x_val)
    both = torch.cat([first.x_train, second.x_train])
    assert both.sort(0).values.equal(data.x_train.sort(0).values)
    model = BayesianNetwork(net, first, prior=priors.Normal(1.0))
    fit = inference.fit(model, guides.MeanField(model), first, epochs=20, progress=False)
    given = priors.Pretrained(fit.posterior.mean_network(), 0.05)
    informed = BayesianNetwork(fit.posterior.mean_network(), second, prior=given)
    later = inference.fit(
        informed, guides.MeanField(informed, scale=0.05), second, epochs=20, progress=False
    )
    certified = inference.certify(later, second)
    assert certified.nats < inference.certify(fit, first).nats


def test_a_network_that_loses_units_has_no_such_prior():
    data = blobs()
    model = BayesianNetwork(network(0), data, prior=priors.Pretrained(network(1)))
    fit = inference.fit(model, guides.MeanField(model), data, epochs=1, progress=False)
    with pytest.raises(PyroccamError):
        inference.narrow(fit, cut=inference.Thresholds(3.0))


def test_what_comes_with_the_package_is_what_the_results_are_of():
    """By the sum that is kept beside the fonts; a network begins there, and another one cannot."""
    prior = priors.parse_weights("pretrained:digits")
    kept = Path(__file__).parents[2] / "experiments/results/certificates/written_digits.json"
    assert prior.sha256 == json.loads(kept.read_text())["sha256"]
    net = networks.small_cnn((1, 28, 28), 10)
    prior.start(net)
    assert priors.Pretrained(net).sha256 == prior.sha256 != priors.Pretrained(network(0)).sha256
    with pytest.raises(PyroccamError):
        prior.start(networks.small_cnn((1, 28, 28), 10, channels=7))
    with pytest.raises(PyroccamError):
        priors.parse_weights("pretrained:letters")


def test_a_run_under_what_comes_with_the_package_begins_there():
    x, y = torch.rand(12, 1, 28, 28), torch.arange(12) % 10
    data = Dataset.from_tensors(x, y, x, y, classes=10, standardise=False, val_fraction=0.0)
    net = networks.small_cnn((1, 28, 28), 10)
    find("certified").with_options({"prior": "pretrained:digits"}).build(net, data)
    assert priors.Pretrained(net).sha256 == priors.Pretrained.shipped().sha256
