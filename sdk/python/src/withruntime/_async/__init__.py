"""The asynchronous client: the source. `_sync` is derived from it by `scripts/derive_sync.py`."""
