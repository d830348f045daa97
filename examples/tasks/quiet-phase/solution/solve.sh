#!/bin/sh
sed -n 's/^ *\([^:]*\):.*/\1/p' /proc/net/dev | sort > /app/links.txt
