"""The script that measures on a GPU, run without one."""

import re
from pathlib import Path

import bench_gpu
import pytest
from click.testing import CliRunner


@pytest.mark.parametrize("part", bench_gpu.PARTS)
def test_every_part_makes_steps_that_run(part):
    """One case of each method; what is compiled or captured is not run."""
    cases = {case.method: case for case in bench_gpu.PARTS[part](bench_gpu.TINY, "cpu")}
    for method, case in cases.items():
        if "compiled" not in method and "graph" not in method:
            case.make()()


def test_a_case_that_fails_does_not_end_the_run(monkeypatch, tmp_path):
    def cases(sizes, device):
        yield bench_gpu.Case("a", "1", "fails", lambda: 1 / 0)
        yield bench_gpu.Case("b", "2", "runs", lambda: lambda: None)

    monkeypatch.setattr(bench_gpu, "PARTS", {"losses": cases})
    out = tmp_path / "out.md"
    result = CliRunner().invoke(bench_gpu.main, ["--device", "cpu", "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0
    text = Path(out).read_text(encoding="utf-8")
    assert "| losses | a | 1 | fails | ZeroDivisionError: division by zero | |" in text
    assert re.search(r"^\| losses \| b \| 2 \| runs \| \d+\.\d{3} \|  \|$", text, re.MULTILINE)
    assert text == result.output


def test_what_there_is_no_time_for_is_counted(monkeypatch, tmp_path):
    command = ["--device", "cpu", "--tiny", "--part", "sorters", "--max-time", "0", "--out", str(tmp_path / "out.md")]
    result = CliRunner().invoke(bench_gpu.main, command, catch_exceptions=False)
    assert result.output.endswith("| sorters | 12 more | | | no time |  |\n")
