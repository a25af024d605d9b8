"""Networks that are handed back: what they compute, of torch alone, also once unpickled."""

import copy
import subprocess
import sys

import pytest
import torch
from cut_stacks import WEIGHTS, cut, trained
from fitting import SHORT, blobs, fit_weights
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.cutting import cut as cut_out
from pyroccam.models.networks import Residual
from pyroccam.models.networks.primitives import One, Zero
from pyroccam.models.plain import PrunedNetwork, is_select, select, selected_dim, torch_only
from torch import nn


@pytest.mark.parametrize("name", ["mlp", "conv", "resnet"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_both_forms_compute_the_exits_of_the_full_network(name, task):
    model, x = trained(name, task)
    before = copy.deepcopy(model.state_dict())
    net, single = cut(model, "marginal"), cut(model, "single")
    with torch.no_grad():
        exits = model.stack.outputs(x)[:3]
        torch.testing.assert_close(net.components(x), exits, rtol=1e-5, atol=1e-5)
        got, alone = net(x), single(x)
        for form in (net, single):
            for t in form.state_dict().values():
                t.zero_()
    classes = task == "classification"
    mixed = sum(w * (e.softmax(-1) if classes else e) for w, e in zip(WEIGHTS, exits, strict=True))
    torch.testing.assert_close(got.exp() if classes else got, mixed, rtol=1e-4, atol=1e-5)
    expected = exits[2].log_softmax(-1) if classes else exits[2]
    torch.testing.assert_close(alone, expected, rtol=1e-5, atol=1e-5)
    assert classes or cut(model, "single").scale.equal(model.likelihood.scale)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert not any("pyro." in type(m).__module__ for m in net.modules())
    assert sum(p.numel() for p in net.parameters()) < sum(p.numel() for p in model.parameters())


def test_a_depth_of_weight_zero_is_legal_and_finite():
    model, x = trained("mlp")
    net = PrunedNetwork(model.stack, 1, torch.tensor([0.0, 1.0]), model.likelihood)
    with torch.no_grad():
        expected = model.stack.outputs(x)[1].log_softmax(-1)
        torch.testing.assert_close(net(x), expected, rtol=1e-5, atol=1e-6)
    assert torch.isfinite(net.log_weights).all()
    with pytest.raises(PyroccamError):
        PrunedNetwork(model.stack, 2, torch.tensor([0.5, 0.5]), model.likelihood)


WITHOUT_US = """
import sys
sys.modules["pyroccam"] = None  # importing it fails
import torch
for path in sys.argv[1:]:
    net, x, expected = torch.load(path, weights_only=False)
    assert not net.training
    assert all("pyroccam" not in type(module).__module__ for module in net.modules())
    with torch.no_grad():
        assert torch.equal(net(x), expected), path
print(len(sys.argv) - 1, "networks")
"""


def pruned():
    for name, form, task in (
        ("conv", "marginal", "classification"), ("resnet", "single", "regression")
    ):  # fmt: skip
        model, x = trained(name, task)
        yield f"{name}-{form}-{task}", cut(model, form), x


def compressed():
    result = fit_weights(models.priors.GroupNormalJeffreys())
    with torch.no_grad():
        result.guide.factors["2/scale"].loc[:3] = 1e-6
        result.guide.factors["0/scale"].loc[0] = 1e-6
    small = inference.shrink(result, cut=inference.Thresholds(2.0))
    assert any(is_select(module) for module in small.net.modules())
    yield "compressed", small.net, result.data.x_test
    stack = models.networks.residual_mlp((2,), 3, width=5, max_depth=2)
    deep = fit_weights(models.priors.Normal(1.0), net=stack)
    small = inference.shrink(deep, cut=inference.Thresholds(9.0))
    yield "compressed-stack", small.net, deep.data.x_test


def discretised():
    rows = blobs()
    graph = models.StructureGraph(
        {
            ("x", "h"): {"a": nn.Linear(2, 4), "none": nn.Sequential(Zero(), nn.Linear(2, 4))},
            ("x", "y"): {"one": nn.Sequential(One(), nn.Linear(1, 4)), "b": nn.Linear(2, 4)},
            ("h", "y"): [nn.Tanh()],
        }
    )
    net, structure = nn.Sequential(graph, nn.Linear(4, 3)), models.priors.GumbelSoftmax(1.0)
    model = models.StructuredNetwork(net, rows, structure=structure)
    fit = inference.fit(model, guides.MeanField(model), rows, **SHORT)
    choice = {"0.x-h": "none", "0.x-y": "one", "0.h-y": "0"}
    yield "discretised", inference.shrinking.discretise(fit, choice), rows.x_test


def test_what_is_handed_back_is_unpickled_where_there_is_no_pyroccam(tmp_path):
    for make in (pruned, compressed, discretised):
        for name, net, x in make():
            with torch.no_grad():
                torch.save((net, x, net(x)), tmp_path / f"{name}.pt")
    command = [sys.executable, "-c", WITHOUT_US, *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5 networks\n"


class OwnKind(models.Classification):
    """A likelihood whose way of predicting depends on values."""

    def predicted(self, outputs):
        return outputs.log_softmax(-1) if outputs.sum() > -1e9 else outputs


def test_a_likelihood_that_cannot_be_traced_is_pickled_as_it_is(tmp_path):
    model, x = trained("mlp")
    net = PrunedNetwork(model.stack, 1, None, OwnKind(3))
    torch.save(net, tmp_path / "net.pt")
    again = torch.load(tmp_path / "net.pt", weights_only=False)
    assert type(again) is PrunedNetwork
    assert type(again.likelihood) is OwnKind
    with torch.no_grad():
        assert torch.equal(again(x), net(x))


def test_a_module_that_stands_twice_stays_one():
    first = Residual(nn.Linear(3, 3), nn.Tanh())
    twice = nn.Sequential(first, nn.Tanh(), first)
    plain = torch_only(twice)
    assert plain[0] is plain[2] is not first
    x = torch.randn(4, 3)
    with torch.no_grad():
        assert torch.equal(plain(x), twice.eval()(x))
    mine = nn.Sequential(nn.Linear(2, 2))
    assert torch_only(mine) is mine


@pytest.mark.parametrize("dim", [-1, 1])
def test_a_choice_is_known_again(dim):
    chosen = select([2, 0], dim)
    for one in (chosen, copy.deepcopy(chosen)):
        assert is_select(one)
        assert selected_dim(one) == dim
        assert torch.equal(one(torch.tensor([[5.0, 6.0, 7.0]])), torch.tensor([[7.0, 5.0]]))
    assert not is_select(torch.fx.symbolic_trace(nn.Sequential(nn.Tanh())))


def test_a_choice_that_was_unpickled_is_cut_again(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(select([3, 1, 2], -1), nn.Linear(3, 2)))
    with torch.no_grad():
        net[1][1].weight[:, 0] = 0
    torch.save(net, tmp_path / "net.pt")
    again = torch.load(tmp_path / "net.pt", weights_only=False)
    x = torch.randn(5, 3)
    small, report = cut_out(again.eval(), x)
    assert report.layers["0"].outputs.tolist() == [1, 2]
    assert small[1][0].index.tolist() == [0, 1]
    torch.testing.assert_close(small(x), net(x))
