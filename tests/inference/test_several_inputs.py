"""Networks of several inputs: trained, cut, written and handed back as they are called."""

import copy
import math
import pickle
import warnings

import numpy as np
import onnxruntime
import pytest
import torch
from fitting import QUICK
from plain import network
from pyroccam import guides, inference, models
from pyroccam.data import Dataset
from pyroccam.inference.cutting import Mask, cut, masked
from pyroccam.inference.files import export
from pyroccam.inference.posterior import evaluate_net
from pyroccam.inference.shrinking import irrelevance
from pyroccam.models.feeding import feed
from several import Pair, Reader, logits, of, pictured, texts
from torch import nn
from torch.nn import functional as F

KINDS = {Pair: pictured, Reader: texts}
OPTIONS = {**QUICK, "epochs": 3, "batch_size": 24}


def fitted(kind, **options):
    torch.manual_seed(0)
    own = of(KINDS[kind])
    model = models.BayesianNetwork(kind(), own, prior=models.priors.GroupNormalJeffreys())
    return inference.fit(model, guides.MeanField(model), own, **{**OPTIONS, **options})


@pytest.fixture(scope="module", params=KINDS)
def cut_fit(request):
    """A fit, and what is left of it at half of the scales of each layer but the last."""
    fit = fitted(request.param)
    found = irrelevance(fit.model, fit.guide)
    at = {n: float(v.values.quantile(0.6)) for n, v in found.items()}
    at[[*at][-1]] = math.inf
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The cut by")
        return fit, at, inference.shrink(fit, cut=inference.Thresholds(at))


def test_what_is_handed_back_has_its_own_signature_and_nothing_of_ours(cut_fit):
    fit, _, small = cut_fit
    own, net = fit.data, small.net
    assert small.report.parameters_after < 0.8 * small.report.parameters_before
    x = own.fields.split(own.x_test)
    with torch.no_grad():
        out = net(**x)
    by_hand = (logits(out).log_softmax(1)[range(30), own.y_test]).mean()
    assert evaluate_net(net, fit.model, own)["nll"] == pytest.approx(-float(by_hand), rel=1e-5)
    assert type(net) in KINDS
    with pytest.raises((TypeError, RuntimeError)):
        net(own.x_test)  # rows of the table are no argument of it
    assert not net._forward_hooks
    assert not net._forward_pre_hooks
    with torch.no_grad():
        again = pickle.loads(pickle.dumps(net))(**x)
    assert torch.equal(logits(again), logits(out))


def test_a_cut_network_is_the_masked_one_for_the_arguments_by_name(cut_fit):
    fit, at, _ = cut_fit
    whole = fit.posterior.mean_network()
    found = irrelevance(fit.model, fit.guide)
    masks = {name: Mask(inputs=one.values <= at[name]) for name, one in found.items()
             if not fit.model.layers[name].affine.shape.output_groups}  # fmt: skip
    x = fit.data.fields.split(fit.data.x_test)
    expected = masked(whole, masks)(**x)
    for example in (fit.data.x_train, fit.data.fields.split(fit.data.x_train)):
        small, report = cut(whole, example, masks)
        assert report.parameters_after < report.parameters_before
        torch.testing.assert_close(small(**x), expected)
        torch.testing.assert_close(small(fit.data.x_test), expected)  # still fed
    # mixed up, they are another function
    names = list(x)
    mixed = dict(zip(names, (x[n] for n in (*names[2:], names[1], names[0])), strict=False))
    with pytest.raises((RuntimeError, IndexError, AssertionError)):
        torch.testing.assert_close(small(**mixed), expected)


@pytest.mark.filterwarnings("ignore:The cut by")
def test_it_goes_on_with_less_and_is_trained_as_numbers(cut_fit):
    fit, at, _ = cut_fit
    smaller = inference.narrow(fit, cut=inference.Thresholds(at))
    again = inference.fit(*smaller, fit.data, **OPTIONS)
    small = inference.shrink(
        again, cut=inference.Thresholds(math.inf), code=inference.Digits(epochs=1)
    )
    x = fit.data.fields.split(fit.data.x_test)
    assert logits(small.net(**x)).shape == (30, 2)


def test_files_take_the_arguments_that_rows_give(tmp_path):
    """In words they are scaled rows, and exported raw ones, by their names."""
    fit = fitted(Pair)
    small = inference.shrink(fit, cut=inference.Thresholds(math.inf)).net
    inference.Small(small).save(tmp_path / "net.pocc")
    back = inference.load(tmp_path / "net.pocc")
    x = fit.data.fields.split(fit.data.x_test)
    with torch.no_grad():
        torch.testing.assert_close(logits(back(**x)), logits(small(**x)))
        # a mask has a default, which a file would freeze if rows did not give one
        other = {**x, "mask": ~x["mask"]}
        torch.testing.assert_close(logits(back(**other)), logits(small(**other)))
        assert not torch.allclose(logits(back(**other)), logits(back(**x)))
        expected = logits(small(**x)).numpy()
    export(small, tmp_path / "net.onnx", fit.data)
    raw = {name: part.numpy() for name, part in pictured(30, seed=1)[0].items()}
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    np.testing.assert_allclose(session.run(None, raw)[0], expected, rtol=1e-4, atol=1e-5)


def test_inputs_by_place():
    def forward(net, a, b=None):
        return net.out(torch.tanh(net.f(a)) * b)

    torch.manual_seed(0)
    (x, y), (x_test, y_test) = pictured(80), pictured(30, seed=1)
    pairs = [(p["picture"].flatten(1), p["mask"].float()[:, :4]) for p in (x, x_test)]
    own = Dataset.from_tensors(pairs[0], y, pairs[1], y_test)
    net = network(forward, f=nn.Linear(18, 4), out=nn.Linear(4, 2))
    model = models.BayesianNetwork(net, own, prior=models.priors.GroupNormalJeffreys())
    fit = inference.fit(model, guides.MeanField(model), own, **OPTIONS)
    a, b = own.fields.split(own.x_test)
    small = inference.shrink(fit, cut=inference.Thresholds(math.inf)).net
    assert small(a, b).shape == (30, 2)
    assert torch.equal(fit.predict((a, b)), fit.predict(own.x_test))
    assert not torch.equal(small(a, b), small(a, 1 - b))


# -- heads as a forward writes them ---------------------------------------------------------------


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("counted", [True, False])
def test_heads_go_whole_where_the_forward_counts_them(counted, written):
    torch.manual_seed(0)
    own, net = of(texts), Reader(counted, written).eval()
    kept = torch.arange(12) // 4 != 1
    net.value.weight.data[9] = 0  # a unit of a head that stays, and stays with it
    masks = {"dense": Mask(inputs=kept)}
    small, report = cut(feed(net, own.fields), own.x_train, masks)
    sizes = {n: len(report.layers[n].outputs) for n in ("query", "key", "value")}
    assert set(sizes.values()) == {8 if counted else 12}
    if counted:
        for name in sizes:
            assert torch.equal(
                small.get_submodule(name).weight, net.get_submodule(name).weight[kept]
            )
    x = own.fields.split(own.x_test)
    torch.testing.assert_close(small(**x), masked(net, masks)(**x))
    full = {**x, "attention_mask": torch.ones_like(x["attention_mask"])}  # the other path
    torch.testing.assert_close(small(**full), masked(net, masks)(**full))
    assert small.norm.normalized_shape == (12,)  # the residual sum stays


def heads_of(attend):
    """How many of 8 units, in two heads, are left of values of which one head is not read."""

    def forward(net, x):
        parts = [getattr(net, name)(x).view(*x.shape[:2], -1, 4).transpose(1, 2) for name in "qkv"]
        return net.out(attend(net, *parts).transpose(1, 2).reshape(*x.shape[:2], -1))

    torch.manual_seed(0)
    parts = {name: nn.Linear(8, 8) for name in (*"qkv", "out")}
    net = network(forward, **parts, softmax=nn.Softmax(-1), over_heads=nn.Softmax(1)).eval()
    masks = {"out": Mask(inputs=torch.arange(8) >= 4)}
    x = torch.randn(3, 5, 8)
    small, report = cut(net, x, masks)
    torch.testing.assert_close(small(x), masked(net, masks)(x))
    return len(report.layers["v"].outputs)


@pytest.mark.parametrize(
    ("attend", "left"),
    [
        (lambda net, q, k, v: net.softmax(q @ k.transpose(-1, -2)) @ v, 4),
        (lambda net, q, k, v: (q @ k.transpose(-1, -2)).softmax(dim=3) @ v, 4),
        (lambda net, q, k, v: net.over_heads(q @ k.transpose(-1, -2)) @ v, 8),
        (lambda net, q, k, v: (q @ k.transpose(-1, -2)).softmax(1) @ v, 8),
        (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, ONE_MASK), 4),
        (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, value=v, is_causal=True), 4),
        (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, MASK_OF_EACH), 8),
        (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v.flip(1)), 4),
    ],
)
def test_heads_that_mix_or_have_a_mask_of_their_own_stay(attend, left):
    assert heads_of(attend) == left


ONE_MASK = torch.ones(5, 5).tril().bool()
MASK_OF_EACH = torch.stack([ONE_MASK, ONE_MASK.T])[None]


# -- what a recorded pass may not hide ------------------------------------------------------------


def untraceable(forward, **parts):
    """A network that symbols cannot follow: it iterates over its argument's shape."""

    def whole(net, x, mask=None, **others):
        assert isinstance(x.shape, torch.Size)  # of a symbol it is none
        return forward(net, x, mask)

    return network(whole, "Own", **parts).eval()


LAYERS = {n: nn.Linear(*size) for n, size in {"a": (4, 6), "b": (6, 3), "c": (6, 3)}.items()}
LAYERS["e"] = nn.Embedding(2, 1)


@pytest.mark.parametrize(
    ("forward", "fine"),
    [
        (lambda net, x, mask: net.b(net.a(x).relu()) + net.c(net.a.weight.sum(1)), True),
        (lambda net, x, mask: net.b(net.a(x)) + (net.c(net.a(x)) if mask.all() else 0), True),
        (lambda net, x, mask: net.b(net.a(x)) if mask.all() else net.c(net.a(x)), False),
        (lambda net, x, mask: net.b(net.a(x)) if x.sum() > 99 else net.c(net.a(x)), False),
        (lambda net, x, mask: net.b(net.a(x)) * float(net.a(x).sum()), False),
        (lambda net, x, mask: net.b(net.a(x)) * bool(net.e(mask.long()).sum() > 99), False),
        (lambda net, x, mask: net.b(net.a(x)) * net.a(x).detach().numpy().sum().item(), False),
    ],
)  # fmt: skip
def test_a_recorded_pass_is_not_trusted_where_values_may_decide(forward, fine):
    used = {name: LAYERS[name] for name in forward.__code__.co_names if name in LAYERS}
    net = untraceable(forward, **copy.deepcopy(used))
    example = {"x": torch.randn(5, 4), "mask": torch.ones(5, dtype=torch.bool)}
    masks = {"b": Mask(inputs=torch.arange(6) > 1)}
    if fine:
        small = cut(net, example, masks).net
        torch.testing.assert_close(small(**example), masked(net, masks)(**example))
        return
    with pytest.raises(ValueError, match=r"Own cannot be traced by torch.fx"):
        cut(net, example, masks)


# -- what networks look at, and what is refused ---------------------------------------------------


def test_a_network_may_look_at_the_kind_of_random_weights():
    def kind(net, x):
        return net.f(x.to(net.f.weight.dtype).to(net.f.weight.device))

    x, y = torch.randn(20, 3), torch.arange(20) % 2
    own = Dataset.from_tensors(x, y, x, y)
    net = network(kind, f=nn.Linear(3, 2))
    assert list(models.BayesianNetwork(net, own, prior=models.priors.Normal()).layers) == ["f"]


def test_depth_takes_one_input():
    with pytest.raises(ValueError, match=r"LearntDepth of .*one input of a row.*models.Bayesian"):
        models.LearntDepth.mlp(of(pictured), width=4, max_depth=2)
