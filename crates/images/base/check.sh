#!/bin/bash
# Runs inside the finished root: calls every tool the guest contract names, as the user the commands run as,
# and writes what answered to /usr/share/runtime/manifest. A tool that is missing fails the build.
set -uo pipefail
manifest=/usr/share/runtime/manifest
printf 'image\t%s\n' "$(cat /run/build/version)" >$manifest
complaints=/run/build/complaints
failed=0

as_user() {
    cd /workspace || return
    setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all env -i HOME=/workspace USER=runtime \
        LOGNAME=runtime LANG=C.UTF-8 TMPDIR=/run/build/tmp XDG_CACHE_HOME=/run/build/tmp \
        PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/run/build/tmp npm_config_cache=/run/build/tmp \
        PATH=/workspace/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin bash -c "$1"
}
tool() {
    local name=$1 output
    if output=$(as_user "$2" 2>$complaints </dev/null) && [ -n "$output" ]; then
        printf '%s\t%s\n' "$name" "${output%%$'\n'*}" >>$manifest
    else
        printf 'base image: %s does not work: %s\n' "$name" "$output $(cat $complaints)" >&2
        failed=1
    fi
}
install -d -o 1000 -g 1000 /run/build/tmp

for name in bash tar gzip git curl wget jq rg fd zip xz rsync sudo file less flock setsid uv pnpm yarn node npm \
    python python3 pip gcc g++ make strace sqlite3 ps find stat readlink base64 zstd; do
    case $name in
    zip) tool $name "zip -v | sed -n 2p" ;;
    stat | find | readlink | base64) tool $name "$name --version" ;;
    sqlite3) tool $name "sqlite3 :memory: 'select sqlite_version()'" ;;
    zstd) tool $name "zstd -V" ;;
    strace) tool $name "strace -V" ;;
    *) tool $name "$name --version" ;;
    esac
done
tool unzip "unzip -v"
tool lsof "lsof -v 2>&1 | grep revision"
tool ip "ip -V"
tool nc "nc -h 2>&1"
tool vim "vim.tiny --version"
tool sshd "/usr/sbin/sshd -V 2>&1 | grep OpenSSH"
tool ca-certificates "grep -c BEGIN /etc/ssl/certs/ca-certificates.crt"
tool numpy "python3 -c 'import numpy; print(numpy.__version__)'"
tool pandas "python3 -c 'import pandas; print(pandas.__version__)'"
tool matplotlib "python3 -c 'import matplotlib.pyplot; print(matplotlib.__version__)'"
tool venv "python3 -m venv /run/build/tmp/venv && /run/build/tmp/venv/bin/python --version"
tool cc "echo 'int main(){return 0;}' >/run/build/tmp/a.c && cc -o /run/build/tmp/a /run/build/tmp/a.c && /run/build/tmp/a && echo builds"
tool user "id -un; test \$(id -u) = 1000 -a \$(stat -c %u /workspace) = 1000 -a \"\$(getent passwd runtime | cut -d: -f6-)\" = /workspace:/bin/bash"
tool sudoers "sudo -h | head -1"

# Nothing of the building machine may be in the image.
for path in /etc/ssh/ssh_host_rsa_key /etc/apt/apt.conf.d/99mmdebstrap; do
    [ ! -e $path ] || { echo "base image: $path was left behind" >&2; failed=1; }
done
[ ! -s /etc/machine-id ] && [ ! -s /etc/resolv.conf ] || { echo "base image: the building machine's identity was left behind" >&2; failed=1; }
[ -z "$(ls -A /workspace)" ] || { echo "base image: /workspace is not empty: $(ls -A /workspace)" >&2; failed=1; }
dpkg-query -W -f '${Package}\t${Version}\n' >/usr/share/runtime/packages
exit $failed
