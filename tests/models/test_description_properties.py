"""Properties of descriptions: any network comes back, anything else is refused in our words."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroccam.data.errors import PyroccamError, TooLarge
from pyroccam.data.limits import allowing
from pyroccam.models.checks import shown
from pyroccam.models.plain.description import DescriptionError, describe, fill, rebuild, state
from pyroccam.models.plain.untrusted import NotJSON, parsed, plain_words
from random_networks import changed, json_values, networks, refusal
from torch import fx, nn

few = settings(derandomize=True, deadline=None, max_examples=40, database=None)
many = settings(few, max_examples=100)


@few
@given(networks())
def test_any_small_network_comes_back(drawn):
    net, x = drawn
    description = parsed(json.dumps(describe(net)).encode(), "it")
    again = rebuild(description)
    fill(again, description, state(net, description))
    with torch.no_grad():
        assert torch.equal(again(x), net(x))
    assert describe(again)["modules"] == description["modules"]


SOUND = describe(
    nn.Sequential(
        nn.Conv2d(1, 2, 3, padding="same"), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8, 3), nn.LayerNorm(3), nn.Unflatten(1, (3, 1)), nn.Upsample(scale_factor=2.0),
    )
)  # fmt: skip


@many
@given(changed(SOUND))
def test_a_changed_description_is_rebuilt_or_refused(description):
    def call():
        with allowing("10MB"):
            assert isinstance(rebuild(description), fx.GraphModule)

    refusal(call, DescriptionError, TooLarge)


@many
@given(json_values)
def test_other_data_are_no_description(value):
    with pytest.raises(DescriptionError):
        rebuild(value)


@many
@given(json_values)
def test_json_is_read_as_it_was_written(value):
    assert parsed(json.dumps(value).encode(), "it") == value


@many
@given(st.binary() | st.text(alphabet='[]{}",:0123456789.eE-+ntfNI\\ud', max_size=60))
def test_any_bytes_are_json_or_refused(text):
    text = text.encode() if isinstance(text, str) else text
    said = refusal(lambda: parsed(text, "a.json"), NotJSON)
    if said:
        assert said.startswith("a.json is no sound JSON: ")
    else:
        found = parsed(text, "a.json")
        assert parsed(json.dumps(found, allow_nan=False).encode(), "it") == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"NaN", "NaN is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b"1e999", "too large"),
        (b"1" * 5000, "too large"),
        (b"[" * 10**5, "too deeply"),
        (b'{"a":1,"a":2}', "'a' stands twice"),
        (b'["\\ud800"]', "no text"),
        (b"\xff", "no text"),
        (b"", "Expecting value"),
    ],
)
def test_what_is_more_than_json(text, words):
    with pytest.raises(NotJSON, match=f"it is no sound JSON: .*{words}"):
        parsed(text, "it")


def test_a_long_text_is_asked_for():
    with allowing("1MB"), pytest.raises(TooLarge, match="it asks for"):
        parsed(b" " * 40_000, "it")


@given(json_values | st.text())
@many
def test_whatever_is_shown_can_be_printed_and_is_short(value):
    assert len(shown(value)) < 1000
    assert shown(value).isprintable()
    shown(value).encode()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("x"), "'x' is missing"),
        (KeyError(), "'' is missing"),
        (RecursionError("maximum"), "it is nested too deeply"),
        (MemoryError(), "it needs more memory than there is"),
        (TypeError("'NoneType' object"), "a part of it is of another kind than it must be"),
        (ValueError(), "a part of it is of another kind than it must be"),
        (RuntimeError("a\nb"), "a"),
        (ValueError("int() with base 10"), "a part of it is of another kind than it must be"),
        (RuntimeError("x" * 999), "x" * 200 + "..."),
        (PyroccamError("x"), "x"),
        (OSError(13, "Permission denied"), "Permission denied"),
    ],
)
def test_errors_of_others_in_plain_words(error, said):
    assert plain_words(error) == said
