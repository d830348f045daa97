#!/bin/bash
set -euo pipefail
export LC_ALL=C
escape() { sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g; s/"/\&quot;/g'; }
cache() { # cache PAGE: note the digest of a page beside it
  mkdir -p "$(dirname "$1")/cache"
  sha256sum < "$1" | cut -d ' ' -f 1 > "$(dirname "$1")/cache/$(basename "$1")"
}
mkdir -p /app/site/a/cache /app/out /logs/artifacts/extra
cd /app/notes
find . -type f -name '*.txt' -printf '%P\n' | sed 's/\.txt$//' | sed 's/$/.html/' | sort > /app/site/index.tmp
: > /app/site/index.html
while IFS= read -r page; do
  note=${page%.html}
  mkdir -p "$(dirname "/app/site/$page")"
  title=$(head -n 1 "$note.txt" | escape)
  {
    echo "<h1>$title</h1>"
    tail -n +2 "$note.txt" | escape | sed -n '/./s|.*|<p>&</p>|p'
  } > "/app/site/$page"
  cp "$note.txt" "/app/site/$note.tmp"
  cache "/app/site/$page"
  echo "<a href=\"$page\">$title</a>" >> /app/site/index.html
  echo "made $page" >> /app/build.log
done < /app/site/index.tmp
cache /app/site/index.html
wc -l < /app/site/index.tmp > /app/out/report.txt
echo seen > /logs/artifacts/extra/seen.txt
