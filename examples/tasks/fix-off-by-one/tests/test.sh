#!/bin/sh
# Runs the program on catalogues of its own and compares every page with an independent reckoning.
if python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
