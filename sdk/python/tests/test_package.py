"""What the package is as a package."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import withruntime


def test_every_name_is_there() -> None:
    for name in withruntime.__all__:
        assert getattr(withruntime, name) is not None
    assert set(withruntime.__all__) <= set(dir(withruntime))
    with pytest.raises(AttributeError):
        _ = withruntime.AsyncNothing


def test_a_program_without_asyncio_does_not_load_it() -> None:
    code = "import sys, withruntime; print([m for m in ('asyncio', 'concurrent.futures') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    "name",
    [
        "Files", "Limits", "Network", "Page", "PortForward", "Process", "Runtime", "Sandbox", "Sandboxes", "Sessions",
        "Snapshots", "Terminal",
    ],
)  # fmt: skip
def test_both_clients_have_the_same_methods_and_every_one_is_documented(name: str) -> None:
    ours, other = getattr(withruntime, name), getattr(withruntime, "Async" + name)
    public = [word for word in dir(ours) if not word.startswith("_")]
    assert public == [word for word in dir(other) if not word.startswith("_")]
    for word in public:
        mine, theirs = inspect.getattr_static(ours, word), inspect.getattr_static(other, word)
        function = getattr(mine, "__func__", getattr(mine, "fget", mine))
        twin = getattr(theirs, "__func__", getattr(theirs, "fget", theirs))
        assert inspect.getdoc(function), f"{name}.{word} has no docstring"
        assert list(inspect.signature(function).parameters) == list(inspect.signature(twin).parameters)
        assert "await" not in str(inspect.getdoc(function)) and "async" not in str(inspect.getdoc(function))
