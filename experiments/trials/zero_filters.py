"""What is left of networks of timm of which two filters in five are zero: cut here, and by
torch-pruning, which is told the same filters.

    python -m experiments.trials.zero_filters

Once the normalisations behind the filters move them from zero: then they are constants, which
count, and which torch-pruning leaves out. Once they do not. Needs timm and torch-pruning (extras
``test`` and ``strangers``). Networks are untrained, with shifts of normalisations at random. Times
are medians of alternating passes.
"""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path
from typing import Any

import torch
from pyroccam.inference.cutting import Mask, count_parameters, cut, masked, seconds_per_batch
from torch import Tensor, nn

NETWORKS = "efficientnet_lite0", "mobilenetv3_small_100"
CLASSES, PIXELS, BATCHES = 10, 32, (1, 256)
RESULT = Path(__file__).parents[1] / "results" / "zero_filters" / "timm.json"


def network(name: str) -> nn.Module:
    """An untrained network whose normalisations matter."""
    torch.manual_seed(0)
    net: nn.Module = importlib.import_module("timm").create_model(name, num_classes=CLASSES)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias, std=0.2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return net.eval()


def by_torch_pruning(
    net: nn.Module, x: Tensor, shifts: bool
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A network without two channels in five of every group of layers that torch-pruning finds, and
    which filters of each convolution these are; without ``shifts`` they are zero in ``net`` behind
    their normalisations, too."""
    tp = importlib.import_module("torch_pruning")
    small = copy.deepcopy(net)
    names = {module: name for name, module in small.named_modules()}
    graph = tp.DependencyGraph().build_dependency(small, example_inputs=x)
    gone: dict[str, Tensor] = {}
    groups = graph.get_all_groups(ignored_layers=[], root_module_types=[nn.Conv2d])
    for group in [*groups]:
        root, size = group[0].dep.target.module, len(group[0].idxs)
        if isinstance(root, nn.Linear) or group[0].dep.target.module.out_channels != size:
            continue
        chosen = [k for k in range(size) if k % 5 < 2]
        own = graph.get_pruning_group(root, tp.prune_conv_out_channels, chosen)
        for dep, indices in own:
            layer = dep.target.module
            outputs = isinstance(layer, nn.Conv2d) and "out" in dep.handler.__name__
            if outputs and layer.groups == 1:
                mask = torch.ones(layer.out_channels, dtype=torch.bool)
                mask[list(indices)] = False
                gone[names[layer]] = mask
            if isinstance(layer, nn.BatchNorm2d) and not shifts:
                norm: Any = net.get_submodule(names[layer])
                norm.weight.data[list(indices)] = norm.bias.data[list(indices)] = 0.0
        own.prune()
    return small.eval(), gone


def compared(name: str, shifts: bool) -> dict[str, Any]:
    """A row of the table."""
    net, x = network(name), torch.randn(BATCHES[-1], 3, PIXELS, PIXELS)
    theirs, kept = by_torch_pruning(net, x[:1], shifts)
    masks = {layer: Mask(outputs=mask) for layer, mask in kept.items()}
    zeroed = masked(net, masks).eval()
    ours, report = cut(net, x[:16], masks)
    nets = {"ours": ours, "torch_pruning": theirs}
    found: dict[str, Any] = {
        "network": name,
        "zero filters are moved by their normalisations": shifts,
        "parameters": count_parameters(net),
        "filters": sum(mask.numel() for mask in kept.values()),
        "zero filters": sum(int((~mask).sum()) for mask in kept.values()),
        "with a reason to stay": len(report.zeros) + len(report.left_whole),
    }
    with torch.no_grad():
        expected = zeroed(x[:16])
        for which, small in nets.items():
            difference = (small(x[:16]) - expected).abs().max() / expected.abs().max()
            found[which] = {
                "parameters": count_parameters(small),
                "difference": float(f"{float(difference):.2g}"),
            }
    for batch in BATCHES:
        times = seconds_per_batch({"whole": net, **nets}, x[:batch], rounds=3)
        for which in nets:
            faster = times["whole"] / times[which]
            found[which][f"times faster at {batch}"] = round(faster, 2)
    return found


def main() -> None:
    """Compare, print and write."""
    rows = [compared(name, shifts) for name in NETWORKS for shifts in (True, False)]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
