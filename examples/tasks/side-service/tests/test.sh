#!/bin/sh
# The sum was worked out by hand.
reward=0
[ "$(cat /app/stock.txt 2>/dev/null)" = 500 ] && reward=1
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
