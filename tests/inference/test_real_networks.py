"""Networks as people write them: of torchvision, blocks as timm has them, a reader as Hugging Face
writes it."""

import math

import pytest
import torch
import torch.nn.functional as F
from cutting import made
from pyroccam import data, guides, inference, models
from pyroccam.inference.cutting import Mask, cut, masked
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.inference.shrinking.decision import decide
from pyroccam.inference.shrinking.relevance import irrelevance
from torch import nn


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels, inner):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x):
        scale = self.fc2(F.silu(self.fc1(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(scale)


class Inverted(nn.Module):
    """An inverted residual block: pointwise, depthwise, squeezed, pointwise."""

    def __init__(self, channels=6, inner=16):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.conv_pw = nn.Conv2d(channels, inner, 1, bias=False)
        self.conv_dw = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False)
        self.conv_pwl = nn.Conv2d(inner, channels, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(inner), nn.BatchNorm2d(inner)
        self.bn3, self.se = nn.BatchNorm2d(channels), Squeeze(inner, 4)
        self.act, self.head = nn.GELU(), nn.Linear(channels, 3)

    def forward(self, x):
        x = self.stem(x)
        y = self.act(self.bn1(self.conv_pw(x)))
        y = self.se(self.act(self.bn2(self.conv_dw(y))))
        x = x + self.bn3(self.conv_pwl(y))
        return self.head(x.mean((2, 3)))


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def split(self, x):
        return x.view(x.size(0), -1, self.heads, self.size).transpose(1, 2)

    def forward(self, x, mask):
        query, key, value = map(self.split, (self.query(x), self.key(x), self.value(x)))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.size) + mask
        context = torch.matmul(self.dropout(scores.softmax(-1)), value)
        context = context.permute(0, 2, 1, 3).contiguous()
        context = context.view(context.size(0), -1, self.heads * self.size)
        return self.norm(x + self.dropout(self.dense(context)))


class Bert(nn.Module):
    """Words, positions, one layer of attention, and a pooled classifier."""

    def __init__(self, width=8):
        super().__init__()
        self.word, self.position = nn.Embedding(20, width, padding_idx=0), nn.Embedding(16, width)
        self.register_buffer("position_ids", torch.arange(16)[None], persistent=False)
        self.norm, self.attention = nn.LayerNorm(width), SelfAttention(width, 2)
        self.intermediate, self.output = nn.Linear(width, 16), nn.Linear(16, width)
        self.last_norm = nn.LayerNorm(width)
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, input_ids):
        mask = (1.0 - (input_ids != 0).to(torch.float32)[:, None, None, :]) * -1e4
        places = self.position_ids[:, : input_ids.size(1)]
        x = self.attention(self.norm(self.word(input_ids) + self.position(places)), mask)
        x = self.last_norm(x + self.output(F.gelu(self.intermediate(x))))
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


def words(rows):
    x = torch.randint(1, 20, (rows, 6))
    x[::3, -2:] = 0
    return x


@pytest.mark.parametrize(
    ("build", "x", "left_whole"),
    [
        (Inverted, lambda n: torch.rand(n, 1, 6, 6), set()),
        (Bert, words, {"norm", "attention.norm", "last_norm"}),
    ],
)
@pytest.mark.filterwarnings("ignore:The cut by")
def test_they_go_the_whole_way(tmp_path, build, x, left_whole):
    torch.manual_seed(0)
    x, y = x(60), torch.arange(60) % 3
    own = data.Dataset.from_tensors(x, y, x, y, **({} if x.is_floating_point() else {"ids": True}))
    model = models.BayesianNetwork(build(), own, prior=models.priors.GroupNormalJeffreys())
    options = {"batch_size": 30, "progress": False, "device": "cpu", "seed": 0}
    fit = inference.fit(model, guides.MeanField(model), own, epochs=1, **options)
    found = irrelevance(fit.model, fit.guide)
    at = {n: float(v.values.quantile(0.7)) if v.values.numel() > 3 else math.inf
          for n, v in found.items()}  # fmt: skip
    pair = inference.narrow(fit, cut=inference.Thresholds(at))
    with torch.no_grad():
        expected = decide(fit, inference.Thresholds(at)).net(x)
        torch.testing.assert_close(mean_network(*pair)(x), expected, rtol=1e-3, atol=1e-3)
    fit = inference.fit(*pair, own, epochs=1, **options)
    small = inference.shrink(fit, cut=inference.Thresholds(math.inf))
    assert set(small.report.left_whole) == left_whole
    assert small.report.parameters_after < 0.85 * model.parameters_before
    inference.Small(small.net).save(tmp_path / "small.pocc")
    again = inference.load(tmp_path / "small.pocc")
    torch.testing.assert_close(again(x), small.net(x))


def test_a_resnet_of_torchvision_for_small_images_is_random_and_cut():
    import torchvision

    torch.manual_seed(0)
    net = torchvision.models.resnet18(num_classes=3)
    net.conv1, net.maxpool = nn.Conv2d(1, 64, 3, padding=1, bias=False), nn.Identity()
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    own = data.Dataset.from_tensors(x, y, x, y)
    model = models.BayesianNetwork(net, own, prior=models.priors.Normal())
    assert len(model.layers) == 21
    plain = made(model.start_network).float()
    masks = {
        name: Mask(outputs=torch.arange(layer.out_channels) % 2 == 0)
        for name, layer in plain.named_modules()
        if isinstance(layer, nn.Conv2d)
    }
    small, report = cut(plain, x, masks)
    with torch.no_grad():
        torch.testing.assert_close(small(x), masked(plain, masks)(x), rtol=1e-3, atol=1e-3)
    assert not report.left_whole
    assert report.parameters_after < 0.5 * report.parameters_before
