#!/bin/sh
set -eu
cp -R "$(dirname "$0")/sheet" /app/
cd /app
printf 'A1 = 6 * 7\n' > /tmp/try.sheet
python3 -m sheet /tmp/try.sheet
rm /tmp/try.sheet
