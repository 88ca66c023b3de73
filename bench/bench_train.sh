#!/usr/bin/env bash
# Times training steps of Weft and of PyTorch on the CPU: GPT-2 124M, fp32, one sequence.
#
#   bench/bench_train.sh [--json] [--steps N] [--threads N] [--seq-length N]
#                        [--micro-batch-size N] [--global-batch-size N]
#
# PYTHON names the interpreter that has PyTorch (python3).  Without PyTorch only Weft is measured.
# The fastest step counts, because other programs only add time.  The first step, which allocates
# memory, is not counted.
set -euo pipefail

self=$(readlink -f -- "${BASH_SOURCE[0]}")
bench=${self%/*}
root=${bench%/*}

die() {
  printf 'bench_train.sh: %s\n' "$*" >&2
  exit 2
}

json=0 steps=5 threads=1 length=256
batch=(--micro-batch-size 1 --global-batch-size 1)
while (($#)); do
  case $1 in
    --json)
      json=1
      shift
      continue
      ;;
    --steps | --threads | --seq-length | --micro-batch-size | --global-batch-size)
      [[ ${2-} =~ ^[1-9][0-9]*$ ]] || die "$1: found \"${2-}\", wanted a whole number from 1" ;;
    *) die "unknown flag $1" ;;
  esac
  case $1 in
    --steps) steps=$2 ;;
    --threads) threads=$2 ;;
    --seq-length) length=$2 ;;
    *) batch+=("$1" "$2") ;; # the last of two equal flags counts
  esac
  shift 2
done
shape=(--seq-length "$length" "${batch[@]}" --threads "$threads")

scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

# Prints Weft's tokens/s.  The text to train on is Weft's source code; its content does not matter.
weft_speed() {
  cat "$root"/*/*.c >"$scratch/text"
  "$root/weft" train --model gpt2 --topology cpu --gpus 1 --precision fp32 --data "$scratch/text" \
    "${shape[@]}" --steps $((steps + 1)) --json >"$scratch/weft.json" || return
  sed -n 's/^{"step":.*"tokens_per_s":\([0-9.eE+-]*\).*/\1/p' "$scratch/weft.json" | tail -n +2 |
    sort -g | tail -n 1
}

torch_speed() {
  "${PYTHON:-python3}" "$bench/torch_cpu.py" "${shape[@]}" --steps "$steps" >"$scratch/torch.json"
  sed -n 's/.*"tokens_per_s": \([0-9.eE+-]*\).*/\1/p' "$scratch/torch.json"
}

weft=$(weft_speed) || die "weft train failed"
torch=$(torch_speed) || torch=''
ratio=''
[[ -z $torch ]] || ratio=$(awk "BEGIN { printf \"%.3f\", $weft / $torch }")

if ((json)); then
  printf '{"threads":%d,"seq_length":%d,"weft_tokens_per_s":%s,"torch_tokens_per_s":%s,"ratio":%s}\n' \
    "$threads" "$length" "$weft" "${torch:-null}" "${ratio:-null}"
  exit
fi
if [[ -z $torch ]]; then
  printf 'weft     %8.1f tokens/s\nPyTorch  not measured: %s\n' "$weft" \
    "not installed here (PYTHON names another interpreter)"
  exit
fi
name=$(sed -n 's/.*"software": "\([^"]*\)".*/\1/p' "$scratch/torch.json")
printf '%-18s %8.1f tokens/s\n' weft "$weft" "$name" "$torch"
printf '%-18s %8s\n' "weft / PyTorch" "$ratio"
