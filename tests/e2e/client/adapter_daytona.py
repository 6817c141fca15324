"""The client's own adapter for programs written against a second service: its commands, sessions, terminals and files."""

import asyncio

from support import check, eventually, fails_with, main
from withruntime.daytona import (
    AsyncDaytona,
    CodeRunParams,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaError,
    DaytonaFileNotFoundError,
    DaytonaProcessExecutionTimeoutError,
    FileDownloadRequest,
    FileUpload,
    ListSandboxesQuery,
    NotSupportedError,
    PtySize,
    SessionExecuteRequest,
)

daytona = Daytona()


def box(**fields):
    return daytona.create(CreateSandboxFromSnapshotParams(language="python", **fields))


@check
def commands_and_code():
    process = box(env_vars={"E": "1"}).process
    done = process.exec("echo $E; pwd; echo err >&2; exit 2")
    assert done.exit_code == 2 and sorted(done.result.split()) == ["/workspace", "1", "err"], done
    assert process.exec("echo $X $PWD", cwd="/tmp", env={"X": "2"}).result == "2 /tmp\n"
    fails_with(DaytonaProcessExecutionTimeoutError, lambda: process.exec("sleep 1000", timeout=1))
    ran = process.code_run("import os, sys; print(sys.argv[1], os.environ['Z'])", CodeRunParams(argv=["q"], env={"Z": "3"}))
    assert ran.exit_code == 0 and ran.result == "q 3\n", ran


@check
def sessions_keep_their_place():
    process = box().process
    process.create_session("s")
    assert process.execute_session_command("s", SessionExecuteRequest(command="cd /tmp; V=7; echo hi")).output == "hi\n"
    second = process.execute_session_command("s", SessionExecuteRequest(command="echo $V $PWD; echo e >&2; false"))
    assert (second.stdout, second.stderr, second.exit_code) == ("7 /tmp\n", "e\n", 1), second
    asked = process.execute_session_command("s", SessionExecuteRequest(command="read x; echo got $x", run_async=True))
    process.send_session_command_input("s", asked.cmd_id, "it\n")
    eventually(lambda: process.get_session_command("s", asked.cmd_id).exit_code == 0, "it has ended", 60)
    assert process.get_session_command_logs("s", asked.cmd_id).stdout == "got it\n"
    told = process.execute_session_command(
        "s", SessionExecuteRequest(command="for i in 1 2 3; do echo $i; echo e$i >&2; done", run_async=True))
    out, err = [], []
    asyncio.run(process.get_session_command_logs_async("s", told.cmd_id, out.append, err.append))
    assert "".join(out) == "1\n2\n3\n" and "".join(err) == "e1\ne2\ne3\n", (out, err)
    assert [session.session_id for session in process.list_sessions()] == ["s"]
    assert len(process.get_session("s").commands) == 4
    process.delete_session("s")
    assert process.list_sessions() == []


@check
def terminals():
    process = box().process
    shell = process.create_pty_session("p", cwd="/tmp", envs={"Q": "5"}, pty_size=PtySize(rows=30, cols=100))
    shell.wait_for_connection()
    shell.send_input("stty size; echo $Q $PWD\n")
    shown = b""
    for data in shell:
        shown += data
        if b"5 /tmp" in shown.replace(b"echo $Q", b""):
            break
    info = process.resize_pty_session("p", PtySize(rows=33, cols=77))
    assert (info.rows, info.cols, info.active) == (33, 77, True) and b"30 100\r\n" in shown, (info, shown)
    shell.send_input("stty size; exit 4\n")
    rest = []
    assert shell.wait(on_data=rest.append).exit_code == 4 and b"33 77\r\n" in b"".join(rest), rest
    # One that lives on without its connection, and tells a second one what it showed.
    first = process.create_pty_session("q")
    first.send_input("echo o''ne\n")
    for data in first:
        shown += data
        if b"one\r\n" in shown:
            break
    first.disconnect()
    second = process.connect_pty_session("q")
    second.send_input("echo t''wo\n")
    shown = b""
    for data in second:
        shown += data
        if b"two\r\n" in shown:
            break
    assert b"one\r\n" in shown, shown
    process.kill_pty_session("q")
    eventually(lambda: not any(each.active for each in process.list_pty_sessions()), "none runs", 60)


@check
def files():
    fs = box().fs
    fs.create_folder("/workspace/a/b", "755")
    fs.upload_file(b"hello\nneedle\n", "/workspace/a/b/x.txt")
    fs.upload_files([FileUpload(b"1", "a/one"), FileUpload(b"2", "/workspace/a/two")])
    assert fs.download_file("a/one") == b"1"
    info = fs.get_file_info("/workspace/a/b/x.txt")
    assert (info.size, info.permissions, info.is_dir) == (13, "0644", False), info
    assert {entry.name for entry in fs.list_files("/workspace/a")} == {"b", "one", "two"}
    assert len(fs.list_files("/workspace/a", depth=2)) == 4
    (match,) = fs.find_files("/workspace/a", "needle")
    assert (match.file, match.line) == ("/workspace/a/b/x.txt", 2), match
    assert fs.search_files("/workspace/a", "*.txt").files == ["/workspace/a/b/x.txt"]
    assert fs.replace_in_files(["/workspace/a/b/x.txt"], "needle", "pin")[0].success
    assert fs.download_file("/workspace/a/b/x.txt") == b"hello\npin\n"
    fs.move_files("/workspace/a/one", "/workspace/a/uno")
    fs.set_file_permissions("/workspace/a/uno", mode="640", owner="root", group="root")
    assert fs.get_file_info("/workspace/a/uno").permissions == "0640"
    found, missing = fs.download_files([FileDownloadRequest("/workspace/a/two"), FileDownloadRequest("/workspace/none")])
    assert found.result == b"2" and missing.error
    fails_with(DaytonaFileNotFoundError, lambda: fs.download_file("/workspace/none"))
    large = bytes(range(256)) * 20_000
    fs.upload_file(large, "/workspace/large")
    assert fs.download_file("/workspace/large") == large
    fs.delete_file("/workspace/a", recursive=True)
    fails_with(DaytonaFileNotFoundError, lambda: fs.get_file_info("/workspace/a"))


@check
def git_in_the_sandbox():
    sandbox = box()
    made = "git init -q -b main /workspace/r && cd /workspace/r && git config user.email a@b && git config user.name n"
    assert sandbox.process.exec(f"{made} && echo 1 > f && git add . && git commit -qm 1").exit_code == 0
    git = sandbox.git
    sandbox.fs.upload_file(b"2", "/workspace/r/g")
    git.add("/workspace/r", ["g"])
    assert [entry["name"] for entry in git.status("/workspace/r").file_status] == ["g"]
    assert len(git.commit("/workspace/r", "m", "a", "a@b").sha) == 40
    git.create_branch("/workspace/r", "side")
    assert git.branches("/workspace/r").branches == ["main", "side"] and git.status("/workspace/r").current_branch == "side"
    git.clone("/workspace/r", "/workspace/r2")
    assert sandbox.fs.download_file("/workspace/r2/g") == b"2"


@check
def stops_copies_and_settings():
    sandbox = box(labels={"a": "b"})
    sandbox.set_labels({"tour": "yes"})
    sandbox.set_autostop_interval(5)
    sandbox.refresh_data()
    sandbox.refresh_activity()
    assert sandbox.auto_stop_interval == 5 and sandbox.get_work_dir() == "/workspace"
    assert [found.id for found in daytona.list(ListSandboxesQuery(labels={"tour": "yes"}))] == [sandbox.id]
    sandbox.stop()
    assert sandbox.state == "stopped", sandbox.state
    sandbox.start()
    sandbox.update_env({"NEW": "v"})
    assert sandbox.process.exec("echo $NEW").result == "v\n"
    copy = sandbox.fork()
    assert copy.id != sandbox.id and copy.process.exec("echo copy").result == "copy\n"
    sandbox.update_network_settings(network_block_all=True)
    sandbox.create_snapshot("tour")
    # It finds a snapshot by a name among the images, too, which this server does not have yet.
    params = CreateSandboxFromSnapshotParams(snapshot="tour")
    assert "not on this server yet" in str(fails_with(DaytonaError, lambda: daytona.create(params)))
    link = sandbox.get_preview_link(3000)
    assert link.port == 3000 and link.token


@check
def its_asynchronous_half():
    async def tour():
        async with AsyncDaytona() as client:
            sandbox = await client.create(CreateSandboxFromSnapshotParams(language="python"))
            assert (await sandbox.process.exec("echo hi")).result == "hi\n"
            shown = bytearray()
            shell = await sandbox.process.create_pty_session("p", on_data=shown.extend)
            await shell.send_input("echo o''ne; exit 6\n")
            assert (await shell.wait()).exit_code == 6 and b"one\r\n" in shown, shown
            await sandbox.fs.upload_file(b"x", "/workspace/f")
            assert await sandbox.fs.download_file("/workspace/f") == b"x"
            await sandbox.delete()

    asyncio.run(tour())


@check
def what_it_refuses_by_its_own_design():
    sandbox = box()
    for call in (
        sandbox.create_lsp_server,
        sandbox.create_signed_preview_url,
        sandbox.expire_signed_preview_url,
        sandbox.create_ssh_access,
        sandbox.revoke_ssh_access,
        sandbox.validate_ssh_access,
        sandbox.download_url,
        sandbox.upload_url,
        sandbox.get_metrics,
        sandbox.recover,
        sandbox.resize,
        sandbox.rotate_signing_key,
        sandbox.set_ttl,
        sandbox.update_secrets,
        sandbox.process.get_entrypoint_logs,
        sandbox.process.get_entrypoint_session,
        sandbox.computer_use.accessibility.get_tree,
    ):
        fails_with(NotSupportedError, call)


if __name__ == "__main__":
    main()
