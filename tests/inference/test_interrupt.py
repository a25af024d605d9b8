import os
import signal

import pytest
from pyroccam.inference.interrupt import StopSignal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_flag(number):
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_acts_at_once_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # twice told is told once
        assert stop
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
