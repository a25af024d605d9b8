import itertools
import json
import math

import numpy as np
import pytest
import torch
from plain import network
from pyroccam import models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.training.optimizer import make_optimizer, parameter_groups
from pyroccam.inference.training.settings import Settings, learning_rate_factor
from torch import nn


def test_numbers_of_other_libraries_become_pythons():
    """Which a result file and a checkpoint can hold."""
    chosen = Settings(epochs=np.int64(7), lr=np.float32(0.5), kl_weight=0.25, seed=2)
    assert (chosen.epochs, chosen.lr, chosen.kl_weight) == (7, 0.5, 0.25)
    assert [type(v) for v in (chosen.epochs, chosen.lr, chosen.kl_weight)] == [int, float, float]
    assert json.loads(json.dumps(vars(chosen)))["kl_weight"] == 0.25


def test_large_counts_that_do_no_harm():
    chosen = Settings(batch_size=10**18, evaluations=10**18, patience=10**18, epochs=3)
    assert chosen.epochs_for(54) == 3
    assert chosen.steps_per_epoch(54) == 1
    assert Settings(steps=10**9, batch_size=1).epochs_for(7) == 142857143


def test_more_steps_than_can_be_made():
    with pytest.raises(PyroccamError):
        Settings(epochs=10**6, batch_size=10).epochs_for(10_001)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(PyroccamError) as error:
        Settings.of({"bacth_size": 3})
    assert error.value.hint == "'batch_size'"
    assert Settings.of({"lr": 0.5}).lr == 0.5
    assert Settings.names()[0] == "epochs"


def test_number_of_epochs():
    assert Settings(epochs=7).epochs_for(10**6) == 7
    few = Settings(steps=100, batch_size=10)
    assert few.steps_per_epoch(95) == 10
    assert few.epochs_for(95) == 10
    assert few.epochs_for(20) == 50
    assert few.epochs_for(10**6) == 10  # at least ten
    assert Settings(steps=101, batch_size=512).epochs_for(3) == 101


def test_cosine_falls_from_one_to_zero_and_constant_stays():
    assert {learning_rate_factor("constant", p / 9) for p in range(9)} == {1.0}
    factor = [learning_rate_factor("cosine", p / 8) for p in range(8)]
    assert factor[0] == 1.0
    assert factor[4] == pytest.approx(0.5)
    assert factor == sorted(factor, reverse=True)
    assert learning_rate_factor("cosine", 1.0) == pytest.approx(0.0, abs=1e-12)
    for k, f in enumerate(factor):
        assert f == pytest.approx(math.cos(math.pi * k / 16) ** 2)  # half-angle form


def test_onecycle_rises_for_a_tenth_then_falls_without_a_jump():
    f = [learning_rate_factor("onecycle", p / 1000) for p in range(1001)]
    assert f[0] == pytest.approx(0.04)
    assert max(range(1001), key=f.__getitem__) == 100
    assert f[100] == pytest.approx(1.0)
    assert f[1000] == pytest.approx(0.0, abs=1e-12)
    assert f[550] == pytest.approx(0.5)
    assert max(abs(a - b) for a, b in itertools.pairwise(f)) < 0.0097


def grouped(settings, model, guide):
    groups = parameter_groups(settings, model, guide)
    return make_optimizer(settings, groups)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)],
)
def test_the_guide_has_a_rate_of_its_own_and_no_weight_decay(name, kind):
    model, guide = nn.Linear(2, 2), nn.Linear(3, 1)
    settings = Settings(optimizer=name, lr=0.5, guide_lr=0.25, weight_decay=0.125)
    optimizer = grouped(settings, model, guide)
    assert type(optimizer) is kind
    weights, latents = optimizer.param_groups
    assert (weights["lr"], weights["weight_decay"]) == (0.5, 0.125)
    assert (latents["lr"], latents["weight_decay"]) == (0.25, 0.0)
    assert weights["params"] == list(model.parameters())
    assert latents["params"] == list(guide.parameters())


def test_frozen_parameters_are_left_out():
    model, guide = nn.Linear(2, 2), nn.Identity()
    model.bias.requires_grad_(False)
    (group,) = grouped(Settings(), model, guide).param_groups
    assert group["params"] == [model.weight]
    model.weight.requires_grad_(False)
    with pytest.raises(PyroccamError):
        grouped(Settings(), model, guide)


def test_the_noise_of_a_regression_is_not_pulled_to_one():
    """Decay on log_scale would draw the noise to one standard deviation of the target."""

    model = network(lambda net, x: net.net(x), net=nn.Linear(2, 1), likelihood=models.Regression(1))
    weights, noise = grouped(Settings(weight_decay=0.5), model, nn.Identity()).param_groups
    assert weights["params"] == list(model.net.parameters())
    assert noise["params"] == [model.likelihood.log_scale]
    assert (weights["weight_decay"], noise["weight_decay"]) == (0.5, 0.0)
    assert noise["scheduled"]
