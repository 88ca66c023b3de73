#!/usr/bin/env bash
# Runs everything that needs a GPU in less than nine minutes: the tests with label gpu, training compared
# with its PyTorch twin, the sanitizer, benchmarks of kernels, and a cost table for predictions.
#
#   tests/gpu/run.sh [FLAGS] [RESULTS]    in the repository: builds missing programs first
#   gpu-pack/run.sh  [FLAGS] [RESULTS]    in a folder made by tests/gpu/pack.sh: builds nothing
#
#   --only PART[,PART...]   run only these parts; --list prints all parts
#   --tiny                  nano models instead of the compared models: a trial of about a minute
#   --build DIR             use the programs in DIR and build nothing
#   --anyway                run the parts even if no GPU was found; each reports its own error
#
# RESULTS is a folder; default: $OUT if set, otherwise gpu-results.  The script writes h200.json or h100.json
# (named after the GPU; bench/results/README.md describes it), h200.costs for `weft sim --cost-table`,
# timelines of real steps for `weft compare`, and log.txt.  A part that fails or exceeds its limit does not
# stop the others.  The most important parts run first, and the document is rewritten after each part.
# Exit status: 0 all parts passed, 1 a part did not pass, 2 usage, 3 there is no GPU.
set -uo pipefail

here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
most_seconds=${WEFT_GPU_SECONDS:-530}
PATH=$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin # compute-sanitizer and nvidia-smi

say() { printf 'run.sh: %s\n' "$*" >&2; }

usage() {
  say "$@"
  exit 2
}

# ---------------------------------------------------------------------------------- arguments

only='' tiny='' build='' anyway='' list='' results=''
while (($#)); do
  case $1 in
    --only | --build)
      [[ -n ${2-} ]] || usage "$1: found nothing, wanted a value"
      [[ $1 == --only ]] && only=,$2, || build=$2
      shift
      ;;
    --tiny) tiny=1 ;;
    --anyway) anyway=1 ;;
    --list) list=1 ;;
    -*) usage "unknown flag $1" ;;
    *)
      [[ -z $results ]] || usage "found $1 after $results, wanted one folder"
      results=$1
      ;;
  esac
  shift
done
results=${results:-${OUT:-gpu-results}}

# ------------------------------------------------------------------------------------ programs

if [[ -x $here/bin/weft ]]; then
  programs=$here/bin tests=$here/bin benches=$here/bin
  twin=$here/torch_twin.py models=$here/share/weft/models text=$here/LICENSE data=$here/data/random.bin
else
  root=$(dirname -- "$(dirname -- "$here")")
  twin=$root/bench/torch_twin.py models=$root/models text=$root/LICENSE data=$root/LICENSE
  if [[ -z $build && -z $list ]]; then
    build=$root/build
    "$root/weft" --no-install knobs >/dev/null && ninja -C "$build" all >/dev/null ||
      usage "the build failed: a GPU machine may lack our libraries, tests/gpu/pack.sh packs them"
  fi
  programs=$build tests=$build/tests benches=$build/bench
fi

# Prints the folders of CUDA's libraries: those of the toolkit, and those installed with PyTorch.
library_folders() {
  local purelib folder
  purelib=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)
  for folder in /usr/local/cuda/lib64 /usr/local/cuda/lib ${CUDA_HOME:+"$CUDA_HOME/lib64"} \
    ${purelib:+"$purelib"/nvidia/*/lib}; do
    compgen -G "$folder/libcublasLt.so.*" >/dev/null || compgen -G "$folder/libnccl.so.*" >/dev/null ||
      compgen -G "$folder/libcupti.so.*" >/dev/null || compgen -G "$folder/libcudnn.so.*" >/dev/null ||
      continue
    printf '%s:' "$folder"
  done
}
libraries=$(library_folders)${LD_LIBRARY_PATH-}
ours=(env "LD_LIBRARY_PATH=${libraries%:}") # prefix for our programs; PyTorch finds its own libraries

# ---------------------------------------------------------------------------------- the device

query=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit
gpu=''
if ! command -v nvidia-smi >/dev/null; then
  why='nvidia-smi not found, so there is no driver'
elif ! gpu=$(timeout -k 5 20 nvidia-smi --query-gpu=$query --format=csv,noheader,nounits 2>&1) || [[ -z $gpu ]]; then
  why=$(head -n 1 <<<"${gpu:-nvidia-smi lists no GPU}")
  gpu=''
fi
gpu=${gpu%%$'\n'*}

# stem: name of the results; topology with the GPU's numbers; peak: TFLOP/s of bf16 in the vendor's data sheet.
case ${gpu%%,*} in
  *H200* | '') stem=h200 topology=hgx-h200 peak=989 ;;
  *H100*) stem=h100 topology=dgx-h100 peak=989 ;;
  *B200*) stem=b200 topology=dgx-b200 peak=2250 ;;
  *A100*) stem=a100 topology=dgx-a100 peak=312 ;;
  *) stem=gpu topology=hgx-h200 peak=989 ;;
esac
memory=$(awk -F', *' '{ print int($3) }' <<<"$gpu") # MiB
[[ -n $gpu ]] || memory=143771

gpu_json() {
  if [[ -z $gpu ]]; then
    printf 'null'
    return
  fi
  awk -F', *' '{ printf "{\"name\":\"%s\",\"driver\":\"%s\",\"memory_mib\":%d,\"sm_mhz_most\":%d," \
                        "\"memory_mhz_most\":%d,\"power_limit_w\":%d}", $1, $2, $3, $4, $5, $6 }' <<<"$gpu"
}

# -------------------------------------------------------------------------------------- models

# NAME MICRO GLOBAL SEQUENCE STEPS COMPILE LAYERS MIB | flags of Weft and of the twin
#
# With these batches, weights, fp32 masters and all activations fit on the GPU, for Weft (`weft memory`) and
# for the twin.  llama2-7b fits in 139 GiB because it accumulates gradients in fp32 without a second copy.  In
# 78 GiB, 14 of its layers fit, whose matmuls have the same shapes.  MIB: with less GPU memory, the model is
# skipped.
compared=(
  "gpt2 64 64 1024 20 model all 75000|"
  "qwen2.5-1.5b 16 32 1024 10 block all 130000|"
  "llama2-7b 1 16 4096 2 block all 130000|--grad-reduce-in-fp32"
)
if ((memory < 130000)); then
  compared[1]="qwen2.5-1.5b 8 32 1024 10 block all 75000|"
  compared[2]="llama2-7b 1 16 4096 3 block 14 75000|--grad-reduce-in-fp32"
fi
((memory < 75000)) && compared[0]="gpt2 8 64 1024 20 model all 16000|"
if [[ -n $tiny ]]; then
  compared=("gpt2-nano 2 2 32 3 none all 0|" "llama-nano 1 2 32 3 none 1 0|--grad-reduce-in-fp32")
  data=$text
fi

# Sets variables from a line of `compared`, and the arrays job, cut and train with command-line arguments.
read_line() {
  local head
  IFS='|' read -r head both <<<"$1"
  read -r name micro global sequence steps compile layers least <<<"$head"
  job=(--model "$name" --micro-batch-size "$micro" --global-batch-size "$global" --seq-length "$sequence"
    --topology "$topology" --gpus 1 --precision bf16 --reduction-order fast --gradient-accumulation-fusion $both)
  cut=()
  [[ $layers == all ]] || cut=(--num-layers "$layers")
  train=("${ours[@]}" "$programs/weft" train "${job[@]}" "${cut[@]}" --executor cuda --data "$data" --deadline 60 --json)
}

# --------------------------------------------------------------------------------------- parts

# Names of the test files in test_gpu, which it lists without leading blanks.
gpu_tests=()
if [[ -x $tests/test_gpu ]]; then
  mapfile -t gpu_tests < <("${ours[@]}" "$tests/test_gpu" | grep '^gpu_')
fi

# Most important first: if the first parts are slow, no time is left for the last.
first=${compared[0]%% *}
parts=(device test_gpu_kernels nano)
for line in "${compared[@]}"; do
  parts+=("${line%% *}" "${line%% *}-torch")
done
for name in "${gpu_tests[@]}"; do
  [[ $name == gpu_kernels ]] || parts+=("test_$name")
done
parts+=(sanitizer "$first-measure" "$first-timeline" kernels "$first-graph" "$first-fused" "$first-cupti"
  kernels-mma test_gpu_kernels-mma)
for line in "${compared[@]:1}"; do
  parts+=("${line%% *}-measure" "${line%% *}-timeline")
done
if [[ -n $list ]]; then
  printf '%s\n' "${parts[@]}"
  exit
fi

mkdir -p -- "$results" || usage "$results: no folder can be made there"
results=$(readlink -f -- "$results")
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
log=$results/log.txt
: >"$log"
records=$scratch/records # one JSON object per part and line
: >"$records"
begin=$SECONDS date=$(date -u +%Y-%m-%dT%H:%M:%SZ)

escaped() { sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/[[:cntrl:]]/ /g' <<<"$1" | tr -d '\n'; }

# record PART STATUS EXIT SECONDS WORDS: adds the outcome of a part to the records, and prints it.
record() {
  printf '{"part":"%s","status":"%s","exit":%d,"seconds":%d,"said":"%s"}\n' "$1" "$2" "$3" "$4" \
    "$(escaped "$5")" >>"$records"
  say "$(printf '%-22s %-8s %3d s  %s' "$1" "$2" "$4" "$5")"
}

wanted() { [[ -z $only || $only == *,$1,* ]]; }

# limited SECONDS COMMAND...: a limit in addition to timeout, which waits forever for a process in
# uninterruptible sleep.
limited() {
  local end=$((SECONDS + $1 + 15)) pid
  timeout -k 5 "$@" &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    ((SECONDS < end)) || return 137
    sleep 0.1
  done
  wait "$pid"
}

# part NAME LIMIT COMMAND...: runs a part for at most LIMIT seconds, with stdout in $scratch/NAME.out, and
# stdout and stderr in the log.
part() {
  local name=$1 limit=$2 left=$((most_seconds - (SECONDS - begin))) from=$SECONDS status word=passed
  shift 2
  wanted "$name" || return 1
  printf '\n==== %s: %s\n' "$name" "$*" >>"$log"
  if [[ -z $gpu && -z $anyway ]]; then
    record "$name" skipped 0 0 "no GPU: $why"
    return 1
  fi
  if ((left < 5)); then
    record "$name" late 0 0 "no time was left of $most_seconds s"
    return 1
  fi
  limited "$((limit < left ? limit : left))" "$@" >"$scratch/$name.out" 2>"$scratch/$name.err" </dev/null
  status=$?
  cat "$scratch/$name.out" "$scratch/$name.err" >>"$log"
  case $status in
    0) grep -q '^\[  PASSED  \] 0 test' "$scratch/$name.out" "$scratch/$name.err" && word=skipped ;;
    124 | 137) word=late ;;
    *) word=failed ;;
  esac
  [[ $name == sanitizer && $word == failed ]] && grep -q 'Device not supported' "$scratch/$name".{out,err} && word=skipped
  record "$name" "$word" "$status" "$((SECONDS - from))" \
    "$([[ $word == passed ]] || grep -Ev '^ *$|run.sh: line' "$scratch/$name.err" | tail -n 1)"
  write_results
  [[ $word == passed ]]
}

# ------------------------------------------------------------------------------------- results

# train_summary FILE TOKENS: summarises the output of `weft train --json` as one JSON object, without the
# first three steps.  TOKENS: tokens of a step.
train_summary() {
  local reserved
  reserved=$(sed -n 's/.*"reserved_bytes":\({[^}]*}\).*/\1/p' "$1" 2>/dev/null)
  grep '"step":' "$1" 2>/dev/null | awk -v tokens="$2" -v reserved="${reserved:-null}" '
    function number(key) {
      return match($0, "\"" key "\":[-+0-9.eE]+") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : "null"
    }
    { if (++n > 3) { time[++m] = number("time_s") + 0; share = number("mfu") * number("time_s") }
      peak = number("peak_bytes"); loss = number("loss") }
    END {
      if (m == 0) { print "null"; exit }
      for (i = 2; i <= m; i++) for (j = i; j > 1 && time[j] < time[j - 1]; j--) {
        keep = time[j]; time[j] = time[j - 1]; time[j - 1] = keep }
      middle = (time[int((m + 1) / 2)] + time[int(m / 2) + 1]) / 2
      printf "{\"steps\":%d,\"time_s\":%.6g,\"least_s\":%.6g,\"most_s\":%.6g,\"tokens_per_s\":%.6g,", m, middle, time[1], time[m], tokens / middle
      printf "\"mfu\":%.6g,\"peak_bytes\":%s,\"reserved_bytes\":%s,\"loss\":%s}\n", share / middle, peak, reserved, loss }'
}

# Prints the last line of a file that is a JSON object; null if there is none.
object_of() {
  local line
  line=$(grep '^{.*}$' "$1" 2>/dev/null | tail -n 1)
  printf '%s' "${line:-null}"
}

field() { sed -n "s/.*\"$1\":\\([-+0-9.eE]*\\).*/\\1/p" <<<"${2// /}"; }

listed() { [[ ! -s $1 ]] || paste -sd, -- "$1"; }

array_of() {
  local array
  array=$(cat "$1" 2>/dev/null)
  [[ ${array:0:1} == '[' ]] || array='[]'
  printf '%s' "$array"
}

# row_of LINE: prints a JSON object with the results of a model and its twin, as far as they have run.
row_of() {
  local name micro global sequence steps compile layers least both mine theirs ratio=null
  local -a job cut train
  read_line "$1"
  mine=$(train_summary "$scratch/$name.out" $((global * sequence)))
  theirs=$(object_of "$scratch/$name-torch.out")
  [[ $mine == null || $theirs == null ]] ||
    ratio=$(awk "BEGIN { printf \"%.4f\", $(field tokens_per_s "$mine") / $(field tokens_per_s "$theirs") }")
  printf '{"model":"%s","layers":"%s","seq_length":%d,"micro_batch_size":%d,"global_batch_size":%d,' \
    "$name" "$layers" "$sequence" "$micro" "$global"
  printf '"precision":"bf16","flags":"%s","weft":%s,"torch":%s,"weft_of_torch":%s}\n' "$both" "$mine" "$theirs" "$ratio"
}

# row_again WITH: prints the summary of the first model's run by run_again WITH.
row_again() {
  local name micro global sequence steps compile layers least both
  local -a job cut train
  read_line "${compared[0]}"
  train_summary "$scratch/$name-$1.out" $((global * sequence))
}

# Writes the document with the results so far, and replaces the former one atomically.
write_results() {
  local line
  for line in "${compared[@]}"; do
    row_of "$line"
  done >"$scratch/training"
  {
    printf '{"schema":"weft.gpu/1","date":"%s","gpu":' "$date"
    gpu_json
    [[ -n $gpu ]] || printf ',"why":"%s"' "$(escaped "$why")"
    printf ',"seconds":%d,\n"parts":[%s],\n"training":[%s],\n"graph":%s,\n"fused":%s,\n"kernels":%s,\n"kernels_mma":%s}\n' \
      $((SECONDS - begin)) "$(listed "$records")" "$(listed "$scratch/training")" "$(row_again graph)" \
      "$(row_again fused)" "$(array_of "$scratch/kernels.out")" "$(array_of "$scratch/kernels-mma.out")"
  } >"$scratch/document"
  cp -- "$scratch/document" "$results/.$stem.json" && mv -- "$results/.$stem.json" "$results/$stem.json"
}

# ------------------------------------------------------------------------- tests, then training

[[ -n $gpu ]] || say "no GPU: $why"
part device 15 bash -ec 'nproc; free -g; printf "%s\n" "$0"; nvidia-smi; nvidia-smi -q -d CLOCK,POWER,PERFORMANCE' \
  "libraries: $libraries"

gpu_test() { [[ ! -x $tests/test_gpu ]] || part "test_$1" "$2" "${ours[@]}" "$tests/test_gpu" "$1"; }
gpu_test gpu_kernels 70

# This run also chooses algorithms of matmuls and saves them for the run under the sanitizer, where every
# launch is slow.
tiny_run=("$programs/weft" train --executor cuda --model llama-nano --topology "$topology" --gpus 1 --precision bf16
  --reduction-order fast --seq-length 64 --data "$text" --steps 2 --no-shuffle --json)
part nano 25 "${ours[@]}" "${tiny_run[@]}"

# compare LIMIT LIMIT LINE: trains a model with Weft, then with its twin; limits in seconds.
compare() {
  local name micro global sequence steps compile layers least both
  local -a job cut train
  read_line "$3"
  if [[ -n $gpu ]] && ((memory < least)); then
    for name in "$name" "$name-torch"; do
      wanted "$name" && record "$name" skipped 0 0 "found $memory MiB of GPU memory, wanted $least"
    done
    return
  fi
  part "$name" "$1" "${train[@]}" --steps $((steps + 3))
  part "$name-torch" "$2" python3 "$twin" --config "$models/$name.json" --seq-length "$sequence" \
    --micro-batch-size "$micro" --global-batch-size "$global" --steps "$steps" --compile "$compile" \
    --peak-tflops "$peak" "${cut[@]}" $both
}
compare 40 70 "${compared[0]}"
compare 50 65 "${compared[1]}"
[[ -z ${compared[2]-} ]] || compare 120 70 "${compared[2]}" # initialising 7B weights on the host takes long

for name in "${gpu_tests[@]}"; do
  [[ $name == gpu_kernels ]] || gpu_test "$name" 60
done
part sanitizer 60 "${ours[@]}" compute-sanitizer --tool memcheck --error-exitcode 9 "${tiny_run[@]}"

# -------------------------------------------------------------------------------- a closer look

# look_closer LINE: measures rows of the cost table, with two layers, because all layers have the same kernels;
# then records the timeline of a step.
look_closer() {
  local name micro global sequence steps compile layers least both
  local -a job cut train
  read_line "$1"
  [[ -n $gpu ]] && ((memory < least)) && return
  part "$name-measure" 60 "${ours[@]}" "$programs/weft" measure "${job[@]}" --executor cuda --num-layers 2 \
    --output "$scratch/$name.costs" && cat "$scratch/$name.costs" >>"$results/$stem.costs"
  part "$name-timeline" 80 "${train[@]}" --steps 4 --timeline "$results/$name.timeline.json.gz"
}

# run_again WITH FLAGS...: trains the first model again with these flags.
run_again() {
  local name micro global sequence steps compile layers least both with=$1
  local -a job cut train
  shift
  read_line "${compared[0]}"
  part "$name-$with" 60 "${train[@]}" --steps $((steps + 3)) "$@"
}

bench_flags=()
[[ -n $tiny ]] && bench_flags=(--model gpt2-nano)
look_closer "${compared[0]}"
part kernels 45 "${ours[@]}" "$benches/bench_cuda" --json "${bench_flags[@]}"
# The first model with one CUDA graph per step (launches are a large part of its step time), with cuDNN
# attention, and with op times by CUPTI.
run_again graph --graph
run_again fused --attention-backend fused
run_again cupti --times cupti --timeline "$results/$first.cupti.json.gz"

# Attention and kernel tests again without wgmma, which GPUs of compute capability 9.0 use by default.
part kernels-mma 30 "${ours[@]}" WEFT_WARPGROUPS=0 "$benches/bench_cuda" --json --op attention "${bench_flags[@]}"
[[ -x $tests/test_gpu ]] &&
  part test_gpu_kernels-mma 80 "${ours[@]}" WEFT_WARPGROUPS=0 "$tests/test_gpu" gpu_kernels
for line in "${compared[@]:1}"; do
  look_closer "$line"
done

# Prints MODEL OP MICROSECONDS for each row of a benchmark's JSON.
times_of() {
  awk -F'"' '/"model"/ { model = $4 } /"op"/ { op = $4 } /"by"/ { by = $4 }
    /"seconds"/ && by == "weft" { sub(/.*: */, ""); printf "%s %s %.1f\n", model, op, $0 * 1e6 }' \
    "$1" 2>/dev/null
}
while read -r name op mma; do
  with=$(times_of "$scratch/kernels.out" | awk -v m="$name" -v o="$op" '$1 == m && $2 == o { print $3; exit }')
  say "$name $op: ${with:-?} us, with mma.sync $mma us"
done < <(times_of "$scratch/kernels-mma.out")

write_results
say "$results/$stem.json: $(grep -c '"passed"' "$records") passed of $(wc -l <"$records") parts, $((SECONDS - begin)) s"
[[ -n $gpu ]] || exit 3
! grep -qE '"status":"(failed|late)"' "$records"
