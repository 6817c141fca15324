"""Commands: exec in all its forms, and its stream."""

import base64
import time

import withruntime as w
from support import box, check, eventually, events, fails, in_enough_time, main, raw, rt, together, unique


@check
def a_shell_command_and_its_result():
    s = box(env={"E1": "box", "E2": "box"})
    r = s.exec("echo $E1 $E2; echo err >&2; exit 3", env={"E2": "cmd"})
    assert (r.exit_code, r.stdout, r.stderr, r.timed_out) == (3, "box cmd\n", "err\n", False)
    assert r.process_id and isinstance(r.duration_ms, int) and not r.stdout_truncated and not r.stderr_truncated
    assert r.out_of_memory is None and not r.replayed
    assert s.exec("[[ a == a ]] && echo bash").stdout == "bash\n"


@check
def an_argv_sees_no_shell():
    s = box()
    assert s.exec(["printf", "%s|", "a b", "$HOME", ""]).stdout == "a b|$HOME||"
    r = s.exec(["no-such-program"])
    assert r.exit_code == 127, r
    r = s.exec(["/etc/passwd"])
    assert r.exit_code == 126, r
    assert len(s.exec(["echo"] + ["x" * 16000] * 100).stdout) == 65536


@check
def the_place_a_command_runs_in():
    s = box()
    out = s.exec("pwd; id -un; id -gn; id -u; echo $HOME $USER $LOGNAME $LANG; umask").stdout.split()
    assert out == ["/workspace", "runtime", "runtime", "1000", "/workspace", "runtime", "runtime", "C.UTF-8", "0022"], out
    path = s.exec("echo $PATH").stdout.strip()
    assert path.startswith("/workspace/.local/bin:/usr/local/bin:/usr/bin:/bin"), path
    assert s.exec("pwd", cwd="/tmp").stdout == "/tmp\n"
    e = fails(w.RuntimeError, "cwd_not_found", lambda: s.exec("pwd", cwd="/no/such"))
    assert e.status in (400, 404)
    fails(w.InvalidRequestError, "invalid_request", lambda: s.exec("pwd", cwd="relative"), 400)
    leak = s.exec("env").stdout
    assert "RUNTIME_API_KEY" not in leak and "rtcloud_" not in leak


@check
def root_and_sudo():
    s = box()
    assert s.exec("id -u; whoami", user="root").stdout == "0\nroot\n"
    assert s.exec("sudo -n id -u").stdout == "0\n"
    assert s.exec("echo in | sudo -n cat; sudo -n sh -c 'exit 7'").exit_code == 7
    assert s.exec("sudo -n -u runtime id -un").stdout == "runtime\n"
    assert s.exec("sudo -n -E -H env | grep -c ^MINE=", env={"MINE": "x"}).stdout == "1\n"
    s.exec("echo x > /root/f && chmod 600 /root/f", user="root", check=True)
    assert s.exec("cat /root/f").exit_code == 1


@check
def stdin_is_given_and_closed():
    s = box()
    assert s.exec("cat", stdin="héé").stdout == "héé"
    assert s.exec("od -An -tx1", stdin=b"\x00\xff").stdout.split() == ["00", "ff"]
    assert s.exec("cat", stdin="").stdout == "" and s.exec("cat").stdout == ""
    assert s.exec("wc -c", stdin="x" * 1_000_000).stdout.strip() == "1000000"
    assert s.exec("true", stdin="x" * 1_000_000).exit_code == 0
    one = base64.b64encode(b"\x01" * 700_000).decode()
    answer = raw("POST", f"/v1/sandboxes/{s.id}:exec", {"command": "wc -c", "stdinBase64": one}).ok()
    assert answer["stdout"].strip() == "700000"


@check
def large_commands_and_environments_fit():
    s = box()
    assert s.exec("true " + "x" * 120_000).exit_code == 0
    assert s.exec("echo ${#V0}", env={f"V{n}": "x" * 1900 for n in range(60)}).stdout == "1900\n"
    assert s.exec("echo ${#V}", env={"V": "x" * 32_000}).stdout == "32000\n"
    assert s.exec("echo $V", env={"V": "a=b c\n'\"é"}).stdout == "a=b c '\"é\n"


@check
def every_wrong_field_of_an_exec_is_named():
    s = box()
    for body, paths in (
        ({}, None),
        ({"command": "a", "argv": ["a"]}, None),
        ({"argv": []}, {"argv"}),
        ({"command": "a", "timeoutMs": 0, "user": "admin", "bogus": 1, "cwd": "x"}, {"timeoutMs", "user", "bogus", "cwd"}),
        ({"command": "a", "timeoutMs": 86_400_001, "stream": "yes"}, {"timeoutMs", "stream"}),
        ({"command": "a", "stdinBase64": "***"}, {"stdinBase64"}),
        ({"command": 1}, {"command"}),
        ({"command": "a\u0000b"}, {"command"}),
    ):
        error = raw("POST", f"/v1/sandboxes/{s.id}:exec", body).refused(400, "invalid_request")
        named = {issue["path"].split(".")[0].split("[")[0] for issue in error["details"]["issues"]}
        assert paths is None or named == paths, (body, named)
    raw("POST", f"/v1/sandboxes/{s.id}:exec", {"command": "a", "env": {"1": "x"}}).refused(400, "invalid_env")


@check
def signals_are_negative_codes():
    s = box()
    assert s.exec("kill -9 $$").exit_code == -9 and s.exec("kill -15 $$").exit_code == -15
    assert s.exec("exit 255").exit_code == 255 and s.exec("exit 256").exit_code == 0


@check
def a_timeout_is_a_result_and_takes_the_tree():
    s = box()

    def attempt(time_ms):
        start = time.monotonic()
        r = s.exec("echo part; (setsid sleep 4321 &) ; sleep 4321", timeout_ms=time_ms)
        assert r.timed_out and r.exit_code == -9 and time.monotonic() - start > 0.9 * time_ms / 1000
        eventually(lambda: s.exec("pgrep -fc 'sleep 432[1]'").stdout == "0\n", "no sleeper")
        return r.stdout == "part\n"

    in_enough_time(attempt)
    r = s.exec("trap '' TERM INT HUP; echo in; while :; do sleep 1; done", timeout_ms=1000)
    assert r.timed_out and r.exit_code == -9


@check
def what_a_command_started_dies_with_it():
    s = box()
    r = s.exec("nohup sleep 4321 & setsid sleep 4321 & (setsid nohup sh -c 'sleep 4321; true' &) ; echo done")
    assert r.exit_code == 0 and r.stdout == "done\n"
    eventually(lambda: s.exec("pgrep -fc 'sleep 432[1]'").stdout == "0\n", "no sleeper")
    # A daemon that has left by two forks and closed everything as well.
    daemon = ("import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
              "os.closerange(0, 64)\nopen('/workspace/daemon', 'w').write(str(os.getpid()))\nimport time\ntime.sleep(4321)\n")
    s.files.write("/workspace/d.py", daemon)
    assert s.exec("python3 d.py; while [ ! -s daemon ]; do sleep 0.05; done").exit_code == 0
    eventually(lambda: s.exec("kill -0 $(cat daemon)").exit_code != 0, "the daemon is gone")


@check
def an_early_exit_does_not_wait_for_a_held_pipe():
    s = box()
    assert s.exec("sleep 4321 & echo out").stdout == "out\n"


@check
def output_is_cut_at_the_limit_and_says_so():
    s = box()
    r = s.exec("head -c 100000 /dev/zero | tr '\\0' a; head -c 65536 /dev/zero | tr '\\0' b >&2")
    assert len(r.stdout) == 65536 and r.stdout_truncated and len(r.stderr) == 65536 and not r.stderr_truncated
    answer = raw("POST", f"/v1/sandboxes/{s.id}:exec",
                 {"command": "head -c 3000000 /dev/zero | tr '\\0' a", "timeoutMs": 60_001}).ok()
    assert len(answer["stdout"]) == 1_048_576 and answer["stdoutTruncated"]
    r = s.exec("head -c 300000000 /dev/zero; echo end >&2")
    assert r.exit_code == 0 and r.stderr == "end\n" and r.stdout_truncated


@check
def bytes_that_are_no_text_become_replacement_characters():
    s = box()
    assert s.exec("printf 'a\\xff\\xc3'; printf '\\xc3\\xa9'").stdout == "a\ufffd\ufffd\u00e9"
    r = s.exec("head -c 65535 /dev/zero | tr '\\0' a; printf '\\xc3\\xa9'")
    assert r.stdout_truncated and r.stdout[:65535] == "a" * 65535


@check
def check_raises_with_what_happened():
    s = box()
    e = fails(w.CommandError, "command_failed", lambda: s.exec("echo out; echo boom >&2; exit 2", check=True))
    assert e.exit_code == 2 and e.stderr == "boom\n" and e.stdout == "out\n"
    fails(w.CommandError, "command_timeout", lambda: s.exec("sleep 60", timeout_ms=500, check=True))
    assert s.exec("true", check=True).exit_code == 0


@check
def callbacks_get_the_output_as_it_comes():
    s = box()
    out, err = [], []
    r = s.exec("echo one; echo two >&2; echo three", on_stdout=out.append, on_stderr=err.append)
    assert "".join(out) == "one\nthree\n" and "".join(err) == "two\n" and r.exit_code == 0 and r.stdout == "one\nthree\n"
    seen = []

    def write_when_heard(text):
        seen.append(text)
        if "ready" in text:
            s.files.write("/workspace/go", b"")

    r = s.exec("echo ready; until [ -e go ]; do sleep 0.05; done; echo went", on_stdout=write_when_heard, timeout_ms=300_000)
    assert r.exit_code == 0 and "".join(seen) == "ready\nwent\n"


@check
def a_long_timeout_streams_and_gives_the_same_result():
    s = box()
    r = s.exec("echo hi; echo err >&2; exit 4", timeout_ms=120_000)
    assert (r.exit_code, r.stdout, r.stderr, r.timed_out) == (4, "hi\n", "err\n", False) and r.process_id
    r = s.exec("head -c 500000 /dev/zero | tr '\\0' a", timeout_ms=120_000)
    assert len(r.stdout) == 500_000 and not r.stdout_truncated


@check
def exec_stream_gives_events_in_order():
    s = box()
    got = list(s.exec_stream("echo a; sleep 0.2; echo b >&2; printf é; exit 5"))
    assert got[0]["type"] == "start" and got[0]["processId"]
    assert got[-1]["type"] == "exit" and got[-1]["exitCode"] == 5 and got[-1]["timedOut"] is False
    middle, cursor = got[1:-1], 0
    for event in middle:
        assert event["type"] in ("stdout", "stderr") and event["offset"] == cursor, event
        cursor += len(base64.b64decode(event["base64"])) if "base64" in event else len(event["data"].encode())
    assert "".join(e["data"] for e in middle if e["type"] == "stdout") == "a\né" and cursor == 6


@check
def stream_offsets_count_bytes_whatever_they_are():
    s = box()
    program = "import os\nfor n in range(64): os.write(1, bytes([n * 4]) * 37 + 'é€😀'.encode())\n"
    got = events(f"/v1/sandboxes/{s.id}:exec", {"argv": ["python3", "-c", program], "stream": True})
    assert got[0]["type"] == "start" and got[-1]["type"] == "exit" and got[-1]["exitCode"] == 0
    raw_bytes, cursor = b"", 0
    for event in got[1:-1]:
        assert event["offset"] == cursor, event
        piece = base64.b64decode(event["base64"]) if "base64" in event else event["data"].encode()
        assert isinstance(event["data"], str)
        raw_bytes, cursor = raw_bytes + piece, cursor + len(piece)
    assert raw_bytes == b"".join(bytes([n * 4]) * 37 + "é€😀".encode() for n in range(64))


@check
def a_stream_that_is_left_does_not_hold_the_command():
    s = box()
    stream = s.exec_stream("echo first; i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; echo x > finished")
    pid = next(stream)["processId"]
    stream.close()
    eventually(lambda: s.files.exists("/workspace/finished"), "the command went on")
    p = s.process(pid)
    text = "".join(event["data"] for event in p.output() if event["type"] == "stdout")
    assert text.startswith("first\nline 0\n") and text.endswith("line 199\n")


@check
def a_hundred_execs_at_once_keep_their_outputs_apart():
    s = box(vcpu=2, memory_mib=2048)
    codes = together(100, lambda n: raw("POST", f"/v1/sandboxes/{s.id}:exec", {"argv": ["echo", f"n{n}"]}).ok()["stdout"])
    assert codes == [f"n{n}\n" for n in range(100)], codes[:5]


@check
def exec_reads_and_writes_across_calls():
    s = box()
    s.exec("mkdir -p a/b && echo x > a/b/c", check=True)
    assert s.exec("cat a/b/c").stdout == "x\n" and s.files.read_text("/workspace/a/b/c") == "x\n"
    assert s.exec("python3 -c 'print(6*7)'").stdout == "42\n"


@check
def many_lines_from_both_outputs_lose_nothing():
    s = box()
    out, err = [], []
    r = s.exec("for i in $(seq 1 3000); do echo o$i; echo e$i >&2; done", on_stdout=out.append, on_stderr=err.append,
               timeout_ms=300_000)
    assert r.exit_code == 0
    assert "".join(out) == "".join(f"o{n}\n" for n in range(1, 3001))
    assert "".join(err) == "".join(f"e{n}\n" for n in range(1, 3001))


if __name__ == "__main__":
    main()
