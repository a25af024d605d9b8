"""Networks of timm and Hugging Face, where these are installed: built by their code, untrained."""

import pytest
import torch
from pyroccam import inference
from pyroccam.inference.cutting import Mask, cut, masked
from pyroccam.models.plain import as_layers
from torch import nn

SIZES = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 40, "num_heads": 5}
ENCODER = {"num_attention_heads": 5, "num_hidden_layers": 2, "hidden_size": 40}
ENCODER["intermediate_size"] = 60
WORDS = {**ENCODER, "vocab_size": 30, "max_position_embeddings": 20}
DECODER = {**WORDS, "pad_token_id": 0, "num_key_value_heads": 5}
GPT = {"n_embd": 40, "n_head": 5, "n_layer": 2, "n_inner": 60, "n_positions": 20}
GPT |= {"vocab_size": 30, "pad_token_id": 0}
ZOO = {  # what is left of the parameters, at most, and the configuration; the first four are quick
    "timm mobilenetv3_small_050": (0.38, {}),
    "timm resnet10t": (0.36, {}),
    "timm vit_tiny_patch16_224": (0.62, SIZES),
    "transformers Bert": (0.67, WORDS),
    "torchvision mobilenet_v3_small": (0.47, {}),  # of filters .36, the rest is dense
    "transformers ViT": (0.72, {**ENCODER, "image_size": 32, "patch_size": 8}),
    "timm regnety_002": (0.51, {}),
    "timm resnetv2_50": (0.36, {}),
    "timm convnext_atto": (0.51, {}),
    "timm ghostnet_050": (0.37, {}),
    "timm hrnet_w18_small": (0.36, {}),
    "timm dla46_c": (0.36, {}),
    "timm repvgg_a0": (0.37, {}),
    "timm mobilevit_xxs": (0.57, {}),
    "timm poolformer_s12": (0.51, {}),
    "timm res2net50_14w_8s": (0.41, {}),
    "timm ese_vovnet19b_slim_dw": (0.37, {}),
    "torchvision densenet121": (0.35, {}),
    "torchvision shufflenet_v2_x0_5": (0.58, {}),
    "torchvision squeezenet1_1": (0.36, {}),
    "torchvision convnext_tiny": (0.61, {}),
    "transformers Roberta": (0.67, WORDS),
    "timm tf_efficientnet_lite0": (0.38, {}),  # borders that depend on the size
    "timm eca_nfnet_l0": (0.56, {}),  # standardised weights
    "transformers Llama": (0.72, DECODER),
    "transformers GPT2": (0.80, GPT),  # queries, keys and values are one layer
    "transformers Albert": (0.92, {**WORDS, "embedding_size": 40}),  # one layer, used twice
}
HEARD = (
    "o_proj",
    "out_lin",
    "attn.c_proj",
    "attention.output.dense",
    "attn.proj",
    "attention.dense",
)
INNER = ("fc2", "output.dense", "lin2", "down_proj", "mlp.c_proj", "ffn_output", "block.5")
CLASSES = 7


def made(name):
    """An untrained network without zeros, and rows for it."""
    library, _, kind = name.partition(" ")
    module, options = pytest.importorskip(library), ZOO[name][1]
    torch.manual_seed(0)
    x = torch.randn(4, 3, *[32 if options else 64] * 2)
    if library == "timm":
        net = module.create_model(kind, num_classes=CLASSES, **options)
    elif library == "torchvision":
        net = module.models.get_model(kind, weights=None, num_classes=CLASSES)
    else:
        config = getattr(module, f"{kind}Config")(num_labels=CLASSES, **options)
        words = "vocab_size" in options
        auto = "Sequence" if words else "Image"
        net = getattr(module, f"AutoModelFor{auto}Classification").from_config(config)
        x = torch.randint(1, 30, (4, 12)) if words else x
    net = as_layers(net)
    for part, p in net.named_parameters():
        if "bias" not in part and p.abs().max() < 1e-3:
            nn.init.normal_(p, std=0.1) if p.dim() > 1 else nn.init.ones_(p)
    return net.eval(), x


def two_in_five(net):
    """Masks of filters, hidden units and heads: the same ones in all layers, for sums need their
    channels in each."""
    masks = {}
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.out_channels != CLASSES:
            masks[name] = Mask(outputs=torch.arange(layer.out_channels) % 5 > 1)
        elif isinstance(layer, nn.Linear) and name.endswith(HEARD):
            masks[name] = Mask(inputs=torch.arange(layer.in_features) // 8 % 5 > 1)
        elif isinstance(layer, nn.Linear) and name.endswith(INNER):
            masks[name] = Mask(inputs=torch.arange(layer.in_features) % 5 > 1)
    return masks


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly][: k > 3]) for k, n in enumerate(ZOO)]
)
def test_every_zero_goes_from_networks_of_libraries_or_has_a_reason(name, tmp_path):
    net, x = made(name)
    masks = two_in_five(net)
    small, report = cut(net, x, masks)
    with torch.no_grad():
        outs = small(x), masked(net, masks).eval()(x)
    found, expected = (getattr(out, "logits", out) for out in outs)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    for layer, mask in masks.items():
        side = "outputs" if mask.inputs is None else "inputs"
        gone = layer in report.layers and getattr(mask, side)[
            getattr(report.layers[layer], side)
        ].all()  # fmt: skip
        assert gone or layer in report.left_whole or layer in report.zeros
    assert report.parameters_after < ZOO[name][0] * report.parameters_before
    if name.startswith("timm mobilenetv3"):
        again = inference.load(inference.Small(small).save(tmp_path / "net.pocc"))
        torch.testing.assert_close(again(x), small(x))
