import json
import math
import os

import pytest
import torch
from pyroccam.inference.storage.checkpoint import (
    CheckpointError,
    fingerprint,
    load_checkpoint,
    read_history,
    save_checkpoint,
    save_weights,
    versions,
    write_history,
    write_json,
)
from pyroccam.inference.storage.whole import write_whole
from safetensors.torch import load_file
from torch import nn

CPU = torch.device("cpu")


def test_versions_name_what_a_result_depends_on():
    assert versions()["torch"].split("+")[0] == torch.__version__.split("+")[0]
    found = set(versions("nowhere"))  # as pyroccam is, of a checkout on the path
    assert {"python", "pyroccam", "pyro-ppl"} <= found
    assert "nowhere" not in found


def test_fingerprint_sees_values_and_shapes():
    x = torch.arange(6.0)
    assert fingerprint(x) == fingerprint(x.clone())
    changed = x.clone()
    changed[3] += 1e-6
    others = [changed, x.view(2, 3), x.flip(0), x[:5]]
    assert len({fingerprint(x), *map(fingerprint, others)}) == 5
    assert fingerprint(x.view(2, 3).T) == fingerprint(x.view(2, 3).T.contiguous())


def test_json_has_no_nan_or_infinity(tmp_path):
    path = tmp_path / "deep" / "metrics.json"
    write_json(path, {"a": math.nan, "b": [math.inf, -math.inf, 1.5], "c": torch.ones(2), 3: "x"})
    content = json.loads(path.read_text())
    assert content == {"a": None, "b": [None, None, 1.5], "c": [1.0, 1.0], "3": "x"}
    assert [p.name for p in path.parent.iterdir()] == ["metrics.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    save_checkpoint(tmp_path, {"n": 3})
    with pytest.raises(Exception, match="pickle|local"):
        save_checkpoint(tmp_path, {"n": lambda: None})
    assert json.loads(path.read_text()) == {"old": 1}
    assert load_checkpoint(tmp_path, CPU)["n"] == 3


def test_history_is_csv(tmp_path):
    write_history(tmp_path / "h.csv", [{"epoch": 1.0, "loss": 0.5}, {"epoch": 2.0, "loss": 0.25}])
    assert (tmp_path / "h.csv").read_text().split() == ["epoch,loss", "1.0,0.5", "2.0,0.25"]
    write_history(tmp_path / "none.csv", [])
    write_history(tmp_path / "odd.csv", [{"epoch": 1.0, "rate": 0.5}, {"epoch": 2.0, "loss": 0.25}])
    first, second = read_history(tmp_path / "odd.csv")  # what was tracked in one sitting only
    assert [first["rate"], second["loss"]] == [0.5, 0.25]
    assert all(map(math.isnan, (first["loss"], second["rate"])))
    assert not (tmp_path / "none.csv").exists()


def test_weights_of_several_modules(tmp_path):
    a, b = nn.Linear(2, 3), nn.BatchNorm1d(2)
    a.weight.data = a.weight.data.T.contiguous().T  # not contiguous
    save_weights(tmp_path / "w.safetensors", a=a, b=b)
    found = load_file(tmp_path / "w.safetensors")
    assert torch.equal(found["a.weight"], a.weight)
    assert torch.equal(found["b.running_var"], b.running_var)


def test_no_checkpoint_is_no_error(tmp_path):
    assert load_checkpoint(tmp_path, CPU) is None


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.99])
def test_a_checkpoint_cut_short_is_named(keep, tmp_path):
    save_checkpoint(tmp_path, {"format": 1, "t": torch.randn(2000)})
    path = tmp_path / "checkpoint.pt"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(
        CheckpointError, match=r"checkpoint.pt (cannot be read|was cut short).*delete it"
    ):
        load_checkpoint(tmp_path, CPU)


def test_pickled_code_is_never_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("ran",)

    torch.save({"format": 1, "evil": Evil()}, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path, CPU)


@pytest.mark.parametrize("content", [{"format": 0}, [1, 2], {}])
def test_other_formats_are_refused(content, tmp_path):
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path, CPU)


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path):
    """On a full disk the system says neither."""

    def full(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*a\.bin'"):
        write_whole(tmp_path / "a.bin", full)
    with pytest.raises(KeyError):
        write_whole(tmp_path / "a.bin", lambda file: {}["a"])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_through_a_link(tmp_path):
    """Of a fixed name beside the file a stranger may have made a link."""
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    for name in ("a.bin.part", "a.bin"):
        (tmp_path / name).symlink_to(theirs)
    write_whole(tmp_path / "a.bin", lambda file: file.write(b"mine"))
    assert theirs.read_text() == "theirs"
    assert not (tmp_path / "a.bin").is_symlink()
    assert (tmp_path / "a.bin").read_bytes() == b"mine"


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is no file"):
        write_whole(tmp_path / "pipe", lambda file: file.write(b"mine"))
    assert (tmp_path / "pipe").is_fifo()
