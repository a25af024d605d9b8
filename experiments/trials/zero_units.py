"""What becomes of units that are zero: behind operations between two layers, and in networks of
libraries of which two units in five are zero.

    python -m experiments.trials.zero_units [--networks NAME ...]

Of each the units that are zero, those that went from the tensors, and those that stay for a reason
that the report gives; what neither went nor is explained is a fault. Networks are untrained. Needs
timm, torchvision and transformers (extra ``test``) for the networks.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pyroccam.inference.cutting import Mask, cut, masked
from torch import Tensor, nn

RESULT = Path(__file__).parents[1] / "results" / "zero_filters" / "units.json"

OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "hardswish": F.hardswish, "elu": F.elu,
    "relu6": F.relu6, "softplus": F.softplus, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "mish": F.mish, "abs": torch.abs, "square": torch.square, "exp": torch.exp, "sin": torch.sin,
    "clamp": lambda x: x.clamp(-0.3, 0.3), "float": lambda x: x.float(),
    "contiguous": lambda x: x.contiguous(), "scaled": lambda x: 0.5 * x + 1.0,
    "max_pool2d": lambda x: F.max_pool2d(x, 2), "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "lp_pool2d": lambda x: F.lp_pool2d(x, 2.0, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "amax": lambda x: x.amax((2, 3)), "mean": lambda x: x.mean((2, 3)),
    "sum": lambda x: x.sum((2, 3)), "var": lambda x: x.var((2, 3)), "std": lambda x: x.std((2, 3)),
    "norm": lambda x: x.norm(dim=(2, 3)), "logsumexp": lambda x: x.logsumexp((2, 3)),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)), "pad by 2": lambda x: F.pad(x, (1, 1), value=2.0),
    "reflected": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0),
    "bilinear": lambda x: F.interpolate(x, size=(9, 9), mode="bilinear"),
    "cropped": lambda x: x[:, :, 1:-1, ::2], "last place": lambda x: x[..., -1],
    "half of the channels": lambda x: x[:, :6], "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 2), "transpose": lambda x: x.transpose(2, 3),
    "permute": lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2),
    "flatten": lambda x: x.flatten(2), "reshape": lambda x: x.reshape(len(x), 12, -1),
    "view of a size": lambda x: x.view(x.shape[0], x.shape[1], -1),
    "unflatten": lambda x: x.unflatten(2, (2, 3)).sum(2),
    "unsqueeze": lambda x: x.unsqueeze(2).squeeze(2),
    "unfold": lambda x: x.unfold(2, 2, 2).mean(-1),
    "einsum": lambda x: torch.einsum("bchw,bchw->bc", x, x),
    "chunk": lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1],
    "split": lambda x: x.split([4, 8], 1)[1], "glu": lambda x: F.glu(x, 1),
    "stack": lambda x: torch.stack([x, 2 * x], 2).sum(2),
    "cat": lambda x: torch.cat([x, x.tanh()], 1), "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0.0), "cumsum": lambda x: x.cumsum(2),
    "gate": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "expand_as": lambda x: x.amax((2, 3), keepdim=True).expand_as(x) - x,
    "softmax of places": lambda x: x.softmax(3), "softmax of channels": lambda x: x.softmax(1),
    "sort of places": lambda x: x.flatten(2).sort(2).values,
    "topk of places": lambda x: x.flatten(2).topk(3).values,
    "normalize": lambda x: F.normalize(x, dim=1),
    "layer_norm of places": lambda x: F.layer_norm(x, x.shape[2:]),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 3),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
}  # fmt: skip
"""Between a convolution of 12 filters, six of which are zero, and a linear layer."""

_TEXT = {"num_attention_heads": 5, "num_hidden_layers": 2, "hidden_size": 40,
         "intermediate_size": 60, "vocab_size": 30, "max_position_embeddings": 20}  # fmt: skip
_GPT = {"n_embd": 40, "n_head": 5, "n_layer": 2, "n_inner": 60, "n_positions": 20,
        "vocab_size": 30, "pad_token_id": 0}  # fmt: skip
_PATCHES = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 40, "num_heads": 5}
NETWORKS: dict[str, dict[str, Any]] = {
    "timm mobilenetv3_small_050": {}, "timm resnet10t": {}, "timm vit_tiny_patch16_224": _PATCHES,
    "timm efficientnet_lite0": {}, "timm mobilenetv4_conv_small": {}, "timm regnetx_002": {},
    "timm regnety_002": {}, "timm resnetv2_50": {}, "timm convnext_atto": {},
    "timm ghostnet_050": {}, "timm deit_tiny_patch16_224": _PATCHES, "timm hrnet_w18_small": {},
    "timm dla46_c": {}, "timm repvgg_a0": {}, "timm mobilevit_xxs": {}, "timm poolformer_s12": {},
    "timm res2net50_14w_8s": {}, "timm ese_vovnet19b_slim_dw": {}, "timm eca_nfnet_l0": {},
    "torchvision mobilenet_v3_small": {}, "torchvision resnet18": {},
    "torchvision mobilenet_v2": {}, "torchvision densenet121": {},
    "torchvision shufflenet_v2_x0_5": {}, "torchvision efficientnet_b0": {},
    "torchvision squeezenet1_1": {}, "torchvision convnext_tiny": {}, "transformers Bert": _TEXT,
    "transformers Roberta": _TEXT, "transformers Electra": {**_TEXT, "embedding_size": 40},
    "transformers Llama": {**_TEXT, "pad_token_id": 0, "num_key_value_heads": 5},
    "transformers GPT2": _GPT, "transformers Albert": {**_TEXT, "embedding_size": 40},
}  # fmt: skip
"""A library and a name there, and options that make it small."""


class Between(nn.Module):
    """An operation between a convolution and a linear layer."""

    def __init__(self, operation: Callable[[Tensor], Tensor], wide: int) -> None:
        super().__init__()
        self.operation = operation
        self.conv, self.head = nn.Conv2d(8, 12, 3), nn.Linear(wide, 3)

    def features(self, x: Tensor) -> Tensor:
        """What the linear layer reads."""
        found = self.operation(self.conv(x).tanh())
        return found.flatten(2).mean(2) if found.dim() > 2 else found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.features(x))
        return found


def counted(net: nn.Module, x: Tensor, masks: Mapping[str, Mask]) -> dict[str, Any]:
    """A row of the table."""
    small, report = cut(net, x, masks)
    zero = gone = explained = 0
    for name, mask in masks.items():
        side = "outputs" if mask.inputs is None else "inputs"
        kept = getattr(mask, side)
        left = getattr(report.layers[name], side) if name in report.layers else range(len(kept))
        stays = int((~kept)[torch.as_tensor([*left], dtype=torch.long)].sum())
        zero += int((~kept).sum())
        gone += int((~kept).sum()) - stays
        explained += stays * (name in report.left_whole or name in report.zeros)
    with torch.no_grad():
        found, expected = (
            getattr(out, "logits", out).double() for out in (small(x), masked(net, masks).eval()(x))
        )
    return {
        "zero": zero, "gone": gone, "with a reason": explained,
        "parameters left, %": round(100 * report.parameters_after / report.parameters_before, 1),
        "difference": float(f"{float((found - expected).abs().max() / expected.abs().max()):.1g}"),
        "reasons": sorted({*report.left_whole.values(), *report.zeros.values()})[:3],
    }  # fmt: skip


def of_operation(name: str) -> dict[str, Any]:
    """A row of an operation."""
    torch.manual_seed(0)
    x, operation = torch.randn(6, 8, 8, 8), OPERATIONS[name]
    wide = Between(operation, 1).features(x).shape[1]
    return counted(Between(operation, wide), x, {"conv": Mask(outputs=torch.arange(12) % 5 > 1)})


def of_network(name: str) -> dict[str, Any]:
    """A row of a network: filters, hidden units and heads are zero, the same in all layers."""
    torch.manual_seed(0)
    library, _, kind = name.partition(" ")
    module, options = importlib.import_module(library), NETWORKS[name]
    x = torch.randn(4, 3, *[32 if options else 64] * 2)
    if library == "timm":
        net = module.create_model(kind, num_classes=7, **options)
    elif library == "torchvision":
        net = module.models.get_model(kind, weights=None, num_classes=7)
    else:
        config = getattr(module, f"{kind}Config")(num_labels=7, **options)
        net = module.AutoModelForSequenceClassification.from_config(config)
        x = torch.randint(1, 30, (4, 12))
    net = masked(net.eval(), {})
    for part, p in net.named_parameters():
        if "bias" not in part and p.abs().max() < 1e-3:
            nn.init.normal_(p, std=0.1) if p.dim() > 1 else nn.init.ones_(p)
    heads = "o_proj", "attn.c_proj", "attention.output.dense", "attn.proj", "attention.dense"
    hidden = "fc2", "output.dense", "down_proj", "mlp.c_proj", "ffn_output", "block.5"
    masks = {}
    for part, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.out_channels != 7:
            masks[part] = Mask(outputs=torch.arange(layer.out_channels) % 5 > 1)
        elif isinstance(layer, nn.Linear) and part.endswith(heads):
            masks[part] = Mask(inputs=torch.arange(layer.in_features) // 8 % 5 > 1)
        elif isinstance(layer, nn.Linear) and part.endswith(hidden):
            masks[part] = Mask(inputs=torch.arange(layer.in_features) % 5 > 1)
    return counted(net, x, masks)


def main() -> None:
    """Count, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=[*NETWORKS])
    rows = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    asked = [(of_operation, name) for name in OPERATIONS]
    for made, name in [*asked, *((of_network, name) for name in parser.parse_args().networks)]:
        rows[name] = made(name)
        RESULT.write_text(json.dumps(rows, indent=1) + "\n")
        print(name, rows[name], flush=True)
    faults = [n for n, row in rows.items() if row["zero"] != row["gone"] + row["with a reason"]]
    print(f"{len(rows)} rows; neither gone nor explained: {faults or 'none'}")


if __name__ == "__main__":
    main()
