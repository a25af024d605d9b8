"""A plain network as JSON and back; anything else is refused, in words for a person."""

import json

import plain
import pytest
import torch
from hypothesis import given, settings
from pyroccam.data import TooLarge, allowing, ranges, shown
from pyroccam.models.networks import OrientedEdges, primitives
from pyroccam.models.plain import (
    MODULES,
    DescriptionError,
    NotJSON,
    PaddedLayerNorm,
    describe,
    fill,
    parsed,
    rebuild,
    state,
)
from pyroccam.models.plain.vocabulary import arguments_of, make
from pyroccam.models.unpacked import AttentionWeights, Heads
from random_networks import json_values, networks
from torch import nn


def through_json(net):
    return parsed(json.dumps(describe(net), allow_nan=False).encode(), "it")


def again(net):
    """The network by way of its description."""
    description = through_json(net)
    made = rebuild(description)
    fill(made, description, state(net, description))
    return made


@pytest.mark.parametrize("name", plain.NETWORKS)
def test_a_rebuilt_network_computes_the_same(name):
    net, x = plain.trained(name)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    members = set(vars(net))
    assert not plain.same(plain.outputs(rebuild(through_json(net)), x), plain.outputs(net, x))
    made = again(net)
    assert plain.same(plain.outputs(made, x), plain.outputs(net, x))
    assert not made.training
    # Names are kept, and the network that was described is as it was.
    assert set(made.state_dict()) <= {*before, "index", "_tensor_constant0"}
    assert {n for n, _ in made.named_parameters()} <= {n for n, _ in net.named_parameters()}
    assert set(vars(net)) == members
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize(("primitive", "value"), [(primitives.Zero, 0.0), (primitives.One, 1.0)])
def test_edges_without_numbers_are_described(primitive, value):
    """As those of a graph whose every primitive that was chosen has none."""
    x = torch.randn(3, 2)
    made = rebuild(through_json(nn.Sequential(primitive())))(x)
    assert made.equal(primitive()(x))
    assert made.eq(value).all()


def test_a_description_is_of_the_evaluation_mode_and_leaves_the_mode():
    net, x = plain.trained("vgg")
    net.train()
    net[1].eval()
    modes = [m.training for m in net.modules()]
    made = again(net)
    assert [m.training for m in net.modules()] == modes
    assert plain.same(plain.outputs(made, x), plain.outputs(net.eval(), x))


def test_shared_tensors_stay_shared_and_are_held_once():
    net, _ = plain.trained("skips")
    description = through_json(net)
    assert description["tied"] == {"stages.2.0.weight": "stages.0.0.weight"}
    assert "stages.2.0.weight" not in state(net, description)
    parameters = dict(again(net).named_parameters(remove_duplicate=False))
    assert parameters["stages.2.0.weight"] is parameters["stages.0.0.weight"]


few = settings(derandomize=True, deadline=None, max_examples=40, database=None)
many = settings(few, max_examples=100)


@few
@given(networks())
def test_any_small_network_comes_back(drawn):
    net, x = drawn
    made = again(net)
    with torch.no_grad():
        assert torch.equal(made(x), net(x))
    assert describe(made)["modules"] == describe(net)["modules"]


# -- the tables of known words --------------------------------------------------------------------

EXAMPLES = [
    nn.Linear(3, 2, bias=False), nn.Bilinear(2, 3, 4), nn.Embedding(5, 3, padding_idx=1),
    nn.Conv1d(2, 4, 3, stride=2, dilation=2),
    nn.Conv2d(4, 4, (3, 5), padding="same", groups=2, padding_mode="reflect"),
    nn.Conv3d(1, 2, 2, bias=False), nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1),
    nn.ConvTranspose2d(2, 3, 3), nn.ConvTranspose3d(2, 3, 3, dilation=2),
    nn.BatchNorm1d(3, affine=False), nn.BatchNorm2d(3, momentum=None),
    nn.BatchNorm3d(3, track_running_stats=False), nn.InstanceNorm1d(3), nn.InstanceNorm2d(3),
    nn.InstanceNorm3d(3, affine=True), nn.GroupNorm(2, 4, affine=False),
    nn.LayerNorm((2, 3), bias=False), nn.RMSNorm(3), PaddedLayerNorm(3, zeros=2),
    nn.LocalResponseNorm(2), nn.MaxPool1d(2), nn.MaxPool2d((2, 3), ceil_mode=True),
    nn.MaxPool3d(2), nn.AvgPool1d(2), nn.AvgPool2d(2, divisor_override=3), nn.AvgPool3d(2),
    nn.AdaptiveAvgPool1d(2), nn.AdaptiveAvgPool2d((None, 2)), nn.AdaptiveAvgPool3d(1),
    nn.AdaptiveMaxPool1d(2), nn.AdaptiveMaxPool2d(2), nn.AdaptiveMaxPool3d(2), nn.ReLU(True),
    nn.ReLU6(), nn.SiLU(), nn.Mish(), nn.SELU(), nn.Hardswish(), nn.Hardsigmoid(), nn.Sigmoid(),
    nn.Tanh(), nn.LogSigmoid(), nn.Softsign(), nn.Identity(), nn.ELU(0.5), nn.CELU(0.5),
    nn.LeakyReLU(0.3), nn.Hardtanh(float("-inf"), 2.0), nn.PReLU(3), nn.GELU("tanh"),
    nn.Softplus(2.0, 10), nn.Softmax(1), nn.LogSoftmax(-1), nn.Softmin(1), nn.GLU(1),
    nn.Threshold(0.1, 2.0), nn.Softshrink(0.2), nn.Hardshrink(0.2), nn.Tanhshrink(),
    nn.Dropout(0.3), nn.Dropout1d(), nn.Dropout2d(), nn.Dropout3d(), nn.AlphaDropout(),
    nn.Flatten(0, -2), nn.Unflatten(1, (2, 3)), nn.ZeroPad1d(1), nn.ZeroPad2d((1, 2, 3, 4)),
    nn.ZeroPad3d(2), nn.ReflectionPad1d(1), nn.ReflectionPad2d(1), nn.ReflectionPad3d(1),
    nn.ReplicationPad1d(1), nn.ReplicationPad2d(1), nn.ReplicationPad3d(1),
    nn.ConstantPad1d(1, 0.5), nn.ConstantPad2d(1, 0.5), nn.ConstantPad3d(1, 0.5), nn.Unfold(2),
    nn.Fold((3, 3), 2), nn.Upsample(scale_factor=2.0, mode="bilinear"), nn.PixelShuffle(2),
    nn.PixelUnshuffle(2), nn.ChannelShuffle(2), Heads([2, 2], [3, 0], 0.5, 0.1),
    AttentionWeights(2, 0.5), OrientedEdges(2, 6, 1.5),
]  # fmt: skip


def test_every_known_module_has_an_example_and_every_argument_a_type():
    assert {type(module) for module in EXAMPLES} == set(MODULES)
    for kind, names in MODULES.items():
        assert {*names} <= {*ranges.kinds_of(kind.__init__)}


def test_names_in_files_do_not_change_with_torch():
    padded = ("kernel_size", "stride", "padding", "dilation", "groups", "bias", "padding_mode")
    assert MODULES[nn.Linear] == ("in_features", "out_features", "bias")
    assert MODULES[nn.Conv2d] == ("in_channels", "out_channels", *padded)
    assert MODULES[nn.ConvTranspose2d] == ("in_channels", "out_channels", *padded, "output_padding")
    statistics = ("num_features", "eps", "momentum", "affine", "track_running_stats")
    assert MODULES[nn.BatchNorm2d] == statistics
    assert MODULES[nn.LayerNorm] == ("normalized_shape", "eps", "elementwise_affine", "bias")


def test_an_argument_that_is_lacking_is_no_default():
    words = arguments_of(nn.BatchNorm2d(3, eps=0.1))
    del words["eps"]
    with pytest.raises(DescriptionError):
        make("BatchNorm2d", words)


@pytest.mark.parametrize("module", EXAMPLES, ids=lambda m: type(m).__name__)
def test_a_module_is_built_from_its_arguments(module):
    words = json.loads(json.dumps(arguments_of(module), allow_nan=False))
    made = make(type(module).__name__, words)
    assert repr(made) == repr(module)
    shapes = [(k, v.shape, v.dtype) for k, v in module.state_dict().items()]
    assert [(k, v.shape, v.dtype) for k, v in made.state_dict().items()] == shapes
    public = {k: v for k, v in vars(module).items() if not k.startswith("_")}
    assert {k: v for k, v in vars(made).items() if not k.startswith("_")} == {
        **public, "training": True
    }  # fmt: skip


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


@pytest.mark.parametrize(
    ("net", "named"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Sequential(BRANCHING)), r"1.0 \(Branching\)"),
        (nn.Sequential(nn.LPPool2d(2, 2)), r"0 \(LPPool2d\)"),
        (plain.network(noisy), "random"),
        (plain.network(lambda net, x: torch.linalg.inv(x)), "linalg_inv"),
        (plain.network(lambda net, x: x / len(x.chunk(2))), "chunk"),
        (plain.network(starred), r"\*x"),
        (plain.network(lambda net, x, size=(2, 2): x.view(size)), "size"),
        (hooked(), r"0 \(Linear\)"),
    ],
)
def test_what_cannot_be_described_is_named(net, named):
    with pytest.raises(DescriptionError, match="(?s)" + named + ".*like="):
        describe(net)
    assert not [name for name in vars(net) if "constant" in name]


# -- descriptions from elsewhere ------------------------------------------------------------------

SMALL = through_json(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))


def with_value(path, value):
    description = json.loads(json.dumps(SMALL))
    inner = description
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return description


CODE = "x: __import__('os').system('true')"
LINEAR = ("modules", "0", "arguments")
CONV = arguments_of(nn.Conv1d(2, 2, 1)) | {"stride": 2**63}
CALL = {"op": "call_function", "name": "_0", "target": "getattr"}
CLASS = {**CALL, "args": [{"node": "input_1"}, "__class__"]}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2),
        (("format",), True),
        (("nodes", 0, "target"), CODE),
        (("nodes", 0, "name"), CODE),
        (("nodes", 1, "kwargs"), {CODE: 1}),
        (("nodes", 1, "args"), [{"dict": {CODE: 1}}]),
        (("nodes", 0, "target"), "class"),
        (("nodes", 0, "target"), "__builtins__"),
        (("direct",), {CODE: {"shape": [1], "parameter": False}}),
        (("direct",), {"idle": {"shape": [1], "parameter": True}}),
        (("nodes", 1, "op"), "call_function"),
        (("nodes", 1), {"op": "call_function", "name": "a", "target": "eval"}),
        (("nodes", 1), CLASS),
        (("nodes", 1), {"op": "get_attr", "name": "_0", "target": "0.sneaky"}),
        (("nodes", 1, "args"), [{"node": "later"}]),
        (("nodes", 1, "name"), "a" * 10_000),
        (("nodes",), SMALL["nodes"] * 2),
        (("modules", "0", "type"), "LSTM"),
        ((*LINEAR, "device"), "cpu"),
        ((*LINEAR, "in_features"), 10**30),
        ((*LINEAR, "in_features"), True),
        ((*LINEAR, "bias"), "no"),
        (("modules", "1"), {"type": "GELU", "arguments": {"approximate": "cosh"}}),
        (("modules", "1"), {"type": "Conv1d", "arguments": CONV}),
        (("dtypes",), {"0.weight": "nn"}),
        (("dtypes",), {"0.weight": "int64"}),
        (("tied",), {"0.weight": "0.bias"}),
    ],
)
def test_a_description_that_cannot_be_used_is_an_error(path, value):
    with pytest.raises(DescriptionError):
        rebuild(with_value(path, value))


@pytest.mark.parametrize("depth", [400, 5000])
def test_deep_arguments_are_an_error(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    with pytest.raises(DescriptionError):
        rebuild({**SMALL, "nodes": [SMALL["nodes"][0], {**SMALL["nodes"][1], "args": value}]})


WIDE = {"type": "Linear", "arguments": {"in_features": 10**5, "out_features": 10**5, "bias": False}}
BUFFER = {"a": {"shape": [2**20, 2**20], "parameter": False}}
BOMBS = [
    with_value((*LINEAR, "in_features"), 10**10),
    {**with_value(("direct",), BUFFER),
     "nodes": [{"op": "get_attr", "name": "a", "target": "a"}, *SMALL["nodes"]]},
    {**with_value((*LINEAR, "in_features"), 2 * 10**5), "dtypes": {"0.weight": "float64"}},
    with_value(("modules",), {f"m{i}": WIDE for i in range(200)}),
    with_value(("nodes",), [{}] * 300),
    with_value(("nodes", 1, "args"), [[0] * 300]),
]  # fmt: skip


@pytest.mark.parametrize("bomb", range(len(BOMBS)))
def test_memory_is_asked_for_before_it_is_taken(bomb):
    with allowing("2MB"), pytest.raises(TooLarge):
        rebuild(BOMBS[bomb])


def test_tensors_that_do_not_fit():
    tensors = {"0.weight": torch.ones(2, 3), "0.bias": torch.ones(2)}
    made = rebuild(SMALL)
    wide = {**tensors, "0.weight": torch.ones(2, 3, 1)}
    for wrong in (wide, {"0.bias": tensors["0.bias"]}, {n: t.long() for n, t in tensors.items()}):
        with pytest.raises(DescriptionError, match=r"0\.weight"):
            fill(made, SMALL, wrong)
    fill(made, SMALL, tensors)


# -- JSON of strangers ----------------------------------------------------------------------------


@many
@given(json_values)
def test_json_is_read_as_it_was_written(value):
    assert parsed(json.dumps(value).encode(), "it") == value
    assert len(shown(value)) < 1000
    assert shown(value).isprintable()


@pytest.mark.parametrize(
    "text",
    [b"NaN", b"[-Infinity]", b"1e999", b"1" * 5000, b"[" * 10**5, b'{"a":1,"a":2}',
     b'["\\ud800"]', b"\xff", b""],
)  # fmt: skip
def test_what_is_more_than_json(text):
    with pytest.raises(NotJSON, match="^it is no sound JSON: "):
        parsed(text, "it")


def test_a_long_text_is_asked_for():
    with allowing("1MB"), pytest.raises(TooLarge):
        parsed(b" " * 40_000, "it")
