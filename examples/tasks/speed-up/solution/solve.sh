#!/bin/sh
set -eu
cp "$(dirname "$0")/standings.py" /app/standings.py
