"""What a plain `pip install` brings: every module, the type marker and the shipped sorters."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import sodeep

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("setuptools", minversion="77")
    out = tmp_path_factory.mktemp("wheel")
    code = f"from setuptools import build_meta; print(build_meta.build_wheel({str(out)!r}))"
    source = tmp_path_factory.mktemp("source") / "sodeep"  # a copy: building leaves build/ and egg-info behind
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("not a git checkout")
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(out / done.stdout.split()[-1])


def test_every_module_is_in_the_wheel(wheel):
    package = ROOT / "sodeep"
    modules = {p.relative_to(ROOT).as_posix() for p in package.rglob("*.py")}
    assert modules <= set(wheel.namelist())
    assert {"sodeep/py.typed", "sodeep/cli/layouts.json", "sodeep/cli/losses.json"} <= set(wheel.namelist())


def test_shipped_sorters_are_in_the_wheel(wheel):
    shipped = {f"sodeep/pretrained/{p.name}" for p in (ROOT / "pretrained").glob("*.safetensors")}
    assert shipped <= set(wheel.namelist())
    assert {f"sodeep/pretrained/{card.name}.safetensors" for card in sodeep.list_sorters()} == shipped


def test_wheel_is_small_and_only_the_package(wheel):
    assert Path(wheel.filename).stat().st_size < 5e6
    assert sum(item.file_size for item in wheel.infolist()) < 6e6  # what it takes once installed
    assert {name.split("/")[0] for name in wheel.namelist()} <= {"sodeep", f"sodeep-{sodeep.__version__}.dist-info"}
