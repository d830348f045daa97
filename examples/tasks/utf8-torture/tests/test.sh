#!/bin/sh
# Compares the manifest with the one that was worked out beforehand, and looks that the inbox is untouched.
if python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
