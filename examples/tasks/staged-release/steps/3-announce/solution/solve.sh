#!/bin/sh
set -eu
cd /app/project
{
  echo "$(sed -n 's/^name = //p' release.conf) $(cat VERSION) is out."
  echo
  awk '/^## / { if (seen++) exit; next } /^- / && $2 != "note:" { sub(/^- [a-z]+: /, ""); print toupper(substr($0, 1, 1)) substr($0, 2) "." }' CHANGES
  echo
  cat /app/dist/SHA256SUMS
} > /app/dist/NEWS
