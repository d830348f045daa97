#!/bin/sh
# Runs in an environment of its own that gets nothing of the agent's but the plan.
if python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
