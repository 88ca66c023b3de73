#!/usr/bin/env bash
# bench/kill_save.sh [KILLS] [WEFT]: kills `weft train --save-interval 1` with SIGKILL at random
# moments.  Each run resumes from the last checkpoint; runs use one rank and two ranks in turn.
#
# After every kill the newest complete checkpoint must load and be no older than before, and the
# next step from it must have the loss of a run that was not killed, digit for digit.  Prints the
# numbers of kills, steps and differences; status 1 if a checkpoint was lost or a loss differs.
set -euo pipefail
root=$(cd -- "$(dirname -- "$0")/.." && pwd)
kills=${1:-100}
weft=${2:-$root/build/weft}
most_ms=600     # longest time before a kill; the first checkpoint is complete after about 100 ms
damaged=0       # kills that left unfinished files
most_newer=0    # largest number of steps that a run added

dir=$(mktemp -d)
trap 'rm -rf -- "$dir"' EXIT
job=(--model gpt2-nano --seq-length 32 --global-batch-size 2 --data "$root/README.md")

# Runs one more step from the newest checkpoint without saving; prints the step and its loss.
resume() {
  local step=$1
  "$weft" train "${job[@]}" --load "$dir/ck" --steps "$((step + 1))" --json 2>"$dir/err" |
    sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p'
}

# Prints the newest step whose folder has its final name; 0: none.
newest() {
  local found
  found=$(find "$dir/ck" -maxdepth 1 -name 'step-[0-9]*' ! -name '*.*' -printf '%f\n' 2>/dev/null |
    sort | tail -n 1)
  printf '%d' "$((10#${found#step-} + 0))" 2>/dev/null || printf 0
}

fail() {
  printf 'kill_save: kill %d: %s\n' "$i" "$*" >&2
  cat -- "$dir/err" >&2 || true
  ls -R -- "$dir/ck" >&2
  exit 1
}

: >"$dir/losses"
before=0
for ((i = 1; i <= kills; i++)); do
  load=()
  ((before == 0)) || load=(--load "$dir/ck")
  ranks=(--gpus 1)
  ((i % 2)) || ranks=(--gpus 2 --use-distributed-optimizer)
  "$weft" train "${job[@]}" "${ranks[@]}" "${load[@]}" --steps 1000000 --save "$dir/ck" --save-interval 1 \
    >/dev/null 2>"$dir/err" &
  victim=$!
  sleep "$(printf '0.%03d' $((RANDOM % most_ms)))"
  kill -KILL "$victim" 2>/dev/null || fail "the run ended by itself"
  wait "$victim" 2>/dev/null || true
  now=$(newest)
  ((now >= before)) || fail "the newest checkpoint is step $now, before it was $before"
  [[ $(ls -A "$dir/ck" 2>/dev/null | grep -cv -e '^step-[0-9]*$' -e '^latest$' -e '^.lock$') == 0 ]] ||
    damaged=$((damaged + 1))
  if ((now > 0)); then
    line=$(resume "$now") || fail "the checkpoint of step $now does not load"
    [[ ${line%% *} == "$((now + 1))" ]] || fail "resumed at \"$line\", wanted step $((now + 1))"
    printf '%s\n' "$line" >>"$dir/losses"
  fi
  ((now - before <= most_newer)) || most_newer=$((now - before))
  before=$now
done

"$weft" train "${job[@]}" --steps "$((before + 1))" --json 2>/dev/null |
  sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' >"$dir/whole"
wrong=$(sort -u "$dir/losses" | grep -vxFc -f "$dir/whole" || true)
printf '%d kills, step %d reached, at most %d steps in a life; %d left something unfinished\n' \
  "$kills" "$before" "$most_newer" "$damaged"
printf '%d resumed, %d of them with another loss than the whole run\n' \
  "$(wc -l <"$dir/losses")" "$wrong"
((wrong == 0))
