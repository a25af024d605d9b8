"""Networks that change their inputs in place: the data stay, and every pass sees them as they are.

And networks of which a likelihood can learn nothing, because their outputs have no gradient.
"""

import copy
import dataclasses

import pyro.distributions as dist
import pytest
import torch
from fitting import QUICK, blobs
from plain import network
from pyroccam import guides, inference, models
from pyroccam.data.errors import NetworkError
from pyroccam.inference.posterior import predict
from pyroccam.models import inputs, priors
from random_weights import Rows
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


class Behind(Centred):
    """Behind the back of torch's count of versions."""

    def forward(self, x):
        if self.in_place:
            x.data.mul_(0.5)
            return self.f(x)
        return self.f(0.5 * x)


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
    if kind == "fixed":
        model = model.at_depth(1)
        return model, guides.Deterministic(model), rows
    guide = guides.Marginal if kind == "marginal" else guides.CategoricalDepth
    return model, guide(model), rows


FIRST = {
    "always": lambda in_place: lambda: Centred(in_place),
    "in training": lambda in_place: lambda: Centred(in_place, "training"),
    "in evaluation": lambda in_place: lambda: Centred(in_place, "evaluation"),
    "hidden": lambda in_place: lambda: Behind(in_place),
    "ReLU": lambda in_place: lambda: nn.Sequential(nn.ReLU(inplace=in_place), nn.Linear(2, 6)),
}


def everything(fit):
    """Numbers from all that hands inputs to a network."""
    data = fit.data
    found = {"val": torch.tensor(fit.val_nll), "predict": fit.predict(data.x_test)}
    found |= {f"outputs {split}": fit.outputs(data.split(split)[0]) for split in ("train", "val")}
    found["evaluate"] = torch.tensor([*fit.evaluate("train").values(), *fit.evaluate().values()])
    if isinstance(fit.model, models.BayesianNetwork):
        found["mean"] = fit.outputs(data.x_test, "deterministic")
        found["drawn"] = fit.outputs(data.x_test, draws=3, noise="activations")
        found["evidence"] = torch.tensor(inference.elbo.evidence(fit.model, fit.guide, data).elbo)
        groups = fit.to_arviz(draws=4)
        found["arviz"] = torch.tensor(groups["log_likelihood"]["y"].values)
        found["curvature"] = next(iter(fit.posterior.curvature(probes=4).values())).kappa
        small = inference.shrink(fit, cut=inference.Thresholds(1e9)).net
        found["compressed"] = torch.tensor([*predict.evaluate_net(small, fit.model, data).values()])
    elif isinstance(fit.model, models.LearntDepth):
        found["exact"] = inference.posterior.exact_depth_posterior(fit.model, data)
        small = inference.shrink(fit).net
        scores = predict.evaluate_pruned(small, data.x_test, data.y_test, data.y_std)
        found["pruned"] = torch.tensor([*scores.values()])
    return found


@pytest.mark.parametrize("how", FIRST)
@pytest.mark.parametrize("kind", ["bayesian", "depth", "marginal", "fixed"])
def test_the_data_stay_and_the_numbers_are_right(kind, how):
    *pair, rows = of(kind, FIRST[how](True))
    kept = copy.deepcopy({name: getattr(rows, name) for name in TENSORS})
    found = everything(inference.fit(*pair, rows, **FULL))
    for name, value in kept.items():
        assert torch.equal(getattr(rows, name), value), name
    *pair, rows = of(kind, FIRST[how](False))
    expected = everything(inference.fit(*pair, rows, **FULL))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("kind", ["bayesian", "depth"])
def test_in_common_steps_and_compiled(kind):
    def build(in_place):
        def make(seed):
            *pair, rows = of(kind, FIRST["always"](in_place))
            for p in pair[0].parameters():
                nn.init.normal_(p, std=0.5)
            return *pair, rows

        return make

    few = {k: v for k, v in FULL.items() if k != "seed"}
    ends = []
    for in_place in (True, False):
        made = [build(in_place)(seed) for seed in (0, 1)]
        kept = [one[2].x_train.clone() for one in made]
        found = inference.fit_repeats(lambda s, made=made: made[s], [0, 1], together=True, **few)
        assert all(one.engine["fallback"] is None for one in found.fits)
        for one, x in zip(made, kept, strict=True):
            assert torch.equal(one[2].x_train, x)
            assert inputs.own_copies in _first(one[0])._forward_pre_hooks.values() or not in_place
        ends.append([one.predict(one.data.x_test) for one in found.fits])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b)


def _first(model):
    return model.net if isinstance(model, models.BayesianNetwork) else model.stack.stem


def test_other_networks_are_left_alone():
    for kind in ("bayesian", "depth"):
        *pair, rows = of(kind, FIRST["always"](False))
        inference.fit(*pair, rows, **FULL)
        assert not any(part._forward_pre_hooks for part in pair[0].modules())


def test_a_network_that_is_made_with_rows_in_place_is_compared_rightly():
    """A second pass over rows that the first has changed would give other outputs."""
    net = nn.Sequential(Centred(True), nn.Tanh(), nn.Linear(6, 3))
    models.BayesianNetwork(net, blobs(), prior=priors.Normal())


class Overwriting(dist.Categorical):
    def log_prob(self, value):
        return super().log_prob(value.mul_(1))


class Targets(models.Classification):
    """A likelihood of one's own that changes the targets."""

    def forward(self, outputs):
        return Overwriting(logits=outputs)


def test_targets_that_are_changed_are_refused():
    rows = blobs()
    parts = nn.Linear(2, 6), [nn.Linear(6, 6)], nn.Linear(6, 3)
    model = models.LearntDepth(*parts, data=rows, likelihood=Targets(3))
    with pytest.raises(ValueError, match="LearntDepth changes its batch in place"):
        inference.fit(model, guides.CategoricalDepth(model), rows, **FULL)


def adds_in_place(net, a):
    a += net.f(a.clone())
    return a


@pytest.mark.parametrize("stem", [nn.Linear(2, 6), nn.Flatten()], ids=["linear", "view"])
def test_a_block_that_changes_the_activation_before_it_is_refused_and_the_data_stay(stem):
    rows = blobs()
    if isinstance(stem, nn.Flatten):  # the first activation is a view of the data
        wide = {n: getattr(rows, n).repeat(1, 3) for n in ("x_train", "x_val", "x_test")}
        rows = dataclasses.replace(rows, **wide)
    kept = rows.x_train.clone()
    block = network(adds_in_place, "AddsInPlace", f=nn.Linear(6, 6))
    model = models.LearntDepth(stem, [block], nn.Linear(6, 3), data=rows)
    with pytest.raises(ValueError, match=r"Block 1 \(AddsInPlace\) changes its input in place"):
        inference.fit(model, guides.CategoricalDepth(model), rows, **FULL)
    assert torch.equal(rows.x_train, kept)


# -- outputs without a gradient ---------------------------------------------------------------


class Cut(nn.Module):
    """A network whose outputs, or those of its first layer, lose their gradient in some way."""

    def __init__(self, how, where="end"):
        super().__init__()
        self.how, self.where = how, where
        self.a, self.b = nn.Linear(2, 6), nn.Linear(6, 3)

    def cut(self, h):
        if self.how == "detach":
            return h.detach()
        return torch.as_tensor(h.detach().numpy() + 0.0)

    def forward(self, x):
        if self.how == "no_grad":
            with torch.no_grad():
                return self.b(self.a(x).tanh())
        h = self.a(x).tanh()
        return self.b(self.cut(h)) if self.where == "middle" else self.cut(self.b(h))


@pytest.mark.parametrize("how", ["detach", "no_grad", "numpy"])
@pytest.mark.parametrize("compile", [None, False])
@pytest.mark.parametrize("kind", ["bayesian", "depth", "fixed"])
def test_outputs_without_a_gradient_are_refused(kind, how, compile):
    rows = blobs()
    if kind == "bayesian":
        model = models.BayesianNetwork(Cut(how), rows, prior=priors.Normal())
        guide = guides.MeanField(model, local=False)
    else:
        model = models.LearntDepth(Cut(how), [kept()], nn.Identity(), data=rows)
        guide = guides.CategoricalDepth(model, update="gradient")
    if kind == "fixed":
        model = model.at_depth(0)
        guide = guides.Deterministic(model)
    with pytest.raises((NetworkError, ValueError), match="no gradient|depends on no parameter"):
        inference.fit(model, guide, rows, **{**FULL, "compile": compile})


def kept():
    return network(lambda net, a: a + 0.0)


def test_what_the_refusal_says():
    rows = blobs()
    model = models.BayesianNetwork(Cut("detach"), rows, prior=priors.Normal())
    with pytest.raises(NetworkError) as error:
        inference.fit(model, guides.MeanField(model), rows, **FULL)
    text = str(error.value)
    assert "outputs of BayesianNetwork have no gradient" in text
    assert "none of the 8 parameters" in text
    assert text.count("\n") < 2


class Recomputing(nn.Module):
    """Its layers are computed again in the backward pass."""

    def __init__(self, reentrant=None):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.reentrant = nn.Linear(2, 4), nn.Linear(4, 3), reentrant

    def forward(self, x):
        x = self.a(x)
        if self.reentrant is None:
            return self.b(x.tanh())
        return checkpoint(lambda x: self.b(x.tanh()), x, use_reentrant=self.reentrant)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("guide", [guides.MeanField, guides.Delta])
def test_random_layers_that_are_computed_again_are_refused(guide, reentrant):
    rows = blobs()
    model = models.BayesianNetwork(Recomputing(reentrant), rows, prior=priors.Normal())
    with pytest.raises(NetworkError):
        inference.fit(model, guide(model), rows, **FULL)


def test_layers_that_are_numbers_may_be_computed_again():
    rows, found = blobs(), []
    for reentrant in (None, False):
        net = Recomputing(reentrant)
        model = models.BayesianNetwork(net, rows, prior=priors.Normal(), layers=["a"])
        found.append(inference.fit(model, guides.MeanField(model), rows, **FULL).val_nll)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_a_random_layer_that_a_training_pass_leaves_out_is_refused():
    rows = blobs()
    net = network(
        lambda net, x: net.a(x) if net.training else net.b(net.a(x)),
        a=nn.Linear(2, 3), b=nn.Linear(3, 3),
    )  # fmt: skip
    model = models.BayesianNetwork(net, rows, prior=priors.Normal())
    with pytest.raises(NetworkError, match="b.weight"):
        inference.fit(model, guides.MeanField(model), rows, **FULL)


def test_the_noise_of_a_regression_learns_without_a_network():
    rows = dataclasses.replace(blobs(), task="regression", classes=None)
    y = {n: getattr(rows, n)[:, None].float() for n in ("y_train", "y_val", "y_test")}
    rows = dataclasses.replace(rows, **y, class_names=())
    net = nn.Sequential(Cut("detach"), kept())
    model = models.LearntDepth(net, [kept()], kept(), data=Rows(2, outputs=3, N=54))
    assert [n for n, _ in model.likelihood.named_parameters()]  # which has a gradient
    with pytest.raises(NetworkError, match="no gradient"):
        inference.fit(model, guides.CategoricalDepth(model), rows, **FULL)


@pytest.mark.parametrize("kind", ["middle", "frozen"])
def test_some_parameters_may_have_none(kind):
    """Frozen ones, those before a cut, and those that no output depends on."""
    rows = blobs()
    net = Cut("detach", "middle")
    net.unused = nn.Parameter(torch.zeros(3))
    model = models.LearntDepth(net, [nn.Linear(3, 3)], kept(), data=rows)
    if kind == "frozen":  # only q(d) is learnt
        model.stack.requires_grad_(False)
    guide = guides.CategoricalDepth(model, update="gradient", hold=0.0)
    fit = inference.fit(model, guide, rows, **FULL)
    assert len(fit.history) == 3
