# Written by scripts/derive_sync.py from _async/__init__.py: do not edit.
"""The synchronous client, derived from the asynchronous one."""
