#!/bin/sh
# Reads the archive by itself; the next step needs one that is right and reproducible.
python3 -I /tests/check.py /logs/verifier/reward.txt
