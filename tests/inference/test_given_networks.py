"""Networks as they were given: models take copies of them, and what is frozen stays."""

import copy

import pytest
import torch
from plain import network
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.posterior import mean_network
from pyroccam.inference.training import Replicate, trained, trainer
from pyroccam.models import evaluating, local_parameters, priors
from pyroccam.models.layers import AFFINE
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.filterwarnings("ignore:Weight normalisation is folded", "ignore:Layer '.*' has h"),
    pytest.mark.filterwarnings("ignore:.*(weight_norm|spectral_norm).*is deprecated"),
]
QUICK = {"batch_size": 20, "progress": False, "device": "cpu", "compile": False, "seed": 1}


def rows(*shape, val=0):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, *shape, generator=generator)
    sums = x.double().flatten(1).sum(1)
    y = (sums > sums.median()).long()
    return data.Dataset.from_tensors(x[:40], y[:40], x[40:], y[40:], val_fraction=val / 40)


def recurrent(kind, *args, **options):
    def forward(net, x):
        return net.linear(net.layer(x.transpose(1, 2))[0][:, -1])

    return network(forward, layer=kind(*args, batch_first=True, **options), linear=nn.Linear(8, 8))


def convolution(norm=lambda layer: layer):
    return nn.Sequential(
        norm(nn.Conv1d(3, 4, 3)), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), norm(nn.Linear(12, 8))
    )


def changed():
    net = convolution()
    net[0].requires_grad_(False)
    net[1].eval().register_forward_hook(lambda module, args, out: 2 * out)
    return net


def tied():
    net = network(
        lambda net, x: net.last(net.other_tied(net.tied(x).tanh()).flatten(1)),
        tied=nn.Linear(5, 5), other_tied=nn.Linear(5, 5), last=nn.Linear(15, 8),
    )  # fmt: skip
    net.other_tied.weight = net.tied.weight
    return net


NETS = {
    "convolution": convolution,
    "recurrent": lambda: recurrent(nn.LSTM, 3, 8),
    "weight norm": lambda: convolution(parametrizations.weight_norm),
    "spectral norm": lambda: convolution(parametrizations.spectral_norm),
    "old spectral norm": lambda: convolution(spectral_norm),
    "tied": tied,
    "frozen, in evaluation, with a hook": changed,
}


def chosen(name, module):
    return type(module) in AFFINE and "weight" in module._parameters and "tied" not in name


def bayesian(net):
    def pair(given, table):
        model = models.BayesianNetwork(given, table, prior=priors.Normal(1.0), layers=chosen)
        return model, guides.MeanField(model)

    return nn.Sequential(net, nn.Linear(8, 2)), pair


def structured(net):
    def pair(given, table):
        model = models.StructuredNetwork(given, table, structure=priors.GumbelSoftmax())
        return model, guides.MeanField(model)

    other = nn.Sequential(nn.Flatten(), nn.Linear(15, 8))
    edges = {("x", "h"): {"a": net, "b": other}, ("h", "y"): [nn.Linear(8, 2)]}
    return models.StructureGraph(edges), pair


def stack(net):
    def pair(given, table):
        model = models.BayesianStack(given, table, prior=priors.Normal(1.0), layers=chosen)
        return model, guides.MeanField(model)

    head = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 2))
    return models.DepthStack(net, [nn.Linear(8, 8)], head), pair


def depth(net):
    def pair(given, table):
        model = models.LearntDepth(given, data=table)
        return model, guides.CategoricalDepth(model)

    return models.DepthStack(net, [nn.Linear(8, 8)], nn.Linear(8, 2)), pair


def facts(net, x):
    """All that there is to see of a network; a pass in evaluation leaves no trace."""
    tensors = dict([*net.named_parameters(), *net.named_buffers()])
    with evaluating(net):
        tensors["outputs"] = net(x)
    seen = {name: (t.detach().clone(), t.requires_grad) for name, t in tensors.items()}
    modules = {
        name: (type(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks))
        for name, m in net.named_modules()
    }
    return seen, modules


def assert_same(after, before):
    assert after[1] == before[1]
    assert list(after[0]) == list(before[0])
    for name, (value, learnt) in before[0].items():
        assert torch.equal(after[0][name][0], value), name
        assert after[0][name][1] == learnt, name


@pytest.mark.parametrize("kind", NETS)
def test_a_model_leaves_the_network_that_it_was_given_as_it_was(kind):
    """And earlier copies of it, bit for bit: when it is made, called, trained, cut, made anew."""
    table = rows(3, 5)
    for model_of in (bayesian, structured, stack, depth):
        net, pair = model_of(NETS[kind]())
        given = (net,) if kind.startswith("old") else (net, copy.deepcopy(net))
        before = [facts(one, table.x_test) for one in given]
        model, guide = pair(net, table)
        with local_parameters():
            model.train()(table.x_train, table.y_train)
        if model_of is bayesian:
            first = model.anew(table).first_network()(table.x_test)
            torch.testing.assert_close(first, before[0][0]["outputs"][0])
            fit = inference.fit(model, guide, table, epochs=1, **QUICK)
            if kind in ("convolution", "weight norm"):
                inference.shrink(fit, cut=inference.Thresholds(1e9))
        for one, seen in zip(given, before, strict=True):
            assert_same(facts(one, table.x_test), seen)


def partly_frozen(how):
    """A network of which the first two layers are frozen, those before the last, or one bias."""
    net = nn.Sequential(
        nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4), nn.ReLU(),
        nn.Conv1d(4, 5, 2), nn.BatchNorm1d(5), nn.ReLU(), nn.Flatten(), nn.Linear(15, 2),
    )  # fmt: skip
    with torch.no_grad():
        for norm in (net[1], net[4]):
            norm.running_mean.normal_()
            norm.weight.uniform_(0.5, 1.5)
    if how == "layers":
        net[:2].requires_grad_(False)
    elif how == "in evaluation":
        net[:2].requires_grad_(False).eval()
        net[4].eval()
    elif how == "bias":
        net[3].bias.requires_grad_(False)
    return net


STAYS = {  # of each, and how many layers are random
    "layers": (("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"), 2),
    "in evaluation": (
        ("0.weight", "1.bias", "1.running_var", "4.running_mean", "4.running_var"),
        2,
    ),
    "bias": (("3.bias",), 3),
}


def values(net):
    return {n: t.detach().clone() for n, t in [*net.named_parameters(), *net.named_buffers()]}


@pytest.mark.parametrize("how", STAYS)
@pytest.mark.filterwarnings("ignore:These weights stay as they are")
def test_what_is_frozen_stays_through_training_cutting_and_retraining(how, monkeypatch):
    table, stays = rows(3, 5, val=10), STAYS[how][0]
    net = partly_frozen(how)
    before = values(net)
    model = models.BayesianNetwork(net, table, prior=priors.GroupNormalJeffreys())
    assert len(model.layers) == STAYS[how][1]
    own = {**QUICK, "compile": "graph" if how == "layers" else False}
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "TRACE_FROM", 1)
        patch.setattr(Replicate, "convolutional", False)
        fit = inference.fit(model, guides.MeanField(model), table, epochs=4, **own)
    assert fit.engine["kind"] == ("graph" if how == "layers" else "eager")
    found = {"the means": mean_network(model, fit.guide)}
    found["anew"] = model.anew(table).first_network()
    smaller = inference.narrow(fit, cut=inference.Thresholds(1e9))
    again = inference.fit(*smaller, table, epochs=2, **QUICK)
    found["narrow"] = again.posterior.mean_network()
    if how == "in evaluation":  # compress writes statistics into scales that are not frozen
        found["retrained"] = trained(found["the means"], fit, 2, 0.1).net
    else:
        again = 2 * (how == "layers")
        found["compressed"] = inference.shrink(
            fit, cut=inference.Thresholds(1e9), code=inference.Digits(epochs=again)
        ).net
    for what, one in found.items():
        after = values(one)
        for name in stays:
            assert torch.equal(after[name], before[name]), (what, name)
    assert not torch.equal(found.popitem()[1][7].weight, before["7.weight"])


def test_what_is_frozen_is_said_and_random_where_it_is_named():
    table = rows(3, 5)
    with pytest.warns(UserWarning, match="stay as they are"):
        model = models.BayesianNetwork(partly_frozen("layers"), table, prior=priors.Normal())
    assert list(model.layers) == ["3", "7"]
    for named in ({"layers": ["0", "7"]}, {"prior": dict.fromkeys("07", priors.Normal())}):
        options = {"prior": priors.Normal(), **named}
        model = models.BayesianNetwork(partly_frozen("layers"), table, **options)
        assert list(model.layers) == ["0", "7"]
    with pytest.raises(PyroccamError):
        models.BayesianNetwork(
            partly_frozen(None).requires_grad_(False), table, prior=priors.Normal()
        )


def test_a_network_that_is_all_in_evaluation_trains_as_ever():
    """It is trained already, and has perhaps a new head, or a new root."""
    table, found, before = rows(3, 5), [], values(partly_frozen(None))
    for how in ("in training", "in evaluation", "new head", "new root"):
        torch.manual_seed(0)
        net = partly_frozen(None).train(how == "in training")
        net[7].train(how == "new head")
        net = nn.Sequential(*net) if how == "new root" else net
        net.load_state_dict(before)
        model = models.BayesianNetwork(net, table, prior=priors.Normal())
        fit = inference.fit(model, guides.MeanField(model), table, epochs=2, **QUICK)
        found.append(values(mean_network(model, fit.guide)))
    assert not torch.equal(found[0]["1.running_mean"], before["1.running_mean"])
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in before)


def test_frozen_parts_of_a_stack_stay():
    """With its statistics, which are of each depth where depths share a module."""
    table = rows(6)
    norm = nn.BatchNorm1d(6)
    norm.running_mean.normal_()
    for freeze in (lambda: norm.requires_grad_(False), lambda: norm.requires_grad_(True).eval()):
        freeze()
        head = nn.Sequential(norm, nn.Linear(6, 2))
        stem = nn.Linear(6, 6).requires_grad_(False)
        given = models.DepthStack(stem, [nn.Linear(6, 6)], head)
        learnt = models.LearntDepth(given, data=table)
        inference.fit(learnt, guides.CategoricalDepth(learnt), table, epochs=3, **QUICK)
        fixed = learnt.at_depth(1)
        inference.fit(fixed, guides.Deterministic(fixed), table, epochs=3, **QUICK)
        random = models.BayesianStack(
            given, table, prior=priors.Normal(), layers=["blocks.0", "head.1"]
        )
        fit = inference.fit(random, guides.MeanField(random), table, epochs=3, **QUICK)
        mean = mean_network(random, fit.guide)
        for parts in (learnt.stack, mean):
            assert torch.equal(parts.stem.weight, stem.weight)
            assert torch.equal(parts.head[0].running_mean, norm.running_mean.expand(2, -1))
        assert torch.equal(fixed.net[0].weight, stem.weight)
        assert torch.equal(fixed.net[-1][0].running_mean, norm.running_mean)
