"""A plain network as JSON and back."""

import copy
import inspect
import json

import plain
import pytest
import torch
from pyroccam.data.errors import TooLarge
from pyroccam.data.limits import allowing
from pyroccam.models.plain.argument_kinds import KINDS
from pyroccam.models.plain.description import DescriptionError, describe, fill, rebuild, state
from pyroccam.models.plain.vocabulary import MODULES, arguments_of, make
from pyroccam.models.unpacked.attention import AttentionWeights, Heads
from torch import nn


def through_json(net):
    text = json.dumps(describe(net), allow_nan=False)
    return json.loads(text)


@pytest.mark.parametrize("name", plain.NETWORKS)
def test_a_rebuilt_network_computes_the_same(name):
    net, x = plain.trained(name)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    members = set(vars(net))
    description = through_json(net)
    again = rebuild(description)
    assert not plain.same(plain.outputs(again, x), plain.outputs(net, x))  # all zero as yet
    fill(again, description, state(net, description))
    assert plain.same(plain.outputs(again, x), plain.outputs(net, x))
    assert not again.training
    # Names are kept, and the network that was described is as it was.
    assert set(again.state_dict()) <= {*before, "index", "_tensor_constant0"}
    assert {n for n, _ in again.named_parameters()} <= {n for n, _ in net.named_parameters()}
    assert set(vars(net)) == members
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_a_description_is_of_the_evaluation_mode_and_leaves_the_mode():
    net, x = plain.trained("vgg")
    net.train()
    net[1].eval()
    modes = [m.training for m in net.modules()]
    description = through_json(net)
    assert [m.training for m in net.modules()] == modes
    again = rebuild(description)
    fill(again, description, state(net, description))
    assert plain.same(plain.outputs(again, x), plain.outputs(net.eval(), x))


def test_shared_tensors_stay_shared_and_are_held_once():
    net, _ = plain.trained("skips")
    description = through_json(net)
    assert description["tied"] == {"stages.2.0.weight": "stages.0.0.weight"}
    tensors = state(net, description)
    assert "stages.2.0.weight" not in tensors
    again = rebuild(description)
    fill(again, description, tensors)
    parameters = dict(again.named_parameters(remove_duplicate=False))
    assert parameters["stages.2.0.weight"] is parameters["stages.0.0.weight"]


def test_dtypes():
    net = nn.Sequential(nn.Linear(3, 2, dtype=torch.float64), nn.BatchNorm1d(2).double())
    description = through_json(net)
    again = rebuild(description)
    fill(again, description, state(net, description))
    x = torch.randn(4, 3, dtype=torch.float64)
    assert torch.equal(again(x), net.eval()(x))
    assert description["dtypes"]["1.num_batches_tracked"] == "int64"


# -- the tables of known words --------------------------------------------------------------------

EXAMPLES = [
    nn.Linear(3, 2, bias=False), nn.Embedding(5, 3, padding_idx=1),
    nn.Conv1d(2, 4, 3, stride=2, dilation=2),
    nn.Conv2d(4, 4, (3, 5), padding="same", groups=2, padding_mode="reflect"),
    nn.Conv3d(1, 2, 2, bias=False), nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1),
    nn.ConvTranspose2d(2, 3, 3), nn.ConvTranspose3d(2, 3, 3, dilation=2),
    nn.BatchNorm1d(3, affine=False), nn.BatchNorm2d(3, momentum=None),
    nn.BatchNorm3d(3, track_running_stats=False), nn.InstanceNorm1d(3), nn.InstanceNorm2d(3),
    nn.InstanceNorm3d(3, affine=True), nn.GroupNorm(2, 4, affine=False),
    nn.LayerNorm((2, 3), bias=False), nn.LocalResponseNorm(2), nn.MaxPool1d(2),
    nn.MaxPool2d((2, 3), ceil_mode=True), nn.MaxPool3d(2), nn.AvgPool1d(2),
    nn.AvgPool2d(2, divisor_override=3), nn.AvgPool3d(2), nn.AdaptiveAvgPool1d(2),
    nn.AdaptiveAvgPool2d((None, 2)), nn.AdaptiveAvgPool3d(1), nn.AdaptiveMaxPool1d(2),
    nn.AdaptiveMaxPool2d(2), nn.ReLU(True), nn.ReLU6(), nn.SiLU(), nn.Mish(), nn.SELU(),
    nn.Hardswish(), nn.Hardsigmoid(), nn.Sigmoid(), nn.Tanh(), nn.LogSigmoid(), nn.Softsign(),
    nn.Identity(), nn.ELU(0.5), nn.CELU(0.5), nn.LeakyReLU(0.3),
    nn.Hardtanh(float("-inf"), 2.0), nn.PReLU(3), nn.GELU("tanh"), nn.Softplus(2.0, 10),
    nn.Softmax(1), nn.LogSoftmax(-1), nn.Dropout(0.3), nn.Dropout1d(), nn.Dropout2d(),
    nn.Dropout3d(), nn.AlphaDropout(), nn.Flatten(0, -2), nn.Unflatten(1, (2, 3)),
    nn.ZeroPad1d(1), nn.ZeroPad2d((1, 2, 3, 4)), nn.ZeroPad3d(2), nn.ReflectionPad1d(1),
    nn.ReflectionPad2d(1), nn.Upsample(scale_factor=2.0, mode="bilinear"), nn.PixelShuffle(2),
    Heads([2, 2], [3, 0], 0.5, 0.1), AttentionWeights(2, 0.5),
]  # fmt: skip


def test_there_is_an_example_of_every_known_module():
    assert {type(module) for module in EXAMPLES} == set(MODULES)


@pytest.mark.parametrize("module", EXAMPLES, ids=lambda m: type(m).__name__)
def test_a_module_is_built_from_its_arguments(module):
    words = json.loads(json.dumps(arguments_of(module), allow_nan=False))
    again = make(type(module).__name__, words)
    assert repr(again) == repr(module)
    shapes = [(k, v.shape, v.dtype) for k, v in module.state_dict().items()]
    assert [(k, v.shape, v.dtype) for k, v in again.state_dict().items()] == shapes
    public = {k: v for k, v in vars(module).items() if not k.startswith("_")}
    assert {k: v for k, v in vars(again).items() if not k.startswith("_")} == public | {
        "training": True
    }


@pytest.mark.parametrize("kind", MODULES, ids=lambda k: k.__name__)
def test_no_argument_of_a_constructor_is_forgotten(kind):
    without_effect = {"device", "dtype", "args", "kwargs", "init", "_weight", "_freeze"}
    old_names = {"min_value", "max_value"}
    optional = {"bias"} if "affine" in MODULES[kind] else set()
    parameters = set(inspect.signature(kind).parameters) - without_effect - old_names - optional
    assert parameters == set(MODULES[kind])


def test_a_normalisation_without_bias_if_torch_has_it():
    if "bias" not in inspect.signature(nn.BatchNorm1d).parameters:
        pytest.skip("this torch has no such argument")
    module = nn.BatchNorm1d(3, bias=False)
    assert make("BatchNorm1d", arguments_of(module)).bias is None


def test_the_length_of_a_tensor_is_the_size_of_its_batch():
    again = rebuild(through_json(plain.network(lambda net, x: (2 * x).view(len(x), -1))))
    for rows in (2, 3):
        assert again(torch.ones(rows, 2, 2)).shape == (rows, 4)
    assert "len" not in globals()


# -- what cannot be described ---------------------------------------------------------------------


def noisy(net, x):
    return x + torch.randn(2)


def starred(net, *x):
    return x[0]


def hooked():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    net[0].register_forward_hook(lambda *_: None)
    return net


BRANCHING = plain.network(lambda net, x: x if x.sum() > 0 else -x, "Branching")
NAMED = {  # what a forward does, by the name of its network
    "Noisy": (noisy, "Noisy.forward draws random numbers"),
    "Unknown": (lambda net, x: torch.linalg.inv(x), "Unknown calls 'linalg_inv'"),
    "Parts": (lambda net, x: x / len(x.chunk(2)), r"Parts cannot .*takes len\(\) of .* 'chunk'"),
    "Starred": (starred, r"Starred.forward takes \*x"),
    "Defaulted": (
        lambda net, x, size=(2, 2): x.view(size),
        r"Defaulted.forward has the default size=\(2, 2\)",
    ),
}


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Sequential(BRANCHING)), r"1.0 \(Branching\)"),
        (nn.Sequential(nn.Bilinear(2, 2, 2)), r"0 \(Bilinear\).*not among the known modules"),
        (nn.Sequential(nn.ReLU(), nn.GRU(2, 2)), r"1 \(GRU\).*not among the known modules"),
        *[(plain.network(forward, name), words) for name, (forward, words) in NAMED.items()],
        (hooked(), r"0 \(Linear\) cannot be described: it has forward hooks"),
    ],
)
def test_what_cannot_be_described_is_named_with_the_way_out(net, words):
    with pytest.raises(DescriptionError, match="(?s)" + words + ".*skeleton="):
        describe(net)
    assert not [name for name in vars(net) if "constant" in name]


# -- descriptions from elsewhere ------------------------------------------------------------------


def small():
    return through_json(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))


def changed(path, value):
    description = small()
    inner = description
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return description


CODE = "x: __import__('os').system('true')"
LINEAR = ("modules", "0", "arguments")


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({}, "format"),
        (changed(("format",), 2), "format 2, expected 1"),
        (changed(("nodes", 0, "target"), CODE), "is not a name"),
        (changed(("nodes", 0, "name"), CODE), "is not a name"),
        (changed(("nodes", 1, "kwargs"), {CODE: 1}), "is not a name"),
        (changed(("nodes", 1, "args"), [{"dict": {CODE: 1}}]), "is not a name"),
        (changed(("nodes", 0, "target"), "class"), "is not a name"),
        (changed(("nodes", 0, "target"), "__builtins__"), "is not a name"),
        (changed(("direct",), {CODE: {"shape": [1], "parameter": False}}), "is not a name"),
        (changed(("nodes", 1, "op"), "call_function"), "'0'"),
        (changed(("nodes", 1), {"op": "call_function", "name": "a", "target": "eval"}), "eval"),
        (changed(("nodes", 1), {"op": "call_method", "name": "a", "target": "apply_"}), "apply_"),
        (
            changed(
                ("nodes", 1),
                {"op": "call_function", "name": "_0", "target": "getattr",
                 "args": [{"node": "input_1"}, "__class__"]},
            ),
            "getattr.* is not allowed",
        ),
        (changed(("nodes", 1), {"op": "get_attr", "name": "_0", "target": "0.sneaky"}), "sneaky"),
        (changed(("nodes", 1, "args"), [{"node": "later"}]), "before it exists"),
        (changed(("nodes", 1, "args"), [{"lambda": 1}]), "is no argument"),
        (changed(("modules", "0", "type"), "LSTM"), "unknown module 'LSTM'"),
        (changed(("modules", "0", "type"), "Tanh"), "has the arguments"),
        (changed((*LINEAR, "device"), "cpu"), "has the arguments"),
        (changed((*LINEAR, "in_features"), 10**30), "cannot be used"),
        (changed((*LINEAR, "in_features"), -1), "cannot be used"),
        (changed((*LINEAR, "in_features"), "3"), "cannot be used"),
        (changed(("dtypes",), {"0.weight": "nn"}), "unknown dtype 'nn'"),
        (changed(("tied",), {"0.bias": "1.bias"}), "cannot be used"),
        (changed(("nodes",), 3), "cannot be used"),
    ],
)  # fmt: skip
def test_a_description_that_cannot_be_used_is_an_error(description, words):
    with pytest.raises(DescriptionError, match=words):
        rebuild(description)


SHAPE = {"shape": [1], "parameter": True}
MORE = [
    *[
        changed((name,), 3)
        for name in ("nodes", "modules", "direct", "constants", "tied", "dtypes")
    ],
    changed(("format",), True),
    changed(("nodes",), []),
    changed(("nodes",), small()["nodes"][:-1]),
    changed(("nodes",), small()["nodes"] * 2),
    changed(("nodes", 1), "call"),
    changed(("nodes", 1, "target"), 7),
    changed(("nodes", 1, "target"), ["0"]),
    changed(("nodes", 1, "args"), {"0": 1}),
    changed(("nodes", 1, "name"), "a" * 10_000),
    changed(("nodes", 2, "args"), [{"tuple": 1}]),
    changed(("nodes", 2, "args"), [{"slice": [1]}]),
    changed(("nodes", 2, "args"), [{"float": "1_0"}]),
    changed(("modules", "0"), None),
    changed(("modules", "0", "type"), ["Linear"]),
    changed(("modules", "0", "arguments"), ["in_features", "out_features", "bias"]),
    changed((*LINEAR, "in_features"), True),
    changed((*LINEAR, "bias"), "no"),
    changed((*LINEAR, "out_features"), 2.5),
    changed(("modules", "1", "arguments", "inplace"), 1),
    changed(("direct",), {"a": {**SHAPE, "shape": [-1]}}),
    changed(("direct",), {"a": {**SHAPE, "shape": [True]}}),
    changed(("direct",), {"a": {**SHAPE, "shape": 3}}),
    changed(("direct",), {"a": {**SHAPE, "shape": [1] * 100}}),
    changed(("direct",), {"a": {**SHAPE, "parameter": 1}}),
    changed(("direct",), {"idle": SHAPE}),
    changed(("constants",), {"a": {"dtype": "float32", "values": "x"}}),
    changed(("dtypes",), {"0.weight": "int64"}),
    changed(("dtypes",), {"0.weight": 3}),
    changed(("dtypes",), {"0.wait": "float64"}),
    changed(("tied",), {"0.weight": "0.weight"}),
    changed(("tied",), {"0.weight": "0.bias"}),
    changed(("tied",), {"0.weight": []}),
]


@pytest.mark.parametrize("description", MORE, ids=range(len(MORE)))
def test_every_part_must_be_of_its_kind(description):
    with pytest.raises(DescriptionError, match="The description cannot be used: ") as caught:
        rebuild(description)
    for internal in ("NoneType", "object is not", "KeyError", "has no attribute", "unhashable"):
        assert internal not in str(caught.value)


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [400, 5000])
def test_deep_arguments_are_an_error(depth):
    with pytest.raises(DescriptionError, match="cannot be used"):
        rebuild(changed(("nodes", 1, "args"), nested(depth)))


WIDE = {"type": "Linear", "arguments": {"in_features": 10**5, "out_features": 10**5, "bias": False}}
BOMBS = {
    "width": changed((*LINEAR, "in_features"), 10**10),
    "buffer": changed(("direct",), {"a": {"shape": [2**20, 2**20], "parameter": False}})
    | {"nodes": [{"op": "get_attr", "name": "a", "target": "a"}, *small()["nodes"]]},
    "double": changed((*LINEAR, "in_features"), 2 * 10**5) | {"dtypes": {"0.weight": "float64"}},
    "modules": changed(("modules",), {f"m{i}": WIDE for i in range(200)}),
    "nodes": changed(("nodes",), [{}] * 300),
    "argument": changed(("nodes", 1, "args"), [[0] * 300]),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_memory_is_asked_for_before_it_is_taken(bomb):
    with (
        allowing("2MB"),
        pytest.raises(TooLarge, match=r"The description asks for .* at most 2 MB"),
    ):
        rebuild(BOMBS[bomb])


def test_every_argument_of_a_known_module_has_a_kind():
    assert set(KINDS) == {name for names in MODULES.values() for name in names}


def test_whole_numbers_for_others_do_not_fit():
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    description = describe(net)
    tensors = {name: tensor.long() for name, tensor in state(net, description).items()}
    with pytest.raises(
        DescriptionError, match=r"0.weight is of torch.int64, expected torch.float32"
    ):
        fill(rebuild(description), description, tensors)


def test_the_small_description_itself_can_be_used():
    assert rebuild(small())(torch.ones(1, 3)).tolist() == [[0.0, 0.0]]


def test_tensors_that_do_not_fit():
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    description = describe(net)
    tensors = state(net, description)
    again = rebuild(description)
    with pytest.raises(
        DescriptionError, match=r"0.weight has shape \(2, 3, 1\), expected \(2, 3\)"
    ):
        fill(again, description, {**tensors, "0.weight": tensors["0.weight"][..., None]})
    with pytest.raises(DescriptionError, match=r"do not fit the description: 0.weight"):
        fill(again, description, {"0.bias": tensors["0.bias"]})
    fill(again, description, copy.deepcopy(tensors))
