#!/bin/sh
set -eu
exec perl "$(dirname "$0")/plan.pl"
