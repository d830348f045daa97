#!/bin/sh
# The tests of every step that has none of its own: compares the news, and looks that the archive is the one announced.
reward=0
work=$(mktemp -d)
cat /tests/news.txt > "$work/news"
archive=glass-cloche-1.10.0.tar.gz
(cd /app/dist && sha256sum "$archive") >> "$work/news"
[ "${LANGUAGE_OF_NEWS:-}" = plain ] && [ -s "/app/dist/$archive" ] && cmp "$work/news" /app/dist/NEWS && reward=1
rm -r "$work"
echo "$reward" > /logs/verifier/reward.txt
