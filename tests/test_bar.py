"""The progress bar."""

import io

from sodeep._bar import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_cursor_stays():
    terminal = Terminal()
    with progress_bar(terminal, iterable=range(3), label="counting") as bar:
        assert list(bar) == [0, 1, 2]
    shown = terminal.getvalue()
    assert "\033[?25l" not in shown
    assert "counting  [####################################]  100%" in shown
