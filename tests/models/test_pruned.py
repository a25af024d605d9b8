import json

import pyro.distributions as dist
import pytest
import torch
from pyroccam import inference, models
from pyroccam.models.pruned import PrunedNetwork, load, save
from torch import nn


class Data:
    def __init__(self, task, outputs, input_shape):
        self.N, self.task, self.outputs, self.input_shape = 6, task, outputs, input_shape


def trained(name, task="classification"):
    """A model whose every number differs from that of a fresh one, and inputs."""
    torch.manual_seed(4)
    shape = (5,) if name in ("mlp", "own") else (1, 10, 10)
    data = Data(task, 3, shape)
    if name == "own":
        model = models.LearntDepth(own_stack(), data=data)
    else:
        small = {"resnet": {}, "mlp": {"width": 6}, "conv": {"width": 4, "inner": 3}}[name]
        model = models.LearntDepth.of(name, data, max_depth=3, **small)
    x = torch.randn(6, *shape)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
        for _ in range(3):
            model.stack.outputs(torch.randn(6, *shape) * 2 + 1)
    return model.eval(), x


def own_stack():
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    return models.DepthStack(nn.Linear(5, 4), blocks, nn.Linear(4, 3))


WEIGHTS = torch.tensor([0.2, 0.5, 0.3])


def cut(model, form):
    return PrunedNetwork(model.stack, 2, WEIGHTS if form == "marginal" else None, model.likelihood)


# -- what it computes -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "conv", "resnet"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_marginal_form_averages_the_exits_of_the_full_network(name, task):
    model, x = trained(name, task)
    with torch.no_grad():
        exits = model.stack.outputs(x)[:3]
        net = cut(model, "marginal")
        got = net(x)
        torch.testing.assert_close(net.components(x), exits, rtol=1e-5, atol=1e-5)
    if task == "classification":
        expected = sum(w * e.softmax(-1) for w, e in zip(WEIGHTS, exits, strict=True))
        torch.testing.assert_close(got.exp(), expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(got.exp().sum(-1), torch.ones(6))
    else:
        expected = sum(w * e for w, e in zip(WEIGHTS, exits, strict=True))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(net.scale, model.likelihood.scale.detach())


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_single_form_is_one_exit(task):
    model, x = trained("conv", task)
    with torch.no_grad():
        exit_ = model.stack.outputs(x)[2]
        got = cut(model, "single")(x)
    expected = exit_.log_softmax(-1) if task == "classification" else exit_
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_depth_of_weight_zero_is_legal_and_finite():
    model, x = trained("mlp")
    net = PrunedNetwork(model.stack, 1, torch.tensor([0.0, 1.0]), model.likelihood)
    with torch.no_grad():
        expected = model.stack.outputs(x)[1].log_softmax(-1)
        torch.testing.assert_close(net(x), expected, rtol=1e-5, atol=1e-6)
    assert torch.isfinite(net.log_weights).all()


def test_nothing_is_shared_and_nothing_of_pyro_is_left():
    model, _ = trained("mlp")
    mine = {t.untyped_storage().data_ptr() for t in model.state_dict().values()}
    for form in ("marginal", "single"):
        net = cut(model, form)
        assert not mine & {t.untyped_storage().data_ptr() for t in net.state_dict().values()}
        assert not any("pyro." in type(m).__module__ for m in net.modules())
        assert not net.training
        count = sum(p.numel() for p in net.parameters())
        assert count < sum(p.numel() for p in model.parameters())


def test_wrong_number_of_weights():
    model, _ = trained("mlp")
    with pytest.raises(ValueError, match=r"\(2,\) weights for the depths 0 \.\.\. 2.*\(3,\)"):
        PrunedNetwork(model.stack, 2, torch.tensor([0.5, 0.5]), model.likelihood)


# -- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "conv", "resnet"])
@pytest.mark.parametrize("form", ["marginal", "single"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_round_trip_is_exact_and_runs_no_pickle(name, form, task, tmp_path, monkeypatch):
    model, x = trained(name, task)
    net = cut(model, form)
    assert save(net, tmp_path / "deep" / "folder") == tmp_path / "deep" / "folder"

    def never(*args, **kwargs):
        raise AssertionError("unpickled something")

    for module, function in (("torch", "load"), ("pickle", "load"), ("pickle", "loads")):
        monkeypatch.setattr(f"{module}.{function}", never)
    torch.manual_seed(99)
    again = load(tmp_path / "deep" / "folder")
    assert again.description == net.description
    assert (again.form, again.depth, again.task) == (form, 2, task)
    assert not again.training
    theirs = again.state_dict()
    assert theirs.keys() == net.state_dict().keys()
    for key, value in net.state_dict().items():
        assert torch.equal(value, theirs[key]), key
    with torch.no_grad():
        assert torch.equal(net(x), again(x))
    assert sorted(p.name for p in (tmp_path / "deep" / "folder").iterdir()) == [
        "description.json",
        "model.safetensors",
    ]


def test_round_trip_after_a_second_save(tmp_path):
    model, x = trained("mlp")
    save(cut(model, "marginal"), tmp_path / "a")
    save(load(tmp_path / "a"), tmp_path / "b")
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "a")(x), load(tmp_path / "b")(x))


def test_a_network_of_ones_own_needs_its_stack(tmp_path):
    model, x = trained("own")
    net = cut(model, "marginal")
    inference.save(net, tmp_path)
    with pytest.raises(ValueError, match=r"a network of one's own.*load\(folder, stack=\.\.\.\)"):
        inference.load(tmp_path)
    fresh = own_stack()
    before = [p.clone() for p in fresh.parameters()]
    again = inference.load(tmp_path, fresh)
    with torch.no_grad():
        assert torch.equal(net(x), again(x))
    for p, q in zip(fresh.parameters(), before, strict=True):
        assert torch.equal(p, q)


def test_a_stack_that_does_not_fit(tmp_path):
    save(cut(trained("own")[0], "marginal"), tmp_path)
    with pytest.raises(ValueError, match=r"(?s)does not fit its description.*size mismatch"):
        load(tmp_path, models.networks.residual_mlp((5,), 3, width=9, max_depth=3))


@pytest.mark.parametrize("name", ["description.json", "model.safetensors"])
def test_a_missing_file_is_named(name, tmp_path):
    save(cut(trained("mlp")[0], "single"), tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {name}.*save"):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 0.5, 0.99])
def test_truncated_weights_are_an_error(keep, tmp_path):
    save(cut(trained("mlp")[0], "single"), tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(len(content) * keep)])
    with pytest.raises(ValueError, match="model.safetensors does not fit its description"):
        load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: "{",
        lambda d: "[1, 2]",
        lambda d: json.dumps({**d, "format": 2}),
        lambda d: json.dumps({k: v for k, v in d.items() if k != "depth"}),
        lambda d: json.dumps({**d, "depth": None}),
        lambda d: json.dumps({**d, "form": "double"}),
        lambda d: json.dumps({**d, "task": "ranking"}),
        lambda d: json.dumps({**d, "stack": {**d["stack"], "wdith": 3}}),
    ],
    ids=["cut", "list", "format", "no depth", "depth", "form", "task", "argument"],
)
def test_a_description_that_cannot_be_used_is_named(change, tmp_path):
    save(cut(trained("mlp")[0], "single"), tmp_path)
    path = tmp_path / "description.json"
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(ValueError, match="description.json cannot be read"):
        load(tmp_path)


class Tempered(models.Likelihood):
    """Has a number of its own, which is learnt."""

    task, outputs = "classification", 3

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.2))

    def forward(self, outputs):
        return dist.Categorical(logits=self.slope * outputs)


@pytest.mark.parametrize("form", ["marginal", "single"])
def test_a_likelihood_of_ones_own_stays(form, tmp_path):
    model, x = trained("mlp")
    net = PrunedNetwork(model.stack, 2, WEIGHTS if form == "marginal" else None, Tempered())
    with torch.no_grad():
        exits = (0.2 * model.stack.outputs(x)[:3]).softmax(-1)
        shares = WEIGHTS if form == "marginal" else torch.tensor([0.0, 0.0, 1.0])
        expected = torch.einsum("s,sbc->bc", shares, exits)
        torch.testing.assert_close(net(x).exp(), expected, rtol=1e-4, atol=1e-6)
    save(net, tmp_path)
    with pytest.raises(ValueError, match=r"likelihood is Tempered: pass load\(.*, got None"):
        load(tmp_path)
    fresh = Tempered()
    with torch.no_grad():
        fresh.slope.fill_(7.0)
        again = load(tmp_path, likelihood=fresh)
        assert torch.equal(again(x), net(x))
    save(cut(model, form), tmp_path / "known")
    with pytest.raises(ValueError, match=r"likelihood is known: leave out .*, got Tempered"):
        load(tmp_path / "known", likelihood=fresh)
