#!/bin/sh
# Compares version and changes with what they have to be.
reward=0
[ "$(cat /app/project/VERSION)" = 1.10.0 ] && cmp /app/project/CHANGES /tests/CHANGES && reward=1
echo "$reward" > /logs/verifier/reward.txt
