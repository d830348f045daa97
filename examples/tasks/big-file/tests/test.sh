#!/bin/sh
# Makes a log of its own and compares the repeats that the program finds in it with those that were put in.
if python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
