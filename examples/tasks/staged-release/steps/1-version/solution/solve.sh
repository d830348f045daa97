#!/bin/sh
# The entries have features and no breaks, so the second part goes up.
set -eu
cd /app/project
version=$(awk -F . '{ print $1 "." $2 + 1 ".0" }' VERSION)
echo "$version" > VERSION
awk -v version="$version" '
  function flush(   kind, i) {
    for (i = 1; i <= 4; i++) { kind = substr("breakfeat fix  note ", i * 5 - 4, 5); sub(/ +/, "", kind); printf "%s", of[kind] }
    open = 0
  }
  $0 == "## Unreleased" { print "## " version " (2026-03-02)"; open = 1; next }
  open && /^- / { kind = $2; sub(/:/, "", kind); of[kind] = of[kind] $0 "\n"; next }
  open { flush() }
  { print }
  END { if (open) flush() }' CHANGES > /tmp/changes
cat /tmp/changes > CHANGES
rm /tmp/changes
