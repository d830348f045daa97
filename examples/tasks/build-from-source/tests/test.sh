#!/bin/sh
# Builds a copy of the source and compares what it prints with an independent count.
if python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
