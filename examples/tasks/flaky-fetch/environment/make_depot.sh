#!/bin/sh
# Makes the people, the depot and the door to it.
set -eu
useradd -r -s /usr/sbin/nologin depot
useradd -m -u 1500 -s /bin/bash courier
mkdir -p /srv/depot /app
echo 'string and brown paper' > /srv/depot/seed
: > /srv/depot/log
chown -R depot:depot /srv/depot
chmod -R u=rwX,go= /srv/depot
chmod 0755 /usr/local/bin/fetch
echo 'courier ALL=(depot) NOPASSWD: /usr/local/bin/fetch' > /etc/sudoers.d/courier
chmod 0440 /etc/sudoers.d/courier
chown courier:courier /app
