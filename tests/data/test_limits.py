"""Errors that say what to do, and the limit on memory."""

import math

import pytest
from pyroccam.data.errors import PyroccamError, TooLarge
from pyroccam.data.limits import DEFAULT, VARIABLE, allowed_bytes, allowing, ask


def test_what_is_allowed_can_be_asked_and_more_is_refused(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    ask(DEFAULT, "it")
    for count in (DEFAULT + 1, math.inf, 10**400):
        with pytest.raises(TooLarge):
            ask(count, "x.npz")


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("8GB", 2**33), ("3 mib", 3 * 2**20), ("1k", 1024)]
)
def test_the_environment_and_a_context_raise_the_limit(monkeypatch, text, size):
    monkeypatch.setenv(VARIABLE, text)
    assert allowed_bytes() == size
    with allowing(5):
        assert allowed_bytes() == 5
        with pytest.raises(TooLarge):
            ask(6, "it")
    assert allowed_bytes() == size


@pytest.mark.parametrize("text", ["0", "-1", "a lot", "1e9", "GB", "9" * 40])
def test_what_is_no_size_is_refused(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(PyroccamError):
        allowed_bytes()
