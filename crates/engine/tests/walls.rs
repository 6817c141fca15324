//! What a guest must not reach, tried from inside as root.

use runtime_proto::guest::User;

mod support;
use support::{Host, create, exec_as, sh_root};

#[tokio::test]
async fn the_host_is_not_to_be_seen_or_written_from_inside() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;

    // The agent and the sudo that it plays: not to be changed, moved, unmounted or covered.
    for path in ["/usr/local/lib/runtime/agent", "/usr/bin/sudo"] {
        for attempt in [
            format!("echo x >> {path}"),
            format!("rm -f {path}"),
            format!("mv {path} /root/moved"),
            format!("chmod 777 {path} && echo x >> {path}"),
            format!("mount -o remount,rw {path} && echo x >> {path}"),
        ] {
            let done = exec_as(&engine, id, User::Root, &attempt).await.unwrap();
            let code = done.process.and_then(|process| process.exit_code);
            assert_ne!(code, Some(0), "{attempt}");
        }
    }
    let agent =
        std::fs::read(host.data_dir().join("agent").read_dir().unwrap().next().unwrap().unwrap().path()).unwrap();
    assert_eq!(agent, support::agent());

    // Nothing of the host's paths, environment or processes.
    let secrets = [host.data_dir().to_str().unwrap(), host.run_dir().to_str().unwrap()];
    let seen = sh_root(
        &engine,
        id,
        "cat /proc/1/environ /proc/1/cmdline /proc/self/mountinfo /proc/mounts /proc/1/cgroup /proc/cmdline | tr '\\0' '\\n'; \
         ls -l /proc/1/fd /proc/1/cwd /proc/1/root /proc/1/exe; ls -a / /run /dev; env",
    )
    .await;
    for secret in secrets {
        assert!(!seen.contains(secret), "{secret} in {seen}");
    }
    let environment =
        sh_root(&engine, id, "tr '\\0' '\\n' < /proc/1/environ | cut -d= -f1 | sort | tr '\\n' ' '").await;
    assert_eq!(environment.trim(), "HOME LANG PATH");
    let pids = sh_root(&engine, id, "ls /proc | grep -c '^[0-9]'").await;
    assert!(pids.parse::<u32>().unwrap() < 20, "{pids}");

    // No devices of the host, no network but its own loopback.
    let devices = exec_as(&engine, id, User::Root, "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk").await.unwrap();
    assert_ne!(devices.process.and_then(|process| process.exit_code), Some(0));
    assert_eq!(sh_root(&engine, id, "ls /sys/class/net /proc/sys/net 2>/dev/null | grep -c eth || true").await, "0");
}

#[tokio::test]
async fn root_inside_can_do_what_a_package_manager_needs() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    sh_root(&engine, id, "touch /root/f && chown runtime:runtime /root/f && chmod u+s /root/f && setpriv --reuid 1000 --regid 1000 --clear-groups id -u").await;
    sh_root(&engine, id, "dpkg --verify bash && dpkg-query -W bash").await;
    sh_root(&engine, id, "mkdir -p /tmp/c && chroot / true").await;
}

#[tokio::test]
async fn two_sandboxes_share_nothing_they_can_write() {
    let host = Host::new();
    let engine = host.open().await;
    let (a, b) = (create(&engine).await, create(&engine).await);
    sh_root(
        &engine,
        a,
        "for d in / /workspace /tmp /var/tmp /dev/shm /run /etc /usr/bin; do echo secret > $d/of-a; done",
    )
    .await;
    let found =
        sh_root(&engine, b, "find / -xdev -name of-a 2>/dev/null; ls /tmp /run /dev/shm /var/tmp | grep of-a || true")
            .await;
    assert_eq!(found, "");
}
