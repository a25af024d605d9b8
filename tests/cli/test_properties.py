"""Any settings: taken, or refused in words."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroccam.cli import RunRequest
from pyroccam.cli.methods import METHODS
from pyroccam.cli.runs import RunConfig
from pyroccam.data import PyroccamError
from pyroccam.inference.training import Settings

ANY = settings(
    max_examples=100, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from([10**18, -1, 0, 2**63, "[/x]", "nan", "\udcff", "a" * 3000])
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)
of_data = {"data.noise", "data.seed", "data.val_fraction"}
of_methods = {option for method in METHODS.values() for option in method.options}
known = sorted({*Settings.names(), *of_methods, *of_data, "width", "max_depth"} - {"seed"})


def refused(error):
    """In words that a person was meant to read."""
    assert isinstance(error, PyroccamError | OSError), repr(error)


@ANY
@given(
    st.sampled_from(["ldn", "gnj", "dns", "structure", "bayes", "sws"]),
    st.dictionaries(st.sampled_from(known) | st.text(min_size=1, max_size=6), values, max_size=3),
)
def test_any_settings(method, chosen):
    try:
        config, dataset = RunConfig.resolve(RunRequest(method, "spirals", set_=chosen))
    except Exception as error:
        refused(error)
    else:
        assert dataset.N > 1
        assert {**config.options, **config.network_options, **config.settings}.keys() >= {
            name for name in chosen if not name.startswith("data.")
        }
