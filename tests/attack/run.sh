#!/usr/bin/env bash
# run.sh BUILD [SEED [PERCENT]]: the long form of tests/attack/, from any build folder that holds
# tests/test_attack; `./weft test --attack` calls it.  PERCENT of the cases are run [100].  Prints
# one line for each driver and what its faults printed; ends with status 1 if there were faults.
set -euo pipefail

build=$1 seed=${2-$(date +%Y%m%d)} percent=${3-100}
failed=0

# Names of the drivers and their numbers of cases: 200 jobs among strangers, 1,000 kills, each byte
# of a checkpoint once, every pair of knob and value four times, 20,000 command lines.
while read -r name cases; do
  log=$build/$name.log
  if "$build/tests/test_attack" "$name" -- "$seed" $((cases * percent / 100)) >"$log" 2>&1; then
    end=passed
  else
    end=FAILED
    failed=1
    grep -v '^\[' -- "$log"
  fi
  printf '%s %s: %s\n' "$name" "$end" "$(grep '^seed ' -- "$log" || true)"
done <<'CASES'
attack_peers 200
attack_kills 1000
attack_flips 60000
attack_pins 2500
attack_lines 20000
CASES
exit $failed
