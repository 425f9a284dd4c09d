"""Signals that stop what is under way."""

import signal
import threading

import pytest

from sodeep._core.signals import stop_signals

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@pytest.fixture(params=SIGNALS)
def signum(request):
    """A signal whose handler is put back after the test."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def test_the_first_is_noted_and_a_second_does_as_usual(signum):
    usual = []
    signal.signal(signum, lambda *_: usual.append("usual"))
    with stop_signals(interrupt=False) as received:
        signal.raise_signal(signum)
        assert (received, usual) == ([signum], [])
        signal.raise_signal(signum)
    assert (received, usual) == ([signum], ["usual"])


def test_an_interruption_is_raised_each_time_and_noted(signum):
    with stop_signals(interrupt=True) as received:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signum)
    assert received == [signum, signum]
    assert signal.getsignal(signum) == signal.SIG_DFL


@pytest.mark.parametrize("interrupt", [False, True])
def test_signals_that_are_ignored_stay_so(signum, interrupt):
    signal.signal(signum, signal.SIG_IGN)
    with stop_signals(interrupt) as received:
        signal.raise_signal(signum)
    assert received == []


def test_in_a_thread_they_are_left_alone(signum):
    handlers = []

    def look():
        with stop_signals(interrupt=True):
            handlers.append(signal.getsignal(signum))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [signal.SIG_DFL]
