#!/bin/sh
# Makes the people, the ledger, the register and the two doors.
set -eu
useradd -r -s /usr/sbin/nologin archivist
useradd -r -s /usr/sbin/nologin registrar
useradd -m -u 1500 -s /bin/bash clerk

mkdir -p /srv/ledger /srv/register
cd /srv/ledger
printf '%s\t%s\t%s\n' \
  GA-204 due greenhouse GA-007 open 'north beds' RT-310 due 'rental, tools' \
  GA-118 due .petty RT-002 open rentals RT-311 due -late GA-650 due empty > INDEX
printf '%s\n' 'IN 120.00' 'OUT 14.95' 'IN 7.05' 'OUT 14.95' 'VOID 4' > greenhouse
printf '%s\n' 'IN 999.00' 'OUT 1.10' > 'north beds'
printf '%s\n' 'VOID 3' 'IN 0.10' 'IN 45.00' 'IN 0.20' 'OUT 1000.00' 'IN 12.34' > 'rental, tools'
printf '%s\n' 'IN 0.07' 'OUT 0.01' 'OUT 0.02' 'VOID 2' 'OUT 0.05' > .petty
printf '%s\n' 'IN 5.00' > rentals
printf 'IN 33.30\nVOID 1\nIN 8.09\nOUT 3.00' > -late
: > empty
chown -R archivist:archivist /srv/ledger
chmod -R u=rwX,go= /srv/ledger

cd /srv/register
echo 'wax and thread' > seal
: > entries
chown -R registrar:registrar /srv/register
chmod -R u=rwX,go= /srv/register

cp /usr/bin/cat /usr/local/bin/peek
chown archivist:archivist /usr/local/bin/peek
chmod 4755 /usr/local/bin/peek
chmod 0755 /usr/local/bin/register
echo 'clerk ALL=(registrar) NOPASSWD: /usr/local/bin/register' > /etc/sudoers.d/clerk
chmod 0440 /etc/sudoers.d/clerk

mkdir -p /app
chown clerk:clerk /app
