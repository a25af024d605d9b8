"""Digests of the files of a folder."""

import hashlib
import json
import os

import pytest
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.storage.digests import (
    FILE,
    DamagedFile,
    check_digests,
    digest_of,
    write_digests,
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 9000)  # of several pieces
    (tmp_path / "inner" / "b.json").write_text("{}")
    write_digests(tmp_path, ["inner/b.json", "a.bin"])
    return tmp_path


def test_what_was_written_is_found_again(folder):
    content = (folder / "a.bin").read_bytes()
    assert digest_of(folder / "a.bin") == hashlib.blake2b(content, digest_size=32).hexdigest()
    assert check_digests(folder, needed=["a.bin"]) is True
    assert list(json.loads((folder / FILE).read_text())) == ["a.bin", "inner/b.json"]
    assert sorted(p.name for p in folder.iterdir()) == ["a.bin", FILE, "inner"]


def test_a_folder_without_digests_is_told_apart(tmp_path):
    assert check_digests(tmp_path, needed=["a.bin"]) is False


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("at", [0, 2**20 + 5, -1])
def test_one_flipped_bit_is_found_and_the_file_named(folder, at):
    flip(folder / "a.bin", at)
    with pytest.raises(DamagedFile, match=r"a\.bin is not what was written; try: copy"):
        check_digests(folder)


def test_a_file_that_is_cut_or_missing_or_a_directory(folder):
    (folder / "a.bin").write_bytes(b"")
    with pytest.raises(DamagedFile, match="a.bin is not what was written"):
        check_digests(folder)
    (folder / "a.bin").unlink()
    with pytest.raises(DamagedFile, match="a.bin is missing"):
        check_digests(folder)
    (folder / "a.bin").mkdir()
    with pytest.raises(DamagedFile, match="a.bin is missing, or no file"):
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


def test_digests_that_are_a_directory_or_a_dangling_link(folder):
    (folder / FILE).unlink()
    (folder / FILE).symlink_to("nowhere")
    with pytest.raises(DamagedFile, match=f"{FILE} cannot be read"):
        check_digests(folder)
    (folder / FILE).unlink()
    (folder / FILE).mkdir()
    with pytest.raises(DamagedFile, match=f"{FILE} cannot be read"):
        check_digests(folder)


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
