#!/usr/bin/env bash
# run.sh BUILD [SEED [PERCENT]]: runs the long form of the tests in tests/attack/ from a build folder
# that contains tests/test_attack, then the fuzz targets.  `./weft test --attack` calls this script.
# PERCENT: share of the cases that are run [100].  Prints one line for each driver and target and the
# output of its faults; exits with status 1 if there were faults.
set -euo pipefail

build=$1 seed=${2-$(date +%Y%m%d)} percent=${3-100}
failed=0

# Names of the drivers and their numbers of cases: 200 jobs with hostile peers, 1,000 kills, each byte
# of a checkpoint once, every pair of knob and value once, 20,000 command lines.
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
attack_pins 600
attack_lines 20000
CASES

# Ten million executions of the fuzz targets together, with the sanitizers of the build folder.
case $(grep '^WEFT_SANITIZE:' -- "$build/CMakeCache.txt") in
  *address*) sanitizers=address,undefined ;;
  *thread*) exit $failed ;; # the targets have no threads
  *) sanitizers=none ;;
esac
"$(dirname -- "${BASH_SOURCE[0]}")/../fuzz/run.sh" "$build-fuzz" "$seed" \
  $((100000 * percent)) "$sanitizers" || failed=1
exit $failed
