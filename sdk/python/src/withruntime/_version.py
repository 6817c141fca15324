"""The version of the package, and of the client that requests name."""

__version__ = "0.35.0"
