"""Digests of the files of a folder."""

import hashlib
import json
import os

import pytest
import torch
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.storage import digests
from pyroccam.inference.storage.checkpoint import WEIGHTS, CheckpointError, read_weights, seal
from pyroccam.inference.storage.digests import FILE, DamagedFile, check_digests, write_digests
from safetensors.torch import save


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 9000)  # of several pieces
    (tmp_path / "inner" / "b.json").write_text("{}")
    write_digests(tmp_path, ["inner/b.json", "a.bin"])
    return tmp_path


def test_what_was_written_is_found_again(folder):
    content = (folder / "a.bin").read_bytes()
    assert (
        digests.digest_of(folder / "a.bin") == hashlib.blake2b(content, digest_size=32).hexdigest()
    )
    assert check_digests(folder, needed=["a.bin"]) is True
    assert list(json.loads((folder / FILE).read_text())) == ["a.bin", "inner/b.json"]
    assert sorted(p.name for p in folder.iterdir()) == ["a.bin", FILE, "inner"]


def test_a_folder_without_digests_is_told_apart(tmp_path):
    assert check_digests(tmp_path, needed=["a.bin"]) is False


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def replaced(change):
    """A way to spoil a path that is removed before."""

    def spoil(path):
        path.unlink()
        change(path)

    return spoil


CHANGED = r"a\.bin is not what was written"


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        *[
            ("a.bin", lambda p, at=at: flip(p, at), f"{CHANGED}; try: copy")
            for at in (0, 2**20 + 5, -1)
        ],
        ("a.bin", lambda p: p.write_bytes(b""), CHANGED),
        ("a.bin", lambda p: p.unlink(), "a.bin is missing"),
        ("a.bin", replaced(lambda p: p.mkdir()), "a.bin is missing, or no file"),
        (FILE, replaced(lambda p: p.symlink_to("nowhere")), f"{FILE} cannot be read"),
        (FILE, replaced(lambda p: p.mkdir()), f"{FILE} cannot be read"),
    ],
)
def test_a_file_that_is_another_is_found_and_named(folder, name, spoil, message):
    spoil(folder / name)
    with pytest.raises(DamagedFile, match=message):
        check_digests(folder)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"a.bin": 3}', '{"a.bin": null}', "[" * 100_000, b"\xff\xfe", "9" * 5000],
)
def test_digests_that_cannot_be_read(folder, text):
    (folder / FILE).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DamagedFile, match=FILE) as caught:
        check_digests(folder)
    assert isinstance(caught.value, PyroccamError)


LEADING_OUT = ["/dev/zero", "../a.bin", "inner/../a.bin", "", ".", "a\0b", "\ud800"]


@pytest.mark.parametrize("name", LEADING_OUT, ids=ascii)
def test_no_name_leads_out_of_the_folder(folder, name):
    (folder / FILE).write_text(json.dumps({name: "0" * 64}))
    with pytest.raises(DamagedFile) as caught:
        check_digests(folder)
    str(caught.value).encode()  # can be printed


def test_a_file_that_was_not_recorded_is_missed_if_needed(folder):
    write_digests(folder, ["inner/b.json"])
    assert check_digests(folder) is True
    with pytest.raises(DamagedFile, match=r"no digest of a\.bin"):
        check_digests(folder, needed=["a.bin"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all files")
def test_a_file_without_permission(folder):
    (folder / "a.bin").chmod(0)
    with pytest.raises(DamagedFile, match=r"a\.bin cannot be read"):
        check_digests(folder)


def test_weights_that_are_not_numbers_are_refused(tmp_path):
    for value in (1.0, float("nan")):
        content = save({"model.a": torch.tensor([0.0, value]), "guide.n": torch.tensor(3)})
        (tmp_path / WEIGHTS).write_bytes(content)
        write_digests(tmp_path, [WEIGHTS])
        if value == 1.0:
            read = read_weights(tmp_path, torch.device("cpu"))
            assert read["model"]["a"].tolist() == [0.0, 1.0]
            continue
        with pytest.raises(CheckpointError, match=r"model\.a has values that are not numbers"):
            read_weights(tmp_path, torch.device("cpu"))


def test_a_pipe_holds_no_digests(folder):
    (folder / digests.FILE).unlink(missing_ok=True)
    os.mkfifo(folder / digests.FILE)
    with pytest.raises(DamagedFile, match="cannot be read"):
        check_digests(folder)


def test_a_file_that_is_renewed_is_good_at_every_moment(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text("{}")
    seal(tmp_path)
    seal(tmp_path, renewed="metrics.json")
    assert check_digests(tmp_path)
    path.write_text('{"a": 1}')
    assert check_digests(tmp_path)
    seal(tmp_path)
    path.write_text("{}")
    with pytest.raises(DamagedFile):
        check_digests(tmp_path)
