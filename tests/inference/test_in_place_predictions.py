"""Networks that change their inputs in place: cut and plain ones leave the data alone, too."""

import torch
from pyroccam import data, guides, models
from pyroccam.inference.cutting.cost import seconds_per_batch
from pyroccam.inference.posterior.predict import evaluate_net
from pyroccam.models.threads import Busy
from torch import nn


def test_plain_networks_leave_the_data_as_they_were():
    digits = data.load("digits")
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 10))
    model = models.BayesianNetwork(net, digits, prior=models.priors.Normal(1.0))
    before = digits.x_test.clone()
    guides.MeanField(model)
    small = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 10))
    once = evaluate_net(small, model, digits)
    seconds_per_batch({"small": small}, digits.x_test[:8], rounds=1)
    assert evaluate_net(small, model, digits) == once
    assert torch.equal(digits.x_test, before)
    assert float(before.min()) < 0  # what a ReLU would have changed


def test_busy_is_at_the_front_door():
    assert issubclass(Busy, RuntimeError)
