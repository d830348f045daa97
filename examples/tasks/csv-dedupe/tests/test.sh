#!/bin/sh
# Compares the cleaned file with the expected rows; quoting style and line ends are the agent's choice.
if python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
