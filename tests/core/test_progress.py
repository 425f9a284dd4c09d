"""Lines of progress: how many, where, and that they never stop the work."""

import io

import pytest

from sodeep._core.progress import Progress, no_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def run(stream, seconds, start=0.0):
    """Work that reports ten times a second."""
    clock = Clock()
    progress = Progress("training", initial=start, stream=stream, clock=clock)
    for tick in range(10 * seconds + 1):
        clock.now = tick / 10
        progress.update(start + (1 - start) * tick / (10 * seconds), lambda: f"tick {tick}")  # noqa: B023
    progress.close()


def test_lines_of_a_log_are_early_and_few():
    stream = io.StringIO()
    run(stream, 3600)
    lines = stream.getvalue().splitlines()
    assert lines[:4] == [
        "training: 0%, about 59:55 left; tick 50",
        "training: 0%, about 59:50 left; tick 100",
        "training: 1%, about 59:40 left; tick 200",
        "training: 1%, about 59:20 left; tick 400",
    ]
    assert len(lines) == 12


def test_work_done_before_is_no_speed():
    stream = io.StringIO()
    run(stream, 100, start=0.5)
    assert stream.getvalue().splitlines()[0] == "training: 52%, about 1:35 left; tick 50"


def test_short_work_says_nothing_in_a_log():
    stream = io.StringIO()
    run(stream, 4)
    assert stream.getvalue() == ""


def test_a_terminal_has_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    run(stream, 1)
    states = stream.getvalue().split("\r\033[K")
    assert states[0] == states[-1] == ""  # cleared
    assert states[1] == "training: 0%; tick 0"
    assert states[2] == "training: 20%, about 0:01 left"[:29]  # a longer line would be wrapped
    assert "\n" not in stream.getvalue()


@pytest.mark.parametrize("stream", [None, io.StringIO()], ids=["no console", "closed"])
def test_a_stream_that_cannot_be_written_stops_nothing(monkeypatch, stream):
    monkeypatch.setattr("sys.stderr", None)
    progress = Progress("training", stream=stream, clock=Clock())
    progress.next = 0.0
    if stream is not None:
        stream.close()
    progress.update(0.5)
    progress.close()
    assert progress.stream is None


def test_the_time_left_is_not_estimated_from_the_first_of_a_slow_start():
    stream, clock = io.StringIO(), Clock()
    progress = Progress("training", estimate_from=0.05, stream=stream, clock=clock)
    for now, fraction in ((30, 0.01), (60, 0.5)):
        clock.now = now
        progress.update(fraction)
    assert stream.getvalue().splitlines() == ["training: 1%", "training: 50%, about 1:00 left"]


def test_no_progress_is_for_that_context_and_not_for_streams_that_are_given(capsys):
    stream = io.StringIO()
    with no_progress():
        clock = Clock()
        silent, given = (Progress("training", stream=where, clock=clock) for where in (None, stream))
        clock.now = 10.0
        for progress in (silent, given):
            progress.update(0.5)
            progress.close()
    assert stream.getvalue() == "training: 50%, about 0:10 left\n"
    assert capsys.readouterr().err == ""
    clock = Clock()
    progress = Progress("training", clock=clock)
    clock.now = 10.0
    progress.update(0.5)
    assert capsys.readouterr().err == "training: 50%, about 0:10 left\n"
