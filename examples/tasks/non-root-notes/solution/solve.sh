#!/bin/bash
# Runs as scribe; what belongs to somebody else is left alone.
set -euo pipefail
export LC_ALL=C
cd /app/notes
chmod 2750 .
until [ "$(find . -type d -user scribe ! -perm 2750 2>/dev/null | wc -l)" = 0 ]; do
  find . -type d -user scribe -exec chgrp readers {} \; -exec chmod 2750 {} \; 2>/dev/null || true
done
find . -type d -user scribe -exec chgrp readers {} + -exec chmod 2750 {} + 2>/dev/null || true
: > INDEX
: > SEALED
find . -type f -user scribe -exec chgrp readers {} + -exec chmod 0640 {} + 2>/dev/null || true

find . -type f ! -path ./INDEX ! -path ./SEALED -printf '%P\n' 2>/dev/null | sort > /tmp/notes.txt || true
while IFS= read -r note; do
  if [ -r "$note" ]; then
    printf '%d\t%s\n' "$(wc -w < "$note")" "$note" >> INDEX
  else
    echo "$note" >> SEALED
  fi
done < /tmp/notes.txt
find . -type d ! -readable -printf '%P/\n' 2>/dev/null >> SEALED || true
sort -o SEALED SEALED
rm /tmp/notes.txt
