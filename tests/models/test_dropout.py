"""Dropout in front of layers."""

import pytest
import torch
from pyroccam.data.errors import PyroccamError
from pyroccam.models.networks.dropout import with_dropout
from pyroccam.models.networks.plain import lenet_5_caffe, perceptron
from torch import nn


def rates(net):
    return {n: m.p for n, m in net.named_modules() if isinstance(m, nn.Dropout)}


def test_where_it_goes():
    net = perceptron((4,), 2, hidden=(8, 6))
    dropped = with_dropout(net, 0.3)
    assert rates(dropped) == {"3.0": 0.3, "5.0": 0.3}
    assert rates(net) == {}
    x = torch.randn(5, 4)
    torch.testing.assert_close(dropped.eval()(x), net.eval()(x))
    assert rates(with_dropout(lenet_5_caffe((1, 28, 28), 10))) == {"5.0": 0.5, "7.0": 0.5}
    assert rates(with_dropout(net, 0.3, "1")) == {"1.0": 0.3}
    assert rates(with_dropout(nn.Linear(3, 2), 0.3, [""])) == {"0": 0.3}
    for wrong, layers in ((net, ["2"]), (nn.Sequential(nn.Conv1d(2, 3, 3)), None)):
        with pytest.raises(PyroccamError):
            with_dropout(wrong, layers=layers)
