"""The folder of a plain network: exact, and safe to read."""

import json
import shutil

import pyro.distributions as dist
import pytest
import torch
from cut_stacks import WEIGHTS, cut, own_stack, trained
from pyroccam import inference, models
from pyroccam.data import PyroccamError, TooLarge, allowing
from pyroccam.inference.files import load_folder, save_folder
from pyroccam.inference.storage.digests import DamagedFile
from pyroccam.models.plain import PrunedNetwork
from torch import nn


@pytest.mark.parametrize(
    ("name", "form", "task", "dtype"),
    [("mlp", "marginal", "classification", torch.float64),
     ("conv", "single", "regression", torch.float32),
     ("resnet", "marginal", "regression", torch.float32)],
)  # fmt: skip
def test_round_trip_is_exact_and_runs_no_pickle(name, form, task, dtype, tmp_path, monkeypatch):
    model, x = trained(name, task)
    net, x = cut(model, form).to(dtype), x.to(dtype)
    assert save_folder(net, tmp_path / "deep" / "folder") == tmp_path / "deep" / "folder"

    def never(*args, **kwargs):
        raise AssertionError("unpickled something")

    for module, function in (("torch", "load"), ("pickle", "load"), ("pickle", "loads")):
        monkeypatch.setattr(f"{module}.{function}", never)
    again = load_folder(tmp_path / "deep" / "folder")
    assert again.description == net.description
    assert (again.form, again.depth, again.task) == (form, 2, task)
    assert not again.training
    assert all(p.requires_grad for p in again.parameters())
    theirs = again.state_dict()
    assert theirs.keys() == net.state_dict().keys()
    for key, value in net.state_dict().items():
        assert value.dtype == theirs[key].dtype, key
        assert torch.equal(value, theirs[key]), key
    with torch.no_grad():
        assert torch.equal(net(x), again(x))


def test_a_network_of_ones_own_needs_its_stack(tmp_path):
    model, x = trained("own")
    net = cut(model, "marginal")
    inference.Small(net).save(tmp_path)
    for like in (None, models.networks.residual_mlp((5,), 3, width=9, max_depth=3)):
        with pytest.raises(PyroccamError):
            inference.load(tmp_path, like)
    fresh = own_stack()
    before = [p.clone() for p in fresh.parameters()]
    again = inference.load(tmp_path, fresh)
    with torch.no_grad():
        assert torch.equal(net(x), again(x))
    assert all(map(torch.equal, fresh.parameters(), before))


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
    fresh = Tempered()
    with torch.no_grad():
        exits = (0.2 * model.stack.outputs(x)[:3]).softmax(-1)
        shares = WEIGHTS if form == "marginal" else torch.tensor([0.0, 0.0, 1.0])
        expected = torch.einsum("s,sbc->bc", shares, exits)
        torch.testing.assert_close(net(x).exp(), expected, rtol=1e-4, atol=1e-6)
        fresh.slope.fill_(7.0)
    save_folder(net, tmp_path / "own")
    save_folder(cut(model, form), tmp_path / "known")
    for name, likelihood in (("own", None), ("known", fresh)):
        with pytest.raises(PyroccamError):
            load_folder(tmp_path / name, likelihood=likelihood)
    with torch.no_grad():
        assert torch.equal(load_folder(tmp_path / "own", likelihood=fresh)(x), net(x))


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


def old(folder):
    """The folder as older versions wrote it."""
    (folder / "digests.json").unlink(missing_ok=True)
    path = folder / "description.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in written.items() if k != "dtypes"}))


def refused(folder, error=PyroccamError):
    with pytest.raises(error) as caught:
        load_folder(folder)
    assert isinstance(caught.value, PyroccamError)


@pytest.mark.parametrize("name", ["model.safetensors", "description.json"])
def test_what_is_damaged_or_missing_is_found(folder, name):
    path = folder / name
    content = path.read_bytes()
    for at in (0, len(content) // 3, len(content) - 3):
        changed = bytearray(content)
        changed[at] ^= 16
        path.write_bytes(changed)
        refused(folder, DamagedFile)
    path.unlink()
    refused(folder, FileNotFoundError)
    path.mkdir()
    refused(folder, FileNotFoundError)


BOMBS = {
    "depth": {"max_depth": 10**9},
    "overflow": {"input_shape": [2**62] * 9},
    "pictures": {"network": "resnet", "variant": "resnet18", "small": True, "outputs": 10**7,
                 "input_shape": [3, 10**5, 10**5], "max_depth": 2},
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_short_description_cannot_ask_for_much_memory(bomb, sound, tmp_path):
    folder = shutil.copytree(sound / "pruned", tmp_path / "pruned")
    old(folder)
    path = folder / "description.json"
    written, more = json.loads(path.read_text()), BOMBS[bomb]
    recipe = more if "network" in more else {**written["stack"], **more}
    path.write_text(json.dumps({**written, "stack": recipe, "depth": 2}))
    with allowing("20MB"):
        refused(folder, TooLarge)
