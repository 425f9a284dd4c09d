"""Shared foundations: checks of arguments, labels and lists; sorting, precision, files."""
