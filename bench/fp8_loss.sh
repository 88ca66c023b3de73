#!/usr/bin/env bash
# The effect of precisions on the loss: trains a small model with each on the CPU, prints a table for
# docs/numerics.md and writes the losses as CSV, which `weft draw` draws.
#
#   bench/fp8_loss.sh [LOSSES.csv]         WEFT names the program (./weft), STEPS the steps (300)
set -euo pipefail

self=$(readlink -f -- "${BASH_SOURCE[0]}")
root=$(dirname -- "$(dirname -- "$self")")
weft=${WEFT:-$root/weft} steps=${STEPS:-300}
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

# name|flags
runs=(
  "fp32|--precision fp32"
  "bf16|--precision bf16"
  "fp8 delayed|--precision fp8 --fp8-recipe delayed"
  "fp8 tensorwise|--precision fp8 --fp8-recipe tensorwise"
  "fp8 blockwise|--precision fp8 --fp8-recipe blockwise"
  "fp8 mxfp8|--precision fp8 --fp8-recipe mxfp8"
)

# The text to train on: the pages of this repository, whose content does not matter.
cat "$root"/README.md "$root"/docs/n*.md "$root"/docs/t*.md >"$scratch/text"
seq 1 "$steps" >"$scratch/steps"
names=step columns=("$scratch/steps")
for run in "${runs[@]}"; do
  IFS='|' read -r name flags <<<"$run"
  # shellcheck disable=SC2086 # flags are several words
  "$weft" train --model gpt2-nano --topology cpu --gpus 1 --data "$scratch/text" --seq-length 128 \
    --micro-batch-size 4 --global-batch-size 4 --steps "$steps" --json $flags 2>"$scratch/said" |
    sed -n 's/^{"step":[0-9]*,.*"loss":\([0-9.eE+-]*\),.*/\1/p' >"$scratch/$name" ||
    {
      cat "$scratch/said" >&2
      exit 1
    }
  names+=",$name"
  columns+=("$scratch/$name")
done
{
  echo "$names"
  paste -d , "${columns[@]}"
} >"$scratch/losses.csv"

awk -F , '
NR == 1 { n = NF; for (i = 2; i <= n; i++) name[i] = $i; next }
{ last = NR - 1; for (i = 2; i <= n; i++) loss[i, last] = $i }
END {
  print "| precision | step 1 | step " last / 2 " | step " last " | mean of the last 20 | from fp32 |"
  print "|---|---|---|---|---|---|"
  for (i = 2; i <= n; i++) {
    sum = 0
    for (s = last - 19; s <= last; s++) sum += loss[i, s] / 20
    if (i == 2) base = sum
    printf "| %s | %.4f | %.4f | %.4f | %.4f | %+.2f %% |\n", name[i], loss[i, 1], loss[i, int(last / 2)], loss[i, last], sum, 100 * (sum / base - 1)
  }
}' "$scratch/losses.csv"
if [ -n "${1-}" ]; then cp -- "$scratch/losses.csv" "$1"; fi
