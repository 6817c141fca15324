"""Traced commands: the files that a command opened."""

import withruntime as w
from support import box, check, eventually, events, fails, in_enough_time, main, raw, runtime


def below(paths, at):
    return [path[len(at):] for path in paths if path.startswith(at)]


@check
def an_exec_tells_the_files_it_read_and_wrote():
    s = box()
    s.files.write("/workspace/in.txt", "x")
    r = s.exec("cat in.txt > out.txt; ls > /dev/null; exit 3", trace_files=True)
    assert r.exit_code == 3 and r.files.truncated is False
    assert below(r.files.read, "/workspace/") == ["", "in.txt"], r.files.read
    assert below(r.files.written, "/workspace/") == ["out.txt"], r.files.written
    assert r.files.read == sorted(r.files.read) and any(path.endswith("/bash") for path in r.files.read)
    assert s.exec("cat in.txt").files is None


@check
def links_are_resolved_and_what_a_child_or_sudo_opens_counts():
    s = box()
    s.exec("mkdir d; echo x > d/real; ln -s d/real link", check=True)
    r = s.exec("cat link; (setsid sh -c 'echo y > child'); sudo -n sh -c 'cat /etc/shadow > /root/copy'; mv child kept",
               trace_files=True)
    assert r.exit_code == 0, r
    assert below(r.files.read, "/workspace/") == ["d/real"], r.files.read
    assert below(r.files.written, "/workspace/") == ["child", "kept"], r.files.written
    assert "/etc/shadow" in r.files.read and "/root/copy" in r.files.written, r.files


@check
def a_streamed_exec_ends_with_its_files():
    s = box()
    r = s.exec("cat /etc/hostname", trace_files=True, on_stdout=lambda text: None)
    assert "/etc/hostname" in r.files.read
    got = list(s.exec_stream("cat /etc/hostname > copy", trace_files=True))
    assert got[-1]["type"] == "exit" and "/workspace/copy" in got[-1]["files"]["written"], got[-1]
    assert "files" not in events(f"/v1/sandboxes/{s.id}:exec", {"command": "true", "stream": True})[-1]


@check
def a_process_tells_its_files_after_its_end():
    s = box()
    p = s.spawn("cat /etc/hostname; read x", stdin="pipe", trace_files=True)
    fails(w.ConflictError, "process_running", p.files, 409)
    p.write("\n")
    p.wait()
    assert "/etc/hostname" in p.files().read
    # Another client, later.
    assert "/etc/hostname" in runtime().sandboxes.get(s.id).process(p.id).files().read
    fails(w.NotFoundError, "not_found", s.spawn("true").files, 404)
    raw("GET", f"/v1/sandboxes/{s.id}/processes/none/files").refused(404, "not_found")
    raw("GET", f"/v1/sandboxes/{s.id}/processes/{p.id}/files?x=1").refused(400, "invalid_request")


@check
def a_repeat_of_a_traced_exec_tells_the_same_files():
    s = box()
    first = s.exec("cat /etc/hostname", trace_files=True, idempotency_key="trace-1")
    again = s.exec("cat /etc/hostname", trace_files=True, idempotency_key="trace-1")
    assert again.replayed and again.files == first.files and "/etc/hostname" in again.files.read


@check
def programs_of_every_kind_run_traced_as_they_do_without():
    s = box()
    for command in (
        "python3 -c 'import concurrent.futures as f; print(sum(f.ThreadPoolExecutor(8).map(lambda n: len(open(\"/etc/passwd\").read()) * 0 + n, range(200))))'",
        "python3 -m venv --without-pip v && v/bin/python -c 'print(1)'",
        "git init -q g && cd g && git config user.email a@b && git config user.name n && echo x > f && git add f && git commit -qm m && git log --oneline | wc -l",
        "for i in $(seq 300); do echo $i > f$i; done; cat f* | sort -n | tail -1",
        "node -e 'require(\"fs\").readFile(\"/etc/hostname\", () => console.log(\"read\"))'",
        "timeout 1 sleep 30; echo $?",
    ):
        command = f"rm -rf t && mkdir t && cd t && {command}"
        plain, traced = s.exec(command), s.exec(command, trace_files=True)
        assert (plain.exit_code, traced.exit_code) == (0, 0), (command, plain, traced)
        assert traced.stdout == plain.stdout and not traced.files.truncated, (command, plain, traced)

    def attempt(time_ms):
        r = s.exec("cat /etc/hostname; sleep 4321", timeout_ms=time_ms, trace_files=True)
        assert r.timed_out
        return "/etc/hostname" in r.files.read

    in_enough_time(attempt)
    eventually(lambda: s.exec("pgrep -fc 'sleep 432[1]'").stdout == "0\n", "no sleeper")


if __name__ == "__main__":
    main()
