#!/bin/bash
# Asks again until an answer is whole, waiting as long as it is told.
set -euo pipefail
work=$(mktemp -d)

fetch() { # fetch FILE [NAME]: 0 and a whole answer in FILE without its last line, 66 if it is gone
  local file=$1 status wait
  shift
  for _ in $(seq 30); do
    status=0
    sudo -n -u depot fetch "$@" > "$work/answer" 2> "$work/said" < /dev/null || status=$?
    case $status in
      0)
        head -n -1 "$work/answer" > "$work/body"
        if [ "$(tail -n 1 "$work/answer")" = "end $(sha256sum < "$work/body" | cut -d ' ' -f 1)" ]; then
          mv "$work/body" "$file"
          return 0
        fi ;;
      75)
        wait=$(sed -n 's/^busy: try again in \(.*\) s$/\1/p' "$work/said")
        sleep "$wait"
        sleep 0.02 ;;
      *) return "$status" ;;
    esac
  done
  return 1
}

mkdir -p /app/parcels
: > /app/gone.txt
fetch "$work/names"
sort "$work/names" > "$work/sorted"
while IFS= read -r name; do
  status=0
  fetch "/app/parcels/$name" "$name" || status=$?
  case $status in
    0) ;;
    66) echo "$name" >> /app/gone.txt ;;
    *) exit "$status" ;;
  esac
done < "$work/sorted"
rm -r "$work"
