#!/usr/bin/env bash
# The effect of precisions on the loss: trains a small model with each on the CPU, prints a table for
# docs/numerics.md and draws the losses.
#
#   bench/fp8_loss.sh [PICTURE.svg]        WEFT names the program (./weft), STEPS the steps (300)
set -euo pipefail

self=$(readlink -f -- "${BASH_SOURCE[0]}")
root=$(dirname -- "$(dirname -- "$self")")
weft=${WEFT:-$root/weft} steps=${STEPS:-300}
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

# name|flags|color
runs=(
  "fp32|--precision fp32|#444444"
  "bf16|--precision bf16|#4477aa"
  "fp8 delayed|--precision fp8 --fp8-recipe delayed|#ee6677"
  "fp8 tensorwise|--precision fp8 --fp8-recipe tensorwise|#228833"
  "fp8 blockwise|--precision fp8 --fp8-recipe blockwise|#ccbb44"
  "fp8 mxfp8|--precision fp8 --fp8-recipe mxfp8|#aa3377"
)

# The text to train on: the pages of this repository, whose content does not matter.
cat "$root"/README.md "$root"/docs/n*.md "$root"/docs/t*.md >"$scratch/text"
n=0
for run in "${runs[@]}"; do
  IFS='|' read -r name flags color <<<"$run"
  # shellcheck disable=SC2086 # flags are several words
  "$weft" train --model gpt2-nano --topology cpu --gpus 1 --data "$scratch/text" --seq-length 128 \
    --micro-batch-size 4 --global-batch-size 4 --steps "$steps" --json $flags 2>"$scratch/said" |
    sed -n 's/^{"step":\([0-9]*\),.*"loss":\([0-9.eE+-]*\),.*/\1 \2/p' >"$scratch/$n" ||
    {
      cat "$scratch/said" >&2
      exit 1
    }
  printf '%s|%s\n' "$name" "$color" >>"$scratch/names"
  n=$((n + 1))
done

awk -v names="$scratch/names" -v picture="${1-}" -v folder="$scratch" -v n="$n" '
function x_of(panel, step) { return 60 + panel * 450 + 380 * step / last }
function y_of(panel, v) { return 330 - 300 * (v - low[panel]) / (high[panel] - low[panel]) }
function line(panel, i,    s, d, v) {
  d = ""
  for (s = 1; s <= last; s++) {
    v = panel ? mean[i, s] - mean[0, s] : loss[i, s]
    if (panel && s < 10) continue
    d = d sprintf("%s%.1f %.1f", d == "" ? "M" : "L", x_of(panel, s), y_of(panel, v))
  }
  printf "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.2\"/>\n", d, color[i] >picture
}
function axis(panel, title,    k, v) {
  printf "<rect x=\"%d\" y=\"30\" width=\"380\" height=\"300\" fill=\"none\" stroke=\"#888\"/>\n", 60 + panel * 450 >picture
  printf "<text x=\"%d\" y=\"20\" text-anchor=\"middle\" font-size=\"13\">%s</text>\n", 250 + panel * 450, title >picture
  for (k = 0; k <= 4; k++) {
    v = low[panel] + (high[panel] - low[panel]) * k / 4
    printf "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.*f</text>\n", 55 + panel * 450, y_of(panel, v) + 4, panel ? 3 : 1, v >picture
    printf "<text x=\"%.1f\" y=\"345\" text-anchor=\"middle\">%d</text>\n", x_of(panel, last * k / 4), last * k / 4 >picture
  }
}
BEGIN {
  for (i = 0; i < n; i++) {
    getline row <names
    split(row, part, "|"); name[i] = part[1]; color[i] = part[2]
    while ((getline row <(folder "/" i)) > 0) { split(row, part, " "); last = part[1]; loss[i, last] = part[2] }
    for (s = 1; s <= last; s++) {
      sum = few = 0
      for (k = s > 10 ? s - 9 : 1; k <= s; k++) { sum += loss[i, k]; few++ }
      mean[i, s] = sum / few
    }
  }
  print "| precision | step 1 | step " last / 2 " | step " last " | mean of the last 20 | from fp32 |"
  print "|---|---|---|---|---|---|"
  for (i = 0; i < n; i++) {
    sum = 0
    for (s = last - 19; s <= last; s++) sum += loss[i, s] / 20
    if (i == 0) base = sum
    printf "| %s | %.4f | %.4f | %.4f | %.4f | %+.2f %% |\n", name[i], loss[i, 1], loss[i, int(last / 2)], loss[i, last], sum, 100 * (sum / base - 1)
  }
  if (picture == "") exit
  low[0] = 0; high[0] = 6
  for (i = 0; i < n; i++)
    for (s = 10; s <= last; s++) {
      d = mean[i, s] - mean[0, s]
      if (d < low[1]) low[1] = d
      if (d > high[1]) high[1] = d
    }
  print "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"920\" height=\"390\" viewBox=\"0 0 920 390\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#777\">" >picture
  print "<title>Loss with several precisions</title>" >picture
  axis(0, "loss"); axis(1, "mean of ten losses, less that of fp32")
  for (i = 0; i < n; i++) {
    line(0, i); line(1, i)
    printf "<text x=\"%d\" y=\"375\" fill=\"%s\">%s</text>\n", 60 + i * 140, color[i], name[i] >picture
  }
  print "</svg>" >picture
}' </dev/null
