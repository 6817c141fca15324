#!/bin/bash
# Runs on the host, as root, in mount and pid name spaces of its own: whatever it mounts or starts is gone
# with it, however it ends.
#
#   build.sh TARGET WORK
#
# TARGET  an empty directory that becomes the image's root
# WORK    holds packages, finish.sh, check.sh and sources.list (deb lines from this machine's own configuration)
set -euo pipefail
target=$1
export work=$2

# The settings that let this machine's apt reach its sources (proxy, certificates, date checks) hold for the
# build as well; finish.sh takes them out of the image again.
apt-config dump --format '%f "%v";%n' \
    | grep -E '^Acquire::(https?::|Check-Valid-Until|Check-Date|Retries|ForceIPv)' >"$work/apt.conf" || true

include=$(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$work/packages" | tr -s '[:space:]' ',' | sed 's/,$//')

# What a build step inside the image may need of this machine lives on a tmpfs over /run, so that none of it
# can stay behind: name resolution and the certificates this machine trusts.
cat >"$work/inside.sh" <<'INSIDE'
set -eu
root=$1 work=$2
mount -t tmpfs -o mode=755 tmpfs "$root/run"
trap 'umount -l "$root/etc/resolv.conf" 2>/dev/null || :; umount -l "$root/run"' EXIT
mkdir "$root/run/build"
cp "$work/finish.sh" "$work/check.sh" "$work/version" "$root/run/build/"
rm -f "$root/etc/resolv.conf"
: >"$root/etc/resolv.conf"
if [ -s /etc/resolv.conf ]; then
    cp -L /etc/resolv.conf "$root/run/build/resolv.conf"
    mount --bind "$root/run/build/resolv.conf" "$root/etc/resolv.conf"
fi
bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
set --
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY \
    PIP_INDEX_URL PIP_EXTRA_INDEX_URL npm_config_registry NPM_CONFIG_REGISTRY; do
    eval "value=\${$name:-}"
    [ -z "$value" ] || set -- "$@" "$name=$value"
done
if [ -s "$bundle" ]; then
    cp -L "$bundle" "$root/run/build/ca.crt"
    for name in SSL_CERT_FILE REQUESTS_CA_BUNDLE PIP_CERT NODE_EXTRA_CA_CERTS CURL_CA_BUNDLE npm_config_cafile; do
        set -- "$@" "$name=/run/build/ca.crt"
    done
fi
chroot "$root" /usr/bin/env -i "$@" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/build LANG=C.UTF-8 \
    /bin/bash /run/build/finish.sh
umount "$root/etc/resolv.conf" 2>/dev/null || :
chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/bash /run/build/check.sh
INSIDE

# The pool is mounted without set-user-id programs, for the host's sake; the build tries sudo, so here they count. Only
# this name space sees it.
mount --bind "$target" "$target"
mount -o remount,bind,suid "$target"

# No daemon and no fsync per package: the image is synced as a whole before it gets its name.
mmdebstrap --mode=root --variant=minbase --format=directory \
    --include="$include" \
    --aptopt="$work/apt.conf" \
    --aptopt='Acquire::Languages "none"' \
    --dpkgopt='force-unsafe-io' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/locale/*/LC_MESSAGES/*' \
    --customize-hook='/bin/sh "$work/inside.sh" "$1" "$work"' \
    bookworm "$target" "$work/sources.list"

# mmdebstrap leaves /dev empty; a sandbox mounts on these.
mkdir -p "$target/dev/shm" "$target/dev/pts" "$target/dev/mqueue"
chmod 644 "$target/etc/hostname"
rm -f "$target/var/lib/apt/lists/lock"
