#!/bin/bash
# Packages a copy, so that modes can be set.
set -euo pipefail
cd /app/project
setting() { sed -n "s/^$1 = //p" release.conf; }
name=$(setting name)-$(cat VERSION)
work=$(mktemp -d)
set -f
leave=()
for pattern in $(setting leave-out); do leave+=("--exclude=$pattern"); done
set +f
mkdir "$work/$name"
tar -c "${leave[@]}" . | tar -x -C "$work/$name"
find "$work" -type f -perm /111 -exec chmod 0755 {} +
find "$work" -type f ! -perm /111 -exec chmod 0644 {} +
find "$work" -type d -exec chmod 0755 {} +
mkdir -p /app/dist
LC_ALL=C tar -C "$work" -c --sort=name --mtime="@$(setting epoch)" --owner=root:0 --group=root:0 --format=ustar "$name" |
  gzip -n > "/app/dist/$name.tar.gz"
cd /app/dist
sha256sum "$name.tar.gz" > SHA256SUMS
rm -r "$work"
