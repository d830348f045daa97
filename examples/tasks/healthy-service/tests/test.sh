#!/bin/sh
# Works out the tides from what the service started with, and compares.
if python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
