#!/bin/sh
set -eu
cd /app
jq -s -c 'reduce .[] as $order ({}; .[$order.id | tostring] = $order) | [.[] | select(.status == "paid")]' \
  orders.jsonl > /tmp/paid.json
jq -r '.[] | .id as $id | .lines[] | [$id, .sku, .quantity] | @csv' /tmp/paid.json > /tmp/lines.csv
jq -r '.[] | [.id, .customer] | @csv' /tmp/paid.json > /tmp/paid.csv
sqlite3 -batch shop.db <<'SQL'
DROP TABLE IF EXISTS order_lines;
CREATE TABLE order_lines (order_id INTEGER, sku TEXT, quantity INTEGER);
CREATE TEMP TABLE paid (id INTEGER, customer INTEGER);
.mode csv
.import /tmp/lines.csv order_lines
.import /tmp/paid.csv paid
.mode json
.once /app/report.json
SELECT country, count(DISTINCT paid.id) AS orders, coalesce(sum(quantity * price_cents), 0) AS revenue_cents
  FROM paid JOIN customers ON customers.id = paid.customer
  LEFT JOIN order_lines ON order_id = paid.id LEFT JOIN products USING (sku)
  GROUP BY country ORDER BY revenue_cents DESC, country;
SQL
rm /tmp/paid.json /tmp/lines.csv /tmp/paid.csv
