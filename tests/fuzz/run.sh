#!/usr/bin/env bash
# run.sh FOLDER [SEED [EXECUTIONS [SANITIZERS]]]: searches for new inputs with every fuzz target.
# Builds the targets in FOLDER with clang's libFuzzer, then runs them from the inputs in inputs/,
# EXECUTIONS times together [10000000].  All targets get equal shares, but a slow target stops after
# five minutes, and the others run its part of the executions in a further round.  SANITIZERS: none
# [default], or a list such as address,undefined.  `./weft test --attack` calls this script.  Prints
# one line for each target and round.  New inputs, logs and inputs that failed stay in FOLDER.
# Exits with status 1 if a target failed; without clang it says so and exits with status 0.
set -euo pipefail

fuzz=$(readlink -f -- "${BASH_SOURCE[0]%/*}")
folder=$1 seed=${2-$(date +%Y%m%d)} executions=${3-10000000} sanitizers=${4-none}
failed=0 most_seconds=300

if ! command -v clang >/dev/null; then
  echo "fuzz targets: skipped, because clang was not found"
  exit 0
fi
mkdir -p -- "$folder"
folder=$(readlink -f -- "$folder")
log=$folder/build.log
cmake -S "$fuzz/../.." -B "$folder" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON \
  -DWEFT_LIBFUZZER="$sanitizers" >"$log" 2>&1 &&
  ninja -C "$folder" fuzz_targets >>"$log" 2>&1 ||
  { tail -n 20 -- "$log"; exit 1; }

# Some targets write a file for each input: in memory where there is a folder for that.
if [[ -d /dev/shm && -w /dev/shm ]]; then
  TMPDIR=$(mktemp -d /dev/shm/weft-fuzz-XXXXXX)
  export TMPDIR
  trap 'rm -rf -- "$TMPDIR"' EXIT
fi

# run_target NAME RUNS SEED: sets `executed`. Leaks are looked for at the end of a run
# (-detect_leaks=0 would hide those of single inputs too).
run_target() {
  local name=$1 short=${1#fuzz_} new=$folder/new/$1 end=passed status=0
  mkdir -p -- "$new" "$folder/failed"
  "$folder/tests/fuzz/$name" -seed="$3" -runs="$2" -max_total_time=$most_seconds -max_len=4096 \
    -timeout=20 -rss_limit_mb=2048 -artifact_prefix="$folder/failed/$name-" "$new" \
    "$fuzz/inputs/$short" >"$folder/$name.log" 2>&1 || status=$?
  if ((status)); then
    end="FAILED, status $status"
    tail -n 30 -- "$folder/$name.log"
  fi
  executed=$(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' -- "$folder/$name.log")
  printf '%s %s: %s executions, seed %s\n' "$name" "$end" "${executed:-?}" "$3"
  return $((status != 0))
}

mapfile -t targets < <(basename -s .c -a -- "$fuzz"/targets/fuzz_*.c)
left=$executions
for ((round = 0; left > 0 && ${#targets[@]}; round++)); do
  share=$(((left + ${#targets[@]} - 1) / ${#targets[@]})) quick=()
  for target in "${targets[@]}"; do
    run_target "$target" "$share" $((seed + round)) || { failed=1; continue; }
    left=$((left - executed))
    ((executed < share)) || quick+=("$target")
  done
  targets=("${quick[@]}")
done
((failed)) || echo "fuzz targets: $((executions - left)) executions, no fault"
exit $failed
