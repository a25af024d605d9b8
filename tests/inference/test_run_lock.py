"""One writer for a folder; a folder that goes away is noticed."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.storage.checkpoint import write_json
from pyroccam.inference.storage.lock import LOCK, FolderInUse, FolderLost, claimed

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


def test_another_process_is_named_and_kept_out(holder, tmp_path):
    with (
        pytest.raises(FolderInUse, match=rf"by process {holder.pid}, since \d"),
        claimed(tmp_path / "run"),
    ):
        pass


def test_the_lock_of_a_killed_process_is_no_lock(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with claimed(tmp_path / "run"):
        write_json(tmp_path / "run" / "a.json", {})


def test_the_same_thread_may_claim_again_and_another_may_not(tmp_path):
    refused = []

    def other():
        try:
            with claimed(tmp_path):
                pass
        except FolderInUse as error:
            refused.append(str(error))

    with claimed(tmp_path), claimed(tmp_path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "is being written by process" in refused[0]
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


def test_a_fit_stops_when_its_folder_is_removed(tmp_path):
    spirals = data.load("spirals")
    model = models.LearntDepth.mlp(spirals, width=4, max_depth=1)

    def remove(*pair):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return {}

    with pytest.raises(FolderLost, match="removed or replaced"):
        inference.fit(
            model, guides.CategoricalDepth(model), spirals, epochs=2, out=tmp_path / "run",
            progress=False, track=remove,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_fit_does_not_write_where_another_one_writes(holder, tmp_path):
    spirals = data.load("spirals")
    model = models.LearntDepth.mlp(spirals, width=4, max_depth=1)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    begun = time.monotonic()
    with pytest.raises(FolderInUse):
        inference.fit(
            model, guides.CategoricalDepth(model), spirals, epochs=2, out=tmp_path / "run",
            progress=False,
        )  # fmt: skip
    assert time.monotonic() - begun < 30  # it does not wait for the other one
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("name", [LOCK, ".lock.json", "figures", "posterior/a.nc"])
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
