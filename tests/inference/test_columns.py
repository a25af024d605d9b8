"""Names of columns and classes, through what a network still looks at and knows."""

import torch
from pyroccam import data
from pyroccam.inference import Small
from pyroccam.inference.files import said_of_classes, said_of_columns
from torch import nn

NAMES = ("age", "income", "noise", "dead")


def people(columns=NAMES):
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    return data.Dataset.from_tensors(x[:60], y[:60], x[60:], y[60:], columns=columns)


def network():
    """Two branches, of which the second alone has the income; the last unit is cut off."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 2)
            self.last = nn.Linear(3, 2)
            with torch.no_grad():
                self.first.weight[:, 1:3] = 0.0
                self.first.weight[:2, 3] = 0.0
                self.last.weight[:, 2] = 0.0
                self.second.weight[:, 2:] = 0.0

        def forward(self, x):
            return self.last(self.first(x).relu()) + self.second(x)

    torch.manual_seed(0)
    return Net().eval()


def test_columns_that_no_output_depends_on_are_left_out():
    small = Small(network(), data=people())
    assert small.columns == {"age": True, "income": True, "noise": False, "dead": False}
    (said,) = said_of_columns(small.net, small.data)
    assert "age, income" in said
    assert Small(network(), data=people(columns=())).columns == {}
    assert said_of_columns(network(), people(columns=())) == []


def test_classes_by_the_rows_that_a_network_gets_right():
    names = ["cat", "dog", "cow", "dog", "dog"]
    rows = data.Dataset.from_tensors(torch.randn(5, 1), names, torch.randn(5, 1), names)

    class Says(nn.Module):
        def forward(self, x):
            return nn.functional.one_hot(torch.tensor([0, 0, 1, 2, 2]), 3).float()

    assert rows.class_names == ("cat", "cow", "dog")
    (said,) = said_of_classes(Says(), rows)
    assert "dog 2 of 3, cat 1 of 1, cow 1 of 1" in said
    assert said_of_classes(Says(), rows.but(class_names=())) == []
