"""The folder of a run: files that are whole or not there, their digests, and its one writer."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import torch
from fitting import blobs, pair
from pyroccam import inference
from pyroccam.data import PyroccamError
from pyroccam.inference import CheckpointError
from pyroccam.inference.storage import (
    LOCK,
    WEIGHTS,
    FolderInUse,
    check_digests,
    claimed,
    load_checkpoint,
    read_history,
    read_weights,
    save_checkpoint,
    save_weights,
    seal,
    write_digests,
    write_history,
    write_json,
    write_whole,
)
from pyroccam.inference.storage.digests import FILE, DamagedFile
from pyroccam.inference.storage.lock import FolderLost
from safetensors.torch import load_file, save
from torch import nn

CPU = torch.device("cpu")

# -- files ------------------------------------------------------------------------------------


def test_json_has_no_nan_and_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "deep" / "metrics.json"
    write_json(path, {"a": math.nan, "b": [math.inf, -math.inf, 1.5], "c": torch.ones(2), 3: "x"})
    content = {"a": None, "b": [None, None, 1.5], "c": [1.0, 1.0], "3": "x"}
    assert json.loads(path.read_text()) == content
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    assert [p.name for p in path.parent.iterdir()] == ["metrics.json"]
    assert json.loads(path.read_text()) == content
    save_checkpoint(tmp_path, {"n": 3})
    with pytest.raises(Exception, match="pickle|local"):
        save_checkpoint(tmp_path, {"n": lambda: None})
    assert load_checkpoint(tmp_path, CPU)["n"] == 3


def test_history_is_csv(tmp_path):
    write_history(tmp_path / "h.csv", [{"epoch": 1.0, "loss": 0.5}, {"epoch": 2.0, "loss": 0.25}])
    assert (tmp_path / "h.csv").read_text().split() == ["epoch,loss", "1.0,0.5", "2.0,0.25"]
    write_history(tmp_path / "none.csv", [])
    assert not (tmp_path / "none.csv").exists()
    write_history(tmp_path / "odd.csv", [{"epoch": 1.0, "rate": 0.5}, {"epoch": 2.0, "loss": 0.25}])
    first, second = read_history(tmp_path / "odd.csv")  # what was tracked in one sitting only
    assert [first["rate"], second["loss"]] == [0.5, 0.25]
    assert all(map(math.isnan, (first["loss"], second["rate"])))


def test_weights_of_several_modules(tmp_path):
    a, b = nn.Linear(2, 3), nn.BatchNorm1d(2)
    a.weight.data = a.weight.data.T.contiguous().T  # not contiguous
    save_weights(tmp_path / "w.safetensors", a=a, b=b)
    found = load_file(tmp_path / "w.safetensors")
    assert torch.equal(found["a.weight"], a.weight)
    assert torch.equal(found["b.running_var"], b.running_var)
    for value in (1.0, float("nan")):
        content = save({"model.a": torch.tensor([0.0, value]), "guide.n": torch.tensor(3)})
        (tmp_path / WEIGHTS).write_bytes(content)
        write_digests(tmp_path, [WEIGHTS])
        if value == 1.0:
            assert read_weights(tmp_path, CPU)["model"]["a"].tolist() == [0.0, 1.0]
            continue
        with pytest.raises(CheckpointError, match=r"model\.a has values that are not numbers"):
            read_weights(tmp_path, CPU)


class Evil:
    def __reduce__(self):
        return pytest.fail, ("pickled code was run",)


@pytest.mark.parametrize("spoil", [0.0, 0.1, 0.5, 0.99, {"format": 0}, [1, 2], {"evil": Evil()}])
def test_a_checkpoint_that_is_none_is_refused(spoil, tmp_path):
    assert load_checkpoint(tmp_path, CPU) is None
    save_checkpoint(tmp_path, {"format": 1, "t": torch.randn(2000)})
    path = tmp_path / "checkpoint.pt"
    if isinstance(spoil, float):
        content = path.read_bytes()
        path.write_bytes(content[: int(spoil * len(content))])
    else:
        torch.save(spoil, path)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt"):
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


def test_nothing_is_written_through_a_link_or_into_a_pipe(tmp_path):
    """Of a fixed name beside the file a stranger may have made a link."""
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    for name in ("a.bin.part", "a.bin"):
        (tmp_path / name).symlink_to(theirs)
    write_whole(tmp_path / "a.bin", lambda file: file.write(b"mine"))
    assert theirs.read_text() == "theirs"
    assert not (tmp_path / "a.bin").is_symlink()
    assert (tmp_path / "a.bin").read_bytes() == b"mine"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is no file"):
        write_whole(tmp_path / "pipe", lambda file: file.write(b"mine"))
    assert (tmp_path / "pipe").is_fifo()


# -- digests ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 9000)  # of several pieces
    (tmp_path / "inner" / "b.json").write_text("{}")
    assert check_digests(tmp_path, needed=["a.bin"]) is False
    write_digests(tmp_path, ["inner/b.json", "a.bin"])
    assert check_digests(tmp_path, needed=["a.bin"]) is True
    assert list(json.loads((tmp_path / FILE).read_text())) == ["a.bin", "inner/b.json"]
    return tmp_path


def flipped(at):
    def flip(path):
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)

    return flip


def replaced(change):
    """A way to spoil a path that is removed before."""

    def spoil(path):
        path.unlink()
        change(path)

    return spoil


TEXTS = ["", "{", "[]", '{"a.bin": 3}', "[" * 100_000, "9" * 5000]
LEADING_OUT = ["/dev/zero", "../a.bin", "inner/../a.bin", "", ".", "a\0b", "\ud800"]


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        *(("a.bin", flipped(at), "is not what was written") for at in (0, 2**20 + 5, -1)),
        ("a.bin", lambda p: p.write_bytes(b""), "is not what was written"),
        ("a.bin", lambda p: p.unlink(), "is missing"),
        ("a.bin", replaced(lambda p: p.mkdir()), "is missing, or no file"),
        (FILE, replaced(lambda p: p.symlink_to("nowhere")), "cannot be read"),
        (FILE, replaced(lambda p: p.mkdir()), "cannot be read"),
        (FILE, replaced(os.mkfifo), "cannot be read"),
        (FILE, lambda p: p.write_bytes(b"\xff\xfe"), "cannot be read"),
        *((FILE, lambda p, text=text: p.write_text(text), "") for text in TEXTS),
        *(
            (FILE, lambda p, name=name: p.write_text(json.dumps({name: "0" * 64})), "")
            for name in LEADING_OUT
        ),
    ],
)
def test_a_file_that_is_another_is_found_and_named(folder, name, spoil, said):
    spoil(folder / name)
    with pytest.raises(DamagedFile, match=f"{name}.*{said}") as caught:
        check_digests(folder)
    str(caught.value).encode()  # can be printed


def test_what_was_not_recorded_and_what_is_renewed(folder):
    write_digests(folder, ["inner/b.json"])
    assert check_digests(folder) is True
    with pytest.raises(DamagedFile, match=r"no digest of a\.bin"):
        check_digests(folder, needed=["a.bin"])
    path = folder / "metrics.json"
    path.write_text("{}")
    seal(folder)
    seal(folder, renewed="metrics.json")
    path.write_text('{"a": 1}')
    assert check_digests(folder)
    seal(folder)
    path.write_text("{}")
    with pytest.raises(DamagedFile):
        check_digests(folder)


# -- one writer -------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from pyroccam.inference.storage.lock import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that writes into the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_another_process_is_named_and_kept_out_until_it_is_killed(holder, tmp_path):
    said = rf"by process {holder.pid} on .*, since \d"
    with pytest.raises(FolderInUse, match=said), claimed(tmp_path / "run"):
        pass
    rows = blobs()
    model, guide = pair(rows)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(FolderInUse):
        inference.fit(model, guide, rows, epochs=2, out=tmp_path / "run", progress=False)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with claimed(tmp_path / "run"):
        write_json(tmp_path / "run" / "a.json", {})


def test_the_same_thread_may_claim_again_and_another_may_not(tmp_path):
    refused = []

    def other():
        with pytest.raises(FolderInUse), claimed(tmp_path):
            pass
        refused.append(True)

    with claimed(tmp_path), claimed(tmp_path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert refused
    with claimed(tmp_path):
        pass


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_was_removed_or_replaced_is_not_written_to(tmp_path, again):
    folder = tmp_path / "run"
    with claimed(folder):
        write_json(folder / "a.json", {})
        write_json(folder / "part" / "b.json", {})
        shutil.rmtree(folder)
        if again:  # somebody else's now
            folder.mkdir()
            (folder / LOCK).touch()
        for path in (folder / "a.json", folder / "part" / "b.json"):
            with pytest.raises(FolderLost, match="was removed or replaced"):
                write_json(path, {})
        write_json(tmp_path / "elsewhere.json", {})
    assert {p.name for p in folder.glob("*")} == ({LOCK} if again else set())


@pytest.mark.parametrize("name", [LOCK, ".lock.txt", "figures", "posterior/a.nc"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_folder_that_leads_elsewhere_is_refused(name, kind, tmp_path):
    theirs, run = tmp_path / "theirs", tmp_path / "run"
    theirs.write_text("theirs")
    (run / "posterior").mkdir(parents=True)
    (run / name).symlink_to(theirs) if kind == "link" else os.mkfifo(run / name)
    with pytest.raises(PyroccamError, match=name), claimed(run):
        pass
    assert theirs.read_text() == "theirs"
    (run / name).unlink()
    (tmp_path / "own").symlink_to(run)  # a person's own link to the whole
    with claimed(tmp_path / "own"):
        pass


def test_what_a_killed_process_left_half_written_goes(tmp_path):
    dies = (
        "import os, sys; from pathlib import Path\n"
        "from pyroccam.inference.storage.whole import write_whole\n"
        "os.replace = lambda *a: os.kill(os.getpid(), 9)\n"
        "write_whole(Path(sys.argv[1]) / 'figures' / 'a', lambda file: file.write(b'half'))"
    )
    subprocess.run([sys.executable, "-c", dies, str(tmp_path)], check=False)
    (tmp_path / "mine.part").touch()
    assert len([*(tmp_path / "figures").iterdir()]) == 1
    with claimed(tmp_path / "run"):  # which another fit may hold, and write
        (tmp_path / "run" / ".a.01234567.part").touch()
        with claimed(tmp_path):
            assert not [*(tmp_path / "figures").iterdir()]
        assert (tmp_path / "run" / ".a.01234567.part").is_file()
    assert (tmp_path / "mine.part").is_file()
