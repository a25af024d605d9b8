"""What a pruned network computes."""

import pytest
import torch
from cut_stacks import WEIGHTS, cut, trained
from pyroccam.data.errors import PyroccamError
from pyroccam.models.plain.pruned import PrunedNetwork


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
    with pytest.raises(PyroccamError):
        PrunedNetwork(model.stack, 2, torch.tensor([0.5, 0.5]), model.likelihood)
