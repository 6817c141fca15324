#!/bin/bash
# Runs inside the new root: turns plain Debian into the guest contract.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

# Tools that Debian does not package, at fixed versions. Node 18 limits what pnpm can be.
pip install --quiet --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
    --break-system-packages uv==0.13.9
npm install --global --silent --no-audit --no-fund --no-update-notifier \
    --cache /run/build/npm pnpm@10.34.8 yarn@1.22.22

# The user. /usr/local/bin and the global node modules are the user's, so that `npm install -g` works with and
# without sudo; Python's directory stays root's, so that pip installs land in /workspace/.local.
groupadd --gid 1000 runtime
useradd --uid 1000 --gid 1000 --home-dir /workspace --no-create-home --shell /bin/bash runtime
install -d -o 1000 -g 1000 -m 755 /workspace
install -d -o 1000 -g 1000 -m 755 /usr/local/bin /usr/local/lib/node_modules /usr/local/share
chown -R 1000:1000 /usr/local/lib/node_modules /usr/local/share /usr/local/bin
install -d -m 755 /usr/local/lib/python3.11/dist-packages

path=/workspace/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin
cat >/etc/sudoers.d/runtime <<SUDO
Defaults env_keep += "HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy ALL_PROXY all_proxy"
Defaults env_keep += "NODE_USE_ENV_PROXY SSL_CERT_FILE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS CURL_CA_BUNDLE GIT_SSL_CAINFO"
Defaults secure_path = "$path"
runtime ALL=(ALL:ALL) NOPASSWD:SETENV: ALL
SUDO
chmod 440 /etc/sudoers.d/runtime
visudo -cq

printf 'PATH="%s"\nLANG=C.UTF-8\n' "$path" >/etc/environment
printf 'LANG=C.UTF-8\n' >/etc/default/locale
printf 'export PATH=%s\nexport LANG=${LANG:-C.UTF-8}\n' "$path" >/etc/profile.d/runtime.sh
printf '[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\nroot-user-action = ignore\n' >/etc/pip.conf
ln -sf /usr/bin/fdfind /usr/local/bin/fd
ln -sf /usr/bin/vim.tiny /usr/local/bin/vim

# Identity and network files: neutral here, the agent writes a sandbox's own.
echo sandbox >/etc/hostname
printf '127.0.0.1\tlocalhost\n127.0.1.1\tsandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n' >/etc/hosts
: >/etc/machine-id
rm -f /var/lib/dbus/machine-id /etc/ssh/ssh_host_*

# Every place something may be mounted on exists beforehand.
mkdir -p /proc /sys /dev/shm /dev/pts /run /mnt /media
install -d -m 1777 /tmp /var/tmp

# What the build needed and the image does not.
rm -f /etc/apt/apt.conf.d/99mmdebstrap
sed -i '/force-unsafe-io/d' /etc/dpkg/dpkg.cfg.d/99mmdebstrap
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old /var/log/*.log /var/log/apt/* \
    /root/.cache /root/.npm /usr/share/doc/*/examples
install -d -m 755 /usr/share/runtime
