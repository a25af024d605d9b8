"""Networks that change their inputs in place: the data stay, and every pass sees them as they are.

And images in the order of memory in which convolutions are fast.
"""

import copy

import pytest
import torch
from fitting import QUICK, blobs
from plain import network
from pyroccam import data, guides, inference, models
from pyroccam.data import NetworkError, PyroccamError
from pyroccam.inference.cutting import seconds_per_batch
from pyroccam.inference.posterior import predict
from pyroccam.models import priors
from torch import nn
from torch.utils.checkpoint import checkpoint

FULL = {**QUICK, "epochs": 3, "batch_size": 54}  # the rows themselves are the batch
TENSORS = ("x_train", "x_val", "x_test", "y_train", "y_val", "y_test")


class Centred(nn.Module):
    """Computes with differences from the mean of the batch; in place, or not."""

    def __init__(self, in_place, when="always", width=6):
        super().__init__()
        self.f, self.in_place, self.when = nn.Linear(2, width), in_place, when

    def forward(self, x):
        if self.in_place and self.when in ("always", "training" if self.training else "evaluation"):
            x -= 0.5 * x.mean(0)
            x.mul_(1.5)
        else:
            x = 1.5 * (x - 0.5 * x.mean(0))
        return self.f(x)


def of(kind, first):
    """A pair whose network begins with a module."""
    rows = blobs()
    torch.manual_seed(0)
    first = first()
    if kind == "bayesian":
        net = nn.Sequential(first, nn.Tanh(), nn.Linear(6, 3))
        model = models.BayesianNetwork(net, rows, prior=priors.Normal())
        return model, guides.MeanField(model), rows
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.Tanh())]
    model = models.LearntDepth(first, blocks, nn.Linear(6, 3), data=rows)
    return model, guides.CategoricalDepth(model), rows


FIRST = {
    "always": lambda in_place: lambda: Centred(in_place),
    "in training": lambda in_place: lambda: Centred(in_place, "training"),
    "in evaluation": lambda in_place: lambda: Centred(in_place, "evaluation"),
    "ReLU": lambda in_place: lambda: nn.Sequential(nn.ReLU(inplace=in_place), nn.Linear(2, 6)),
}


def everything(fit):
    """Numbers from all that hands inputs to a network."""
    data = fit.data
    found = {"val": torch.tensor(fit.val_nll), "predict": fit.predict(data.x_test)}
    found |= {f"outputs {split}": fit.outputs(data.split(split)[0]) for split in ("train", "val")}
    found["evaluate"] = torch.tensor([*fit.evaluate("train").values(), *fit.evaluate().values()])
    if isinstance(fit.model, models.LearntDepth):
        found["exact"] = inference.posterior.exact_depth_posterior(fit.model, data)
        small = inference.shrink(fit).net
        scores = predict.evaluate_pruned(small, data.x_test, data.y_test, data.y_std)
        return found | {"pruned": torch.tensor([*scores.values()])}
    found["mean"] = fit.outputs(data.x_test, "deterministic")
    found["drawn"] = fit.outputs(data.x_test, draws=3, noise="activations")
    found["evidence"] = torch.tensor(inference.elbo.evidence(fit.model, fit.guide, data).elbo)
    found["arviz"] = torch.tensor(fit.to_arviz(draws=4)["log_likelihood"]["y"].values)
    found["curvature"] = next(iter(fit.posterior.curvature(probes=4).values())).kappa
    small = inference.shrink(fit, cut=inference.Thresholds(1e9)).net
    found["compressed"] = torch.tensor([*predict.evaluate_net(small, fit.model, data).values()])
    seconds_per_batch({"small": small}, data.x_test[:8], rounds=1)
    return found


@pytest.mark.parametrize(
    ("kind", "how"),
    [(("bayesian", "depth")[k % 2], how) for k, how in enumerate(FIRST)],
)
def test_the_data_stay_and_the_numbers_are_right(kind, how):
    found = {}
    for in_place in (True, False):
        *pair, rows = of(kind, FIRST[how](in_place))
        kept = copy.deepcopy({name: getattr(rows, name) for name in TENSORS})
        found[in_place] = everything(inference.fit(*pair, rows, **FULL))
        for name, value in kept.items():
            assert torch.equal(getattr(rows, name), value), name
    assert in_place or not any(part._forward_pre_hooks for part in pair[0].modules())
    for name, value in found[False].items():
        torch.testing.assert_close(found[True][name], value, msg=lambda m, n=name: f"{n}: {m}")


def adds_in_place(net, a):
    a += net.f(a.clone())
    return a


def test_a_block_that_changes_the_activation_before_it_is_refused():
    """It would change what an earlier exit has said."""
    rows, block = blobs(), network(adds_in_place, "AddsInPlace", f=nn.Linear(6, 6))
    model = models.LearntDepth(nn.Linear(2, 6), [block], nn.Linear(6, 3), data=rows)
    with pytest.raises(PyroccamError):
        inference.fit(model, guides.CategoricalDepth(model), rows, **FULL)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_random_layers_that_are_computed_again_are_refused(reentrant):
    """In the backward pass, where they would be drawn anew."""
    net = network(
        lambda net, x: checkpoint(net.b, net.a(x).tanh(), use_reentrant=reentrant),
        a=nn.Linear(2, 4), b=nn.Linear(4, 3),
    )  # fmt: skip
    model = models.BayesianNetwork(net, blobs(), prior=priors.Normal())
    with pytest.raises(NetworkError):
        inference.fit(model, guides.MeanField(model), blobs(), **FULL)


def test_a_random_layer_that_a_training_pass_leaves_out_is_refused():
    rows = blobs()
    net = network(
        lambda net, x: net.a(x) if net.training else net.b(net.a(x)),
        a=nn.Linear(2, 3), b=nn.Linear(3, 3),
    )  # fmt: skip
    model = models.BayesianNetwork(net, rows, prior=priors.Normal())
    with pytest.raises(NetworkError, match="b.weight"):
        inference.fit(model, guides.MeanField(model), rows, **FULL)


def test_some_parameters_may_have_no_gradient():
    """Those before a cut, and those that no output depends on."""
    rows = blobs()
    net = network(
        lambda net, x: net.b(net.a(x).tanh().detach()), a=nn.Linear(2, 6), b=nn.Linear(6, 3)
    )
    net.unused = nn.Parameter(torch.zeros(3))
    model = models.LearntDepth(net, [nn.Linear(3, 3)], nn.Identity(), data=rows)
    fit = inference.fit(model, guides.CategoricalDepth(model), rows, **FULL)
    assert len(fit.history) == 3


# -- the order of memory ----------------------------------------------------------------------

IMAGES = {"epochs": 1, "batch_size": 20, "device": "cpu", "progress": False, "compile": False}


class Views(nn.Module):
    """Takes what a convolution gives for contiguous, as many a network does."""

    def __init__(self, view):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 4, 3)
        self.out, self.view = nn.Linear(16, 2), view

    def forward(self, x):
        x = self.second(self.first(x).relu())
        return self.out(x.view(len(x), -1) if self.view else x.flatten(1))


def images():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, 6, 6, generator=generator)
    y = (x.mean((1, 2, 3)) > 0).long()
    return data.Dataset.from_tensors(x[:40], y[:40], x[40:], y[40:], task="classification")


def viewing(rows, view, layers):
    torch.manual_seed(0)
    model = models.BayesianNetwork(Views(view), rows, prior=priors.Normal(), layers=layers)
    return model, guides.MeanField(model)


def is_last(rows):
    x = rows.x_train
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


@pytest.mark.parametrize("layers", [None, ["out"]])
def test_a_network_that_views_its_images(layers):
    rows = images()
    free = inference.fit(*viewing(rows, False, layers), rows, **IMAGES)
    bound = inference.fit(*viewing(rows, True, layers), rows, **IMAGES)
    assert is_last(free.data)
    assert bound.data.x_train.is_contiguous()
    assert rows.x_train.is_contiguous()  # what a person gave stays as it was
    # Noise for images follows their memory: it is the same numbers only behind them.
    close = 1e-4 if layers == ["out"] else 0.05
    assert bound.evaluate()["nll"] == pytest.approx(free.evaluate()["nll"], abs=close)
    assert bound.history[-1]["loss"] == pytest.approx(free.history[-1]["loss"], rel=close)
    assert bound.posterior.mean_network()(rows.x_test).shape == (20, 2)
