"""The folder of a plain network: exact, and safe to read."""

import json
import shutil

import pyro.distributions as dist
import pytest
import torch
from cut_stacks import WEIGHTS, cut, own_stack, trained
from pyroccam import inference, models
from pyroccam.data.errors import PyroccamError, TooLarge
from pyroccam.data.limits import allowing
from pyroccam.inference.files import network_folder
from pyroccam.inference.files.network_folder import load_folder, save_folder
from pyroccam.inference.storage.digests import DamagedFile
from pyroccam.models.plain.pruned import PrunedNetwork
from safetensors.torch import load_file, save_file
from torch import nn


@pytest.mark.parametrize("name", ["mlp", "conv", "resnet"])
@pytest.mark.parametrize("form", ["marginal", "single"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_round_trip_is_exact_and_runs_no_pickle(name, form, task, tmp_path, monkeypatch):
    model, x = trained(name, task)
    net = cut(model, form)
    assert save_folder(net, tmp_path / "deep" / "folder") == tmp_path / "deep" / "folder"

    def never(*args, **kwargs):
        raise AssertionError("unpickled something")

    for module, function in (("torch", "load"), ("pickle", "load"), ("pickle", "loads")):
        monkeypatch.setattr(f"{module}.{function}", never)
    torch.manual_seed(99)
    again = load_folder(tmp_path / "deep" / "folder")
    assert again.description == net.description
    assert (again.form, again.depth, again.task) == (form, 2, task)
    assert not again.training
    theirs = again.state_dict()
    assert theirs.keys() == net.state_dict().keys()
    for key, value in net.state_dict().items():
        assert torch.equal(value, theirs[key]), key
    with torch.no_grad():
        assert torch.equal(net(x), again(x))
    files = sorted(p.name for p in (tmp_path / "deep" / "folder").iterdir())
    assert files == ["description.json", "digests.json", "model.safetensors"]


def test_round_trip_after_a_second_save(tmp_path):
    model, x = trained("mlp")
    save_folder(cut(model, "marginal"), tmp_path / "a")
    save_folder(load_folder(tmp_path / "a"), tmp_path / "b")
    with torch.no_grad():
        assert torch.equal(load_folder(tmp_path / "a")(x), load_folder(tmp_path / "b")(x))


def test_a_folder_that_would_be_read_as_another_network_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(network_folder, "fill", lambda *given: None)  # a reader that leaves zeros
    with pytest.raises(PyroccamError, match="other numbers"):
        save_folder(nn.Sequential(nn.Linear(2, 3)), tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_a_network_of_ones_own_needs_its_stack(tmp_path):
    model, x = trained("own")
    net = cut(model, "marginal")
    inference.Small(net).save(tmp_path)
    with pytest.raises(ValueError, match=r"a network of one's own.*load\(folder, stack=\.\.\.\)"):
        inference.load(tmp_path)
    fresh = own_stack()
    before = [p.clone() for p in fresh.parameters()]
    again = inference.load(tmp_path, fresh)
    with torch.no_grad():
        assert torch.equal(net(x), again(x))
    for p, q in zip(fresh.parameters(), before, strict=True):
        assert torch.equal(p, q)


def test_a_stack_that_does_not_fit(tmp_path):
    save_folder(cut(trained("own")[0], "marginal"), tmp_path)
    with pytest.raises(ValueError, match=r"does not fit its description: it has .net.blocks"):
        load_folder(tmp_path, models.networks.residual_mlp((5,), 3, width=9, max_depth=3))


@pytest.mark.parametrize("name", ["description.json", "model.safetensors"])
def test_a_missing_file_is_named(name, tmp_path):
    save_folder(cut(trained("mlp")[0], "single"), tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {name}.*save"):
        load_folder(tmp_path)


def old(folder):
    """The folder as older versions wrote it."""
    (folder / "digests.json").unlink()
    path = folder / "description.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in written.items() if k != "dtypes"}))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    save_folder(cut(trained("mlp")[0], "single"), folder / "pruned")
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).eval()
    save_folder(net, folder / "plain")
    return folder


@pytest.fixture(params=["pruned", "plain"])
def folder(request, sound, tmp_path):
    return shutil.copytree(sound / request.param, tmp_path / request.param)


def refused(folder, words, error=PyroccamError):
    with pytest.raises(error, match=words) as caught:
        load_folder(folder)
    assert isinstance(caught.value, PyroccamError)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "description.json"])
def test_no_bit_of_a_file_flips_unseen(folder, name):
    content = (folder / name).read_bytes()
    for at in (0, len(content) // 3, len(content) - 3):
        changed = bytearray(content)
        changed[at] ^= 16
        (folder / name).write_bytes(changed)
        refused(folder, f"{name} is not what was written", DamagedFile)


def test_a_folder_of_an_older_version_is_read(folder):
    x = torch.randn(3, 5)
    with torch.no_grad():
        expected = load_folder(folder)(x)
        old(folder)
        assert torch.equal(load_folder(folder)(x), expected)


@pytest.mark.parametrize("keep", [0, 5, 0.5, 0.99])
def test_truncated_weights_are_an_error_without_digests_too(keep, folder):
    old(folder)
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(len(content) * keep)])
    refused(folder, "model.safetensors does not fit its description")


def test_a_directory_in_place_of_a_file(folder):
    for name in ("model.safetensors", "description.json"):
        (folder / name).unlink()
        (folder / name).mkdir()
        refused(folder, f"has no {name}", FileNotFoundError)
        (folder / name).rmdir()
        (folder / name).write_text("")


def with_tensors(folder, change):
    old(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(n for n in sorted(tensors) if n.endswith("weight"))
    change(tensors, name)
    save_file(tensors, path)
    return name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, n: t.pop(n), "it lacks '{}'"),
        (lambda t, n: t.update(more=torch.zeros(1)), "it has 'more'"),
        (lambda t, n: t.update({n: t[n][None].clone()}), "{} has shape"),
        (lambda t, n: t.update({n: t[n].to(torch.int32)}), "{} is of torch.int32"),
    ],
    ids=["missing", "more", "shape", "integers"],
)
def test_tensors_that_do_not_fit(folder, change, words):
    name = with_tensors(folder, change)
    refused(folder, "model.safetensors does not fit its description: " + words.format(name))


def test_a_precision_that_was_not_written_is_refused(folder):
    written = json.loads((folder / "description.json").read_text())
    with_tensors(folder, lambda t, n: t.update({n: t[n].double()}))
    (folder / "description.json").write_text(json.dumps(written))
    refused(folder, "is of torch.float64, expected torch.float32")


@pytest.mark.parametrize("form", ["marginal", "single"])
def test_double_precision_comes_back(form, tmp_path):
    model, x = trained("conv")
    net = cut(model, form).double()
    save_folder(net, tmp_path)
    again = load_folder(tmp_path)
    assert {t.dtype for t in again.parameters()} == {torch.float64}
    assert all(p.requires_grad for p in again.parameters())
    with torch.no_grad():
        assert torch.equal(again(x.double()), net(x.double()))


DESCRIPTIONS = {
    "cut": lambda d: "{",
    "empty": lambda d: "",
    "list": lambda d: "[1, 2]",
    "no text": lambda d: b"\xff\xfe",
    "deep": lambda d: "[" * 100_000,
    "half a character": lambda d: json.dumps({**d, "task": "\ud800"}),
    "NaN": lambda d: json.dumps({**d, "depth": float("nan")}),
    "5,000 digits": lambda d: json.dumps(d).replace('"format": 1', '"format": 1' + "0" * 5000),
    "1e999": lambda d: json.dumps(d).replace('"format": 1', '"format": 1e999'),
    "twice": lambda d: json.dumps(d).replace('"format": 1', '"format": 1, "format": 1'),
    "format": lambda d: json.dumps({**d, "format": 2}),
    "format true": lambda d: json.dumps({**d, "format": True}),
    "no depth": lambda d: json.dumps({k: v for k, v in d.items() if k != "depth"}),
    "depth": lambda d: json.dumps({**d, "depth": None}),
    "depth true": lambda d: json.dumps({**d, "depth": True}),
    "depth text": lambda d: json.dumps({**d, "depth": "2"}),
    "too deep": lambda d: json.dumps({**d, "depth": 4}),
    "far too deep": lambda d: json.dumps({**d, "depth": 10**18}),
    "negative": lambda d: json.dumps({**d, "outputs": -3}),
    "form": lambda d: json.dumps({**d, "form": "double"}),
    "form list": lambda d: json.dumps({**d, "form": ["plain"]}),
    "task": lambda d: json.dumps({**d, "task": "ranking"}),
    "stack list": lambda d: json.dumps({**d, "stack": [1]}),
    "argument": lambda d: json.dumps({**d, "stack": {**d["stack"], "wdith": 3}}),
    "width text": lambda d: json.dumps({**d, "stack": {**d["stack"], "width": "6"}}),
    "width true": lambda d: json.dumps({**d, "stack": {**d["stack"], "width": True}}),
    "shape": lambda d: json.dumps({**d, "stack": {**d["stack"], "input_shape": [5.5]}}),
    "network": lambda d: json.dumps({**d, "stack": {**d["stack"], "network": ["mlp"]}}),
    "no graph": lambda d: json.dumps({"format": 1, "form": "plain"}),
    "graph": lambda d: json.dumps({"format": 1, "form": "plain", "graph": 3}),
}


@pytest.mark.parametrize("change", DESCRIPTIONS)
def test_a_description_that_cannot_be_used_is_named(change, sound, tmp_path):
    folder = shutil.copytree(sound / "pruned", tmp_path / "pruned")
    old(folder)
    path = folder / "description.json"
    text = DESCRIPTIONS[change](json.loads(path.read_text()))
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    refused(folder, "description.json cannot be read: ")
    with pytest.raises(PyroccamError) as caught:
        load_folder(folder)
    for internal in ("NoneType", "object is not", "KeyError", "TypeError", "positional"):
        assert internal not in str(caught.value)
    str(caught.value).encode()


BOMBS = {
    "width": {"width": 10**6},
    "depth": {"max_depth": 10**9},
    "outputs": {"outputs": 10**9},
    "inputs": {"input_shape": [10**5, 10**5]},
    "overflow": {"input_shape": [2**62] * 9},
    "pictures": {"network": "resnet", "variant": "resnet18", "small": True, "outputs": 10**7,
                 "input_shape": [3, 10**5, 10**5], "max_depth": 2},
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_short_description_cannot_ask_for_much_memory(bomb, sound, tmp_path):
    folder = shutil.copytree(sound / "pruned", tmp_path / "pruned")
    old(folder)
    path = folder / "description.json"
    written = json.loads(path.read_text())
    more = BOMBS[bomb]
    recipe = more if "network" in more else {**written["stack"], **more}
    path.write_text(json.dumps({**written, "stack": recipe, "depth": 2}))
    with allowing("20MB"):
        refused(folder, "of memory; expected at most 20 MB", TooLarge)


def test_what_is_asked_for_can_be_allowed(sound):
    with allowing("1MB"), pytest.raises(TooLarge, match="The network residual_mlp"):
        load_folder(sound / "pruned")
    with allowing("10MB"):
        assert load_folder(sound / "pruned").depth == 2


class Tempered(models.Likelihood):
    """Has a number of its own, which is learnt."""

    task, outputs = "classification", 3

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.2))

    def forward(self, outputs):
        return dist.Categorical(logits=self.slope * outputs)


@pytest.mark.parametrize("form", ["marginal", "single"])
def test_a_likelihood_of_ones_own_stays(form, tmp_path):
    model, x = trained("mlp")
    net = PrunedNetwork(model.stack, 2, WEIGHTS if form == "marginal" else None, Tempered())
    with torch.no_grad():
        exits = (0.2 * model.stack.outputs(x)[:3]).softmax(-1)
        shares = WEIGHTS if form == "marginal" else torch.tensor([0.0, 0.0, 1.0])
        expected = torch.einsum("s,sbc->bc", shares, exits)
        torch.testing.assert_close(net(x).exp(), expected, rtol=1e-4, atol=1e-6)
    save_folder(net, tmp_path)
    with pytest.raises(ValueError, match="Tempered"):
        load_folder(tmp_path)
    fresh = Tempered()
    with torch.no_grad():
        fresh.slope.fill_(7.0)
        again = load_folder(tmp_path, likelihood=fresh)
        assert torch.equal(again(x), net(x))
    save_folder(cut(model, form), tmp_path / "known")
    with pytest.raises(ValueError, match="Tempered"):
        load_folder(tmp_path / "known", likelihood=fresh)
