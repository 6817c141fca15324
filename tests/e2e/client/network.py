"""Network rules by the public client: set at a create, read, replaced, switched off and on. What they let through is
shown elsewhere (the suite `egress`), against places of our own."""

import datetime

import withruntime as w
from support import box, check, main, rt

OPEN = {"internet": True, "allow": [], "deny": [], "connect": []}


def rules(network):
    return {name: network[name] for name in OPEN}


@check
def a_sandbox_that_says_nothing_is_open():
    with box() as s:
        network = s.network.get()
        assert rules(network) == OPEN, network
        assert network["sandboxId"] == s.id and network["version"] == 1, network
        assert network["enforced"] is True and network["enforcedVersion"] == 1, network
        assert network["updatedAt"] is None and network["connectAllowed"] is True, network
        assert 80 in network["ports"] and 25 in network["forbiddenPorts"], network
        assert s.exec("echo $HTTP_PROXY $https_proxy $NODE_USE_ENV_PROXY").stdout == (
            "http://127.0.0.1:10800 http://127.0.0.1:10800 1\n")
        assert s.exec(["sudo", "-n", "printenv", "http_proxy"]).stdout == "http://127.0.0.1:10800\n"


@check
def rules_of_a_create_are_read_back():
    with box(network={"internet": False}) as s:
        assert rules(s.network.get()) == {**OPEN, "internet": False}
        assert s.exec("env | grep -ic proxy").stdout == "0\n"
    with box(network={"internet": False, "allow": ["PyPI.org", "*.example.com"], "connect": ["db.example.com:5432"]}) as s:
        assert rules(s.network.get()) == {
            "internet": True, "allow": ["pypi.org", "*.example.com"], "deny": [], "connect": ["db.example.com:5432"]}


@check
def set_replaces_everything():
    with box() as s:
        first = s.network.set(internet=True, allow=["a.example.com"], deny=["192.0.2.0/24"])
        assert rules(first) == {**OPEN, "allow": ["a.example.com"], "deny": ["192.0.2.0/24"]}, first
        assert first["enforced"] is True and first["version"] == 2, first
        datetime.datetime.fromisoformat(first["updatedAt"].replace("Z", "+00:00"))
        second = s.network.set(internet=True, deny=["b.example.com"])
        assert rules(second) == {**OPEN, "deny": ["b.example.com"]} and second["version"] == 3, second
        assert rules(s.network.get()) == rules(second)


@check
def off_and_on():
    with box() as s:
        assert rules(s.network.off()) == {**OPEN, "internet": False}
        assert s.exec("echo [$http_proxy]").stdout == "[]\n"
        refused = s.exec("curl -s -i -x http://127.0.0.1:10800 http://a.example.com/")
        assert refused.stdout.startswith("HTTP/1.1 403") and "internet-off" in refused.stdout, refused
        assert rules(s.network.on()) == OPEN
        assert s.exec("echo [$http_proxy]").stdout == "[http://127.0.0.1:10800]\n"


@check
def wrong_rules_are_named():
    with box() as s:
        for wrong in ({"allow": ["https://a.example.com"]}, {"deny": ["*"]}, {"connect": ["a.example.com"]}):
            try:
                s.network.set(internet=True, **wrong)
            except w.RuntimeError as error:
                assert (error.status, error.code) == (400, "invalid_request"), error
                assert next(iter(wrong)) in str(error), error
            else:
                raise AssertionError(f"{wrong} was taken")
        assert rules(s.network.get()) == OPEN


@check
def decisions_are_listed():
    with box(network={"internet": True, "allow": ["a.example.com"]}) as s:
        s.exec("curl -s http://169.254.169.254/latest; curl -s http://b.example.com/")
        page = rt.request("GET", f"/v1/sandboxes/{s.id}/network/decisions")
        assert [one["reason"] for one in page["data"]] == ["rule-not-allowed"] * 2, page
        assert [one["host"] for one in page["data"]] == ["b.example.com", "169.254.169.254"], page
        assert page["nextCursor"] is None and page["total"] == 2, page


if __name__ == "__main__":
    main()
