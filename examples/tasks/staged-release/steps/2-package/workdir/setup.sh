#!/bin/bash
# Puts what has piled up on the desk into the project, once, and takes itself away.
set -eu
printf 'scratch\n' > src/notes.tmp
printf 'old\n' > src/cloche.conf~
mkdir -p build
printf 'object\n' > build/lid.o
chmod 0600 README
touch -d '2026-03-01 12:34:56 UTC' src/cloche.conf
rm setup.sh
