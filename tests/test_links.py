"""Links that lead elsewhere: each is known here. ``scripts/docs --links`` asks them."""

import re
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]

KNOWN = {
    "https://distributed.dask.org",
    "https://download.pytorch.org/whl/cpu",
    "https://keepachangelog.com",
    "https://kevinmusgrave.github.io/pytorch-metric-learning/",
    "https://pytorch.org/docs/stable/notes/cuda.html",
    "https://semver.org",
}
"""All of them, in the pages, the docstrings and the scripts."""


def addresses():
    """Every address in a text that people read, with the file it stands in."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "pretrained/README.md", ROOT / "CITATION.cff"]
    code = [file for folder in ("sodeep", "examples", "scripts") for file in (ROOT / folder).rglob("*.py")]
    for file in [*pages, *code, ROOT / "scripts/setup"]:
        for address in re.findall(
            r"\b(?:https?|ftp)://[^\s()<>\"'`\\]*|\bwww\.[^\s()<>\"'`]*", file.read_text(encoding="utf-8")
        ):
            yield file.relative_to(ROOT).as_posix(), address


def test_every_link_is_known():
    found = {address.rstrip(".,;") for _, address in addresses() if not address.startswith("https://git-lfs")}
    assert found == KNOWN


def test_links_are_well_formed():
    for address in KNOWN:
        parts = urlsplit(address)
        assert parts.scheme == "https"
        assert re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}", parts.netloc), address
        assert not parts.query
