#!/bin/sh
# Lets sort do it: it keeps what does not fit into its share of memory in temporary files.
set -eu
cat > /app/repeats <<'PROGRAM'
#!/bin/sh
export LC_ALL=C
cut -d ' ' -f 2 -- "$1" | sort -S 24M --parallel=1 -T /tmp | uniq -cd | awk '{ print $1, $2 }' | sort -S 8M -k 1,1nr -k 2
PROGRAM
chmod 0755 /app/repeats
