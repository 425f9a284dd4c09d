#!/usr/bin/env python3
"""Print pip constraints with the lowest version of every requirement that setup.cfg gives a lower bound for."""

import configparser
import re
from pathlib import Path

config = configparser.ConfigParser()
config.read(Path(__file__).parent.parent / "setup.cfg")
extras = config["options.extras_require"]
requirements = "\n".join(
    [config["options"]["install_requires"], *(extras.get(name, raw=True, fallback="") for name in extras)]
)
for name, version in re.findall(r"^([\w-]+)>=([\d.]+)$", requirements, flags=re.MULTILINE):
    print(f"{name}=={version}")
