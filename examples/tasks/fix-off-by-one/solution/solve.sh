#!/bin/sh
set -eu
cd /app
sed -i 's|return total // size + 1|return max(1, (total + size - 1) // size)|' shelf/pages.py
sed -i 's|last = min(first + size, total)|last = min(first + size - 1, total)|' shelf/pages.py
python3 -m shelf books.txt --page 3
