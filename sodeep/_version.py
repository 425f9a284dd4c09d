"""The version of the package, which files and reports name; it imports nothing."""

__version__ = "0.1.0"
