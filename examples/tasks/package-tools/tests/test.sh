#!/bin/sh
# Compares the report and the new table with rows worked out by hand, and looks that nothing else changed.
set -u
reward=0
work=$(mktemp -d)
jq -c '[.[] | {country, orders, revenue_cents}]' /app/report.json > "$work/report.json" &&
  [ "$(jq 'all(.[]; keys == ["country", "orders", "revenue_cents"])' /app/report.json)" = true ] &&
  cmp "$work/report.json" /tests/report.json &&
  sqlite3 -batch -bail -init /dev/null /app/shop.db \
    'SELECT order_id, sku, quantity FROM order_lines ORDER BY 1, 2, 3' > "$work/lines.txt" &&
  cmp "$work/lines.txt" /tests/lines.txt &&
  sqlite3 -batch -bail -init /dev/null /app/shop.db \
    'SELECT count(*), sum(id), group_concat(country, "") FROM (SELECT * FROM customers ORDER BY id)' \
    'SELECT count(*), sum(price_cents) FROM products' > "$work/rest.txt" &&
  cmp "$work/rest.txt" /tests/rest.txt &&
  reward=1
rm -r "$work"
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
