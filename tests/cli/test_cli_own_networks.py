"""Networks of one's own on the command line."""

import pytest
from command_line import SMALL, call, metrics_of
from pyroccam.inference.files.packed import PackedFileError, read

OWN = """
from torch import nn

def net(input_shape, outputs, *, units=7):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.Tanh(), nn.Linear(units, outputs))

def tied(input_shape, outputs):
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    made[3].weight = made[1].weight
    return made

def meta(input_shape, outputs):
    return nn.Linear(64, outputs, device="meta")

def nothing(input_shape, outputs):
    return 3

class Choosy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x):
        x = self.a(x.flatten(1))
        return self.b(x if x.sum() > 0 else -x)

def choosy(input_shape, outputs):
    return Choosy()

class Recurrent(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.a, self.b = nn.GRU(8, 5, batch_first=True), nn.Linear(5, outputs)

    def forward(self, x):
        return self.b(self.a(x.flatten(1, 2))[0][:, -1])

def recurrent(input_shape, outputs):
    return Recurrent(outputs)
"""


def test_a_network_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(OWN)
    (tmp_path / "broken_networks.py").write_text("def net(:")
    (tmp_path / "leaving_networks.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    basic = ["--data", "digits", "--epochs", "2", "--out"]
    call("fit", "gnj", "--network", "my_networks:net", "--set", "units=9", *basic, "run")
    assert metrics_of(tmp_path / "run")["compressed"]["parameters_before"] == 65 * 9 + 10 * 10
    assert "accuracy" in call("compress", "run", "--cut", "valley")
    for network, words in (
        ("my_networks:net2", "my_networks has no function 'net2'"),
        ("no_networks:net", "no_networks cannot be imported"),
        (":", "network of gnj"),
        ("my_networks:meta", "has no values, it is on the device meta"),
        (".my_networks:net", "network of gnj"),
        ("broken_networks:net", "by SyntaxError: invalid syntax (broken_networks.py, line 1)"),
        ("leaving_networks:net", "by SystemExit: 0 (leaving_networks.py, line 1, in <module>)"),
        ("my_networks:tied", "are one tensor"),
        ("my_networks:nothing", "gave a int"),
        ("lenet", "MODULE:FUNCTION"),
        ("torchvision.models:resnet18", "not be built from input_shape=(1, 8, 8), outputs=10: too"),
        ("my_networks:net --set units=a", "could not be built from input_shape=(1, 8, 8), outpu"),
    ):
        said = call("fit", "gnj", "--network", *network.split(), *basic, "other", code=2)
        assert words in " ".join(said.split())


def test_a_network_that_cannot_be_cut(tmp_path, monkeypatch):
    """Said before it is trained; trained whole if that is asked for."""
    (tmp_path / "choosy_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    basic = ("--network", "choosy_networks:choosy", "--data", "digits", "--epochs", 2)
    said = call("fit", "gnj", *basic, "--set", "narrow=[0.5]", "--out", "a", code=2)
    assert "cuts the network while it trains" in said
    with pytest.warns(UserWarning, match="can be trained, but not be compressed in the end: .*fx"):
        said = call("fit", "gnj", *basic, "--set", "narrow=[]", "--set", "noise=activations",
                    "--out", "b")  # fmt: skip
    assert "Nothing was cut" in said
    assert {"test", "not_compressed"} <= set(metrics_of(tmp_path / "b"))


@pytest.mark.parametrize("finish", [0, 0.3])
def test_a_network_without_words_for_it_is_compressed_all_the_same(tmp_path, monkeypatch, finish):
    """Its file holds tensors only; what it says of sizes is of the whole network."""
    (tmp_path / "recurrent_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    said = call("fit", "gnj", "--network", "recurrent_networks:recurrent", *SMALL[:4],
                "--set", "layers=b", "--set", f"finish={finish}", "--out", "run")  # fmt: skip
    assert "The file holds tensors only: a (GRU) cannot be described" in said
    found = metrics_of(tmp_path / "run")
    size = (tmp_path / "run" / "compressed.pocc").stat().st_size
    numbers = 3 * 5 * (8 + 5 + 2) + 5 * 10 + 10
    assert found["structure"]["file_bytes"] == size
    assert found["structure"]["file_rate"] == pytest.approx(4 * numbers / size)
    assert found["compressed"]["parameters_before"] == numbers
    after = found["compressed"]["test"]
    for command in ("compress", "evaluate"):
        assert "--trust" in call(command, "run", code=2)
        for way in (["--network", "recurrent_networks:recurrent"], ["--trust"]):
            assert f"{after['nll']:.4f}" in call(command, "run", *way)
    with pytest.raises(PackedFileError, match="without a description"):
        read(tmp_path / "run" / "compressed.pocc")
