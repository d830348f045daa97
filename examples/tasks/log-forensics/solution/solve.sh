#!/bin/bash
# Finds the answers in the logs instead of knowing them.
set -euo pipefail
cd /app/logs
login=$(grep 'Accepted password' auth.log | grep -v ' from 10\.' | head -n 1)
time=${login%% *}
ip=$(sed -E 's/.* from ([0-9.]+) .*/\1/' <<< "$login")
account=$(sed -E 's/.* for ([a-z]+) from .*/\1/' <<< "$login")
failures=$(grep 'Failed password' auth.log | grep -F " from $ip " | awk -v end="$time" '$1 < end' | wc -l)
url=$(grep -F "$account : TTY=pts" auth.log | grep -oE '/var/www/html/[^ ]+\.tgz' | head -n 1 | sed 's|^/var/www/html||')
bytes=$(awk -v url="$url" '$7 == url && $9 == 200 { sum += $10 } END { print sum }' access.log)
printf '%s\n' "ip=$ip" "account=$account" "failures=$failures" "login=$time" "url=$url" "bytes=$bytes" > /app/answers.txt
