"""The module that can be copied: alone in a folder, without pyroccam and constriction.

That it reads what ``packing.read`` reads is held by the tests of packed files (``both_readers``).
"""

import subprocess
import sys
from pathlib import Path

import plain
import pytest
import torch
from pyroccam.inference.coding import decode_pocc
from pyroccam.inference.files.packed import write
from pyroccam.inference.rounding.quantise import Codebook
from pyroccam.models.plain.description import describe, state
from safetensors.torch import load_file
from torch import nn

ALONE = """
import runpy, sys
for name in ("pyroccam", "constriction", "safetensors"):
    sys.modules[name] = None  # importing it fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_alone(tmp_path, *arguments):
    copied = tmp_path / "alone.py"
    copied.write_bytes(Path(decode_pocc.__file__).read_bytes())
    command = [sys.executable, "-c", ALONE, copied, *arguments]
    return subprocess.run([str(one) for one in command], capture_output=True, text=True, timeout=90)


def test_a_copy_of_it_writes_the_tensors(tmp_path):
    net, _ = plain.trained("skips")
    write(net, tmp_path / "net.pocc", bits=Codebook(8))
    expected = state(net, describe(net))
    done = run_alone(tmp_path, tmp_path / "net.pocc")
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "net.safetensors") in done.stdout
    tensors = decode_pocc.decode((tmp_path / "net.pocc").read_bytes())
    found = load_file(tmp_path / "net.safetensors")
    assert found.keys() == tensors.keys() >= expected.keys()
    assert {"stages.0.0.weight", "stages.2.0.weight", "index", "gain"} <= found.keys()
    assert torch.equal(found["stages.0.0.weight"], found["stages.2.0.weight"])
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_state_dict_and_errors(tmp_path):
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval()
    write(net, tmp_path / "net.pocc")
    decode_pocc.save(decode_pocc.decode((tmp_path / "net.pocc").read_bytes()), tmp_path / "net.pt")
    again = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    again.load_state_dict(torch.load(tmp_path / "net.pt"))
    assert torch.equal(again.eval()(torch.ones(1, 3)), net(torch.ones(1, 3)))
    content = (tmp_path / "net.pocc").read_bytes()
    for changed, said in (
        (b"", "no packed network"),
        (b"POcc\3" + content[5:], "version 3; this reads versions 1 to 2"),
        (content[:-1] + b"x", "damaged or cut off"),
    ):
        with pytest.raises(ValueError, match=said):
            decode_pocc.decode(changed)
    (tmp_path / "cut.pocc").write_bytes(content[:-3])
    done = run_alone(tmp_path, tmp_path / "cut.pocc")
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        == f"{tmp_path / 'cut.pocc'} cannot be read: the file is damaged or cut off"
    )
