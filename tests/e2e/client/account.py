"""Runtime: who am I, limits, any route, the envelope; and that what is not built says so."""

import uuid

import withruntime as w
from support import KEY, check, fails, main, raw, rt, runtime


@check
def making_a_runtime_calls_nothing():
    runtime(api_key="anything", base_url="http://127.0.0.1:9").close()


@check
def me_tells_who_the_key_is():
    me = rt.me()
    assert {"orgId", "principalId", "credentialId", "apiVersion", "orgName", "role"} <= set(me), me
    assert me["credentialId"] and me["orgId"]
    assert KEY not in str(me) and KEY.split("_", 2)[2] not in str(me)


@check
def limits_are_told():
    limits = rt.limits.get()
    assert isinstance(limits, dict) and limits


@check
def request_reaches_any_route():
    made = rt.request("POST", "/v1/sandboxes", body={"vcpu": 1, "memoryMiB": 512})
    assert rt.request("GET", f"/v1/sandboxes/{made['id']}")["id"] == made["id"]
    assert rt.request("DELETE", f"/v1/sandboxes/{made['id']}")["status"] == "deleted"


@check
def a_runtime_closes_with_its_block():
    with runtime() as one:
        assert one.me()["orgId"]


@check
def no_key_and_wrong_keys_are_refused_before_anything_else():
    for key in (None, "bad_key", "rtcloud_00000000-0000-0000-0000-000000000000_" + "a" * 43, KEY[:-1], KEY + "x"):
        raw("GET", "/v1/me", key=key).refused(401, "unauthorized")
        raw("POST", "/v1/sandboxes", {"bogus": 1}, key=key).refused(401, "unauthorized")
        raw("GET", "/v1/nope", key=key).refused(401, "unauthorized")
    raw("GET", "/v1/me", key=None, Authorization="Basic " + KEY).refused(401, "unauthorized")
    fails(w.AuthenticationError, "unauthorized", lambda: runtime(api_key="bad_key").me(), 401)


@check
def health_and_the_document_need_no_key():
    assert raw("GET", "/health", key=None).status == 200
    document = raw("GET", "/v1/openapi.json", key=None).ok()
    assert document["openapi"].startswith("3."), document["openapi"]
    assert "/v1/sandboxes" in document["paths"], sorted(document["paths"])[:20]


@check
def unknown_routes_verbs_and_methods_are_told_apart():
    raw("GET", "/v1/nope").refused(404, "route_not_found")
    raw("DELETE", "/v1/sandboxes").refused(405, "method_not_allowed")
    raw("GET", f"/v1/sandboxes/{uuid.uuid4()}").refused(404, "not_found")
    raw("POST", f"/v1/sandboxes/{uuid.uuid4()}:exec", {"command": "true"}).refused(404, "not_found")
    raw("POST", f"/v1/sandboxes/{uuid.uuid4()}:dance", {}).refused(404, "route_not_found")
    assert raw("GET", "/v1/sandboxes/not-a-uuid").status in (400, 404)


@check
def every_answer_has_its_own_request_id():
    ids = {raw("GET", "/v1/me").headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20 and all(one.startswith("req_") and one == one.lower() for one in ids), ids


@check
def an_empty_body_is_an_empty_object():
    made = raw("POST", "/v1/sandboxes", None, Prefer="wait=60").ok()
    assert made["state"] == "running"
    assert raw("POST", f"/v1/sandboxes/{made['id']}:stop", b"", Prefer="wait=60").ok()["state"] == "stopped"


# One of each line of the contract that is not served yet, by the client's own call: it must know that the answer is
# "not here", and never that the thing was not found.
def not_built_calls():
    s = rt.sandboxes.create(vcpu=1, memory_mib=512)
    yield "switch_image", lambda: s.switch_image("python")
    yield "usage", lambda: rt.usage()
    yield "usage_requests", lambda: rt.usage_requests()
    yield "usage_export", lambda: rt.usage_export("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    yield "feedback", lambda: rt.feedback.list()
    yield "account", lambda: rt.account.emails()
    yield "images", lambda: rt.images.list().to_list()
    yield "volumes", lambda: rt.volumes.list().to_list()
    yield "jobs", lambda: rt.jobs.list().to_list()
    yield "agents", lambda: rt.agents.list().to_list()
    yield "apps", lambda: rt.apps.list().to_list()
    yield "plans", lambda: rt.plans.list()
    yield "ports", lambda: rt.ports.list()
    yield "audit", lambda: rt.audit.list()
    yield "secrets", lambda: rt.secrets.list()
    yield "webhooks", lambda: rt.webhooks.list()
    yield "otel", lambda: rt.otel.list()
    yield "mcp", lambda: rt.mcp.catalog()
    yield "referrals", lambda: rt.referrals.get()
    yield "reservations", lambda: rt.reservations.list()
    yield "sso", lambda: rt.sso.get()
    yield "switching", lambda: rt.switching.get()
    yield "metrics", lambda: rt.request("GET", f"/v1/sandboxes/{s.id}/metrics?range=1h")
    yield "mounts", lambda: rt.request("GET", f"/v1/sandboxes/{s.id}/mounts")
    yield "tailscale", lambda: rt.request("GET", f"/v1/sandboxes/{s.id}/tailscale")
    yield "interpreter", lambda: rt.request("POST", f"/v1/sandboxes/{s.id}/interpreter:run", body={"code": "1"})
    yield "contexts", lambda: rt.request("GET", f"/v1/sandboxes/{s.id}/interpreter/contexts")
    yield "desktop", lambda: rt.request("POST", f"/v1/sandboxes/{s.id}/desktop:start", body={})
    yield "browser", lambda: rt.request("GET", f"/v1/sandboxes/{s.id}/browser")
    yield "mcp of a sandbox", lambda: rt.request("GET", f"/v1/sandboxes/{s.id}/mcp")
    yield "file links", lambda: s.files.download_url("/workspace/a")
    yield "volumes of a create", lambda: rt.sandboxes.create(
        volumes=[{"volume_id": str(uuid.uuid4()), "path": "/workspace/v"}])


@check
def what_is_not_built_says_so():
    wrong = []
    for name, call in not_built_calls():
        try:
            wrong.append(f"{name}: answered {call()!r}")
        except w.RuntimeError as error:
            known = error.code == "unavailable" or error.code.endswith("_unavailable")
            if not (known and error.status == 501 and error.hint):
                wrong.append(f"{name}: {error.status} {error.code} (hint {error.hint!r}): {error}")
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    main()
