#!/bin/sh
# The agent had no network: its list holds the loopback alone. The verifier has a link, for its list of hosts.
set -u
reward=0
[ "$(cat /app/links.txt 2>/dev/null)" = lo ] && grep -q 'eth0:' /proc/net/dev && reward=1
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
