#!/bin/bash
# Runs as clerk; reads through one door and enters through the other.
set -euo pipefail
umask 077
: > /app/receipts.txt
peek /srv/ledger/INDEX | while IFS=$'\t' read -r account state file; do
  [ "$state" = due ] || continue
  cents=$(peek "/srv/ledger/$file" | awk '
    $1 == "VOID" { void[$2] = 1 }
    $1 == "IN" || $1 == "OUT" { sub(/\./, "", $2); amount[NR] = $1 == "IN" ? $2 + 0 : -$2 }
    END { for (line in amount) if (!(line in void)) sum += amount[line]; printf "%d\n", sum }')
  sudo -n -u registrar register "$account" "$cents" < /dev/null >> /app/receipts.txt
done
chmod 0640 /app/receipts.txt
cat /app/receipts.txt
