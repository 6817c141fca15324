"""Where requests go, with which key, through what."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Optional

import pytest

from withruntime import Runtime, RuntimeError, Sandbox
from withruntime._config import choose_origin, choose_proxy, find_key, parse_origin

LOCAL = parse_origin("http://127.0.0.1:8787")


@pytest.mark.parametrize(
    "text, origin",
    [
        ("http://127.0.0.1:8787", "http://127.0.0.1:8787"),
        ("http://LOCALHOST", "http://localhost"),
        ("http://[::1]:80/", "http://[::1]"),
        ("https://run.example.com:443", "https://run.example.com"),
        ("https://run.example.com:8443/", "https://run.example.com:8443"),
        ("http://runtime.internal", "http://runtime.internal"),
    ],
)
def test_origins(text: str, origin: str) -> None:
    assert parse_origin(text).text == origin


@pytest.mark.parametrize(
    "text",
    [
        "http://0.0.0.0:8787",
        "http://10.0.0.5",
        "http://example.com",
        "http://runtime.internal:8080",
        "https://example.com/v1",
        "https://example.com?x=1",
        "https://u:p@example.com",
        "ftp://localhost",
        "localhost:8787",
        "https://host:port",
        "",
    ],
)
def test_what_is_no_origin_or_not_safe_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_origin(text)


def test_the_argument_wins_then_the_environment_then_this_machine(tmp_path: Path) -> None:
    env = {"RUNTIME_API_URL": "http://localhost:1"}
    inside = tmp_path / "environment.json"
    assert choose_origin("http://localhost:2", env).text == "http://localhost:2"
    assert choose_origin(None, env).text == "http://localhost:1"
    assert choose_origin(None, {}, str(inside)).text == "http://127.0.0.1:8787"
    inside.write_text("{}")
    assert choose_origin(None, {}, str(inside)).text == "http://runtime.internal"
    assert choose_origin("https://api.withruntime.com", {}, str(inside)).text == "http://runtime.internal"
    assert choose_origin(None, env, str(inside)).text == "http://localhost:1"


def test_a_key_is_looked_for_with_the_first_call() -> None:
    runtime = Runtime(base_url="http://127.0.0.1:1")
    with pytest.raises(RuntimeError) as told:
        runtime.me()
    assert told.value.code == "missing_api_key" and told.value.hint and told.value.status == 0


@pytest.mark.parametrize("key", ["a b", "a\nb", "clé"])
def test_a_key_that_is_none_is_not_sent(key: str) -> None:
    with pytest.raises(RuntimeError) as told:
        find_key(key, LOCAL, {})
    assert told.value.code == "invalid_request"
    assert key not in str(told.value)


def saved(folder: Path, mode: int = 0o600, key: Optional[str] = None) -> str:
    key = key or "rtcloud_" + "0" * 8 + "-0000-4000-8000-" + "0" * 12 + "_" + "k" * 43
    name = hashlib.sha256(f"https://withruntime.com\n{LOCAL.text}".encode()).hexdigest()
    path = folder / "runtime-cloud" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": 1, "apiOrigin": LOCAL.text, "key": key}))
    path.chmod(mode)
    return key


def test_a_saved_login_is_used_if_nobody_else_could_have_written_it(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    key = saved(tmp_path)
    assert find_key(None, LOCAL, env) == key
    assert find_key(None, LOCAL, {**env, "RUNTIME_API_KEY": "other"}) == "other"
    for wrong in ({"mode": 0o644}, {"key": "rtcloud_short"}):
        saved(tmp_path, **wrong)
        with pytest.raises(RuntimeError):
            find_key(None, LOCAL, env)
    saved(tmp_path)
    path = next((tmp_path / "runtime-cloud").iterdir())
    os.rename(path, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(RuntimeError):
        find_key(None, LOCAL, env)


def test_proxies() -> None:
    remote = parse_origin("https://run.example.com:8443")
    assert choose_proxy(remote, {}) is None
    assert choose_proxy(remote, {"HTTP_PROXY": "http://p:1"}) is None
    found = choose_proxy(remote, {"HTTPS_PROXY": "http://p:1", "https_proxy": "http://us%40er:pw@q:2"})
    assert found is not None and str(found) == "http://q:2"
    assert found.authorization == "Basic dXNAZXI6cHc="
    assert choose_proxy(LOCAL, {"HTTP_PROXY": "p:3128"}) is not None
    for rules in ("*", "example.com", ".example.com", "run.example.com:8443", "other, example.com"):
        assert choose_proxy(remote, {"HTTPS_PROXY": "http://p:1", "NO_PROXY": rules}) is None, rules
    for rules in ("xample.com", "run.example.com:443", "example.org"):
        assert choose_proxy(remote, {"HTTPS_PROXY": "http://p:1", "NO_PROXY": rules}) is not None, rules


def test_a_proxy_of_another_kind_is_refused_without_its_password() -> None:
    with pytest.raises(RuntimeError) as told:
        choose_proxy(LOCAL, {"HTTP_PROXY": "socks5://user:hunter2@p:1"})
    assert told.value.code == "invalid_proxy" and "hunter2" not in str(told.value)


def test_a_member_that_is_not_there_says_why() -> None:
    runtime = Runtime(base_url="http://127.0.0.1:1")
    with pytest.raises(AttributeError, match="does not serve it yet"):
        _ = runtime.volumes
    with pytest.raises(AttributeError, match="called 'sandboxes'"):
        _ = runtime.sandbox
    with pytest.raises(AttributeError, match="Did you mean 'sandboxes'"):
        _ = runtime.sandboxs
    assert not hasattr(runtime, "images")
    sandbox = Sandbox.from_session("rtsess_x", "y", "http://127.0.0.1:1")
    with pytest.raises(AttributeError, match="does not serve it yet"):
        _ = sandbox.previews  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="Sandbox has no 'fork_all'"):
        _ = sandbox.fork_all  # type: ignore[attr-defined]
