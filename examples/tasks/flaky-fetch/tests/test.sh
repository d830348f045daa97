#!/bin/sh
# Compares the parcels with the depot's own and reads its log, as root.
if python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
