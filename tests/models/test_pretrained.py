"""A prior around the weights of another network."""

import json
from pathlib import Path

import folders
import pytest
import torch
from fitting import blobs
from pyroccam import guides, inference
from pyroccam.cli.methods import find
from pyroccam.data import Dataset, PyroccamError
from pyroccam.inference.elbo import evidence
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


@pytest.mark.filterwarnings("ignore:These weights")
@pytest.mark.parametrize("kind", folders.KINDS)
def test_transposed_weights_are_where_the_prior_is_around(kind):
    net = folders.configured(pytest.importorskip("transformers"), kind)
    if kind == "ViT":
        x = {"pixel_values": torch.randn(4, 3, 16, 16)}
    else:
        x = {"input_ids": torch.randint(5, 45, (4, 6)), "attention_mask": torch.ones(4, 6).long()}
    y = torch.tensor([0, 1, 2, 0])
    data = Dataset.from_tensors(x, y, x, y, val_fraction=0)
    model = BayesianNetwork(net, data, prior=priors.Pretrained(net))
    for layer in model.layers.values():
        assert layer.latents()["weight"].prior.mean.equal(layer.start["weight"])
