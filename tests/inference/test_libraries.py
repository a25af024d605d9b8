"""Networks of timm and Hugging Face, where these are installed: built by their code, untrained."""

import pytest
import torch
from fitting import QUICK
from pyroccam import guides, inference, models
from pyroccam.data import Dataset
from pyroccam.inference.cutting import Mask, cut, masked
from pyroccam.inference.files.exporting import export
from several import of, texts
from torch import nn

SMALL = {"num_attention_heads": 4, "num_hidden_layers": 2, "hidden_size": 32}
TEXT = {**SMALL, "vocab_size": 20, "intermediate_size": 48, "max_position_embeddings": 16}


def pictures():
    x, y = torch.randn(60, 3, 32, 32), torch.arange(60) % 2
    return Dataset.from_tensors(x, y, x, y)


def bert(library):
    config = library.BertConfig(**TEXT, num_labels=2)
    return library.AutoModelForSequenceClassification.from_config(config)


def distilbert(library):
    sizes = {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 48, "vocab_size": 20}
    config = library.DistilBertConfig(**sizes, num_labels=2, max_position_embeddings=16)
    return library.AutoModelForSequenceClassification.from_config(config)


def vit(library):
    config = library.ViTConfig(**SMALL, intermediate_size=48, image_size=32, patch_size=8)
    return library.AutoModelForImageClassification.from_config(config)


@pytest.mark.parametrize("make", [bert, distilbert, vit])
@pytest.mark.filterwarnings("ignore:These weights are not random", "ignore:.*batching rule")
def test_encoders_of_hugging_face(tmp_path, make):
    library = pytest.importorskip("transformers")
    torch.manual_seed(0)
    own = pictures() if make is vit else of(texts)
    model = models.BayesianNetwork(make(library), own, prior=models.priors.GroupNormalJeffreys())
    linear = {name for name, m in make(library).named_modules() if type(m) is nn.Linear}
    assert linear <= {*model.layers}  # queries, keys and values among them
    fit = inference.fit(model, guides.MeanField(model), own, **{**QUICK, "epochs": 1})
    whole = fit.posterior.mean_network()
    heard = [n for n in linear if n.endswith((".o_proj", ".out_lin", "attention.output.dense"))]
    assert len(heard) == 2
    masks = {name: Mask(inputs=torch.arange(32) // 8 != 1) for name in heard}
    small, report = cut(whole, own.x_train[:16], masks)
    assert all(len(report.layers[name].inputs) == 24 for name in heard)
    quarter = [n for n, one in report.layers.items() if len(one.outputs) == 24]
    assert len(quarter) == 6  # queries, keys and values of both layers
    torch.testing.assert_close(small(own.x_test), masked(whole, masks)(own.x_test))
    for name in ("net.pt2", "net.onnx"):
        assert export(small, tmp_path / name, own).difference < 1e-4


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["resnet10t", "efficientnet_lite0", "mobilenetv3_small_050", "resnetv2_50"]
)
def test_every_filter_that_is_zero_goes_from_networks_of_timm(tmp_path, name):
    """Of two in five, the same ones in all layers, for sums need their channels in each."""
    library = pytest.importorskip("timm")
    torch.manual_seed(0)
    net = library.create_model(name, num_classes=4).eval()
    masks = {
        n: Mask(outputs=torch.arange(m.out_channels) % 5 > 1)
        for n, m in net.named_modules()
        if isinstance(m, nn.Conv2d) and m.groups == 1 and n != "head.fc"  # the outputs
    }
    x = torch.randn(4, 3, 64, 64)
    small, report = cut(net, x, masks)
    assert report.parameters_after < 0.45 * report.parameters_before
    left = {n: len(report.layers[n].outputs) - int(mask.outputs.sum()) for n, mask in masks.items()}
    assert {n: more for n, more in left.items() if more} == {}
    torch.testing.assert_close(small(x), masked(net, masks).eval()(x), rtol=1e-3, atol=1e-4)
    again = inference.load(inference.Small(small).save(tmp_path / "net.pocc"))
    torch.testing.assert_close(again(x), small(x))
