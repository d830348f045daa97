#!/bin/sh
# Times the program against its former self, both run here and now on the same logs, and compares outputs.
if python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
