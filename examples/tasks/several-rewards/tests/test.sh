#!/bin/sh
# Compares the three tables with the expected ones; each has a reward, and "reward" is their mean.
python3 -I /tests/check.py /logs/verifier/reward.json
