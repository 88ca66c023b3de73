#!/bin/sh
# Stands in for every program that tests/gpu/contact runs on a GPU machine: a test links it under their names.
# Prints what the program would print, as far as the results need it.  It proves what run.sh does with outputs,
# faults and time limits, and nothing about a GPU.
#
# FAULTS in the environment: words PART:ACTION, or OP:ACTION for an op of bench_cuda.  ACTION:
#   fault      an error of the CUDA runtime, behind the output of the program
#   default    the same, but only with the way `default` (tests/gpu/contact/parts.py)
#   own        the same, but with cuDNN's attention it runs
#   late       the exit status of a program that exceeded its limit
#   hang       does not end
#   library    the loader does not find a library
# SEEN: a folder that gets the document as each part finds it; RESULTS: the folder with the document.
name=${0##*/} all="$*"

fused=''
case $all in *'--attention-backend fused'*) fused=1 ;; esac

# act WORD: what FAULTS says about a part or an op.
act() {
  case " $FAULTS " in
    *" $1:hang "*) exec sleep 60 ;;
    *" $1:late "*) exit 124 ;;
    *" $1:library "*)
      echo "$name: error while loading shared libraries: libnccl.so.2: cannot open shared object file" >&2
      exit 127
      ;;
    *" $1:fault "*) fail ;;
    *" $1:default "*) [ -n "$WEFT_WARPGROUPS$fused" ] || fail ;;
    *" $1:own "*) [ -n "$fused" ] || fail ;;
  esac
}

fail() {
  [ "$name" = test_gpu ] && echo 'attention: status 1'
  echo 'weft: rank 0: attention (L0 attention m0): kernel: an illegal memory access was encountered' >&2
  exit 1
}

# value FLAG ARGUMENTS...: the value of a flag.
value() {
  wanted=$1
  shift
  while [ $# -gt 0 ]; do
    [ "$1" = "$wanted" ] && found=$2 && return
    shift
  done
  found=''
}

train() {
  for step in 1 2 3 4 5 6 7; do
    echo "{\"step\":$step,\"loss\":2.5,\"time_s\":0.${step}5,\"mfu\":0.5,\"peak_bytes\":1000}"
  done
  [ -d "$XDG_CACHE_HOME/weft" ] || mkdir -p "$XDG_CACHE_HOME/weft"
  [ -e "$XDG_CACHE_HOME/weft/products-0.txt" ] || echo 'a machine' >"$XDG_CACHE_HOME/weft/products-0.txt"
  echo "00ff m=16 type=bf16 algorithm=66 ms=0.5 tflops=600.5 part=$WEFT_PART" >>"$XDG_CACHE_HOME/weft/products-0.txt"
  echo '{"last":true,"reserved_bytes":{"NCCL":5}}'
}

bench() {
  case $all in
    *--device*)
      echo '{"library":"NCCL","version":"2.28.3","path":"/lib/libnccl.so.2"}'
      echo '{"device":"NVIDIA H200","sms":132}'
      return
      ;;
    *--ceilings*)
      echo '{"ceiling":"copy","bytes_per_s":4.3e12,"seconds":0.001}'
      return
      ;;
  esac
  value --model "$@"
  model=$found
  value --from "$@"
  number=0
  for op in embed attention norm attention_bwd adam; do
    if [ $number -ge "${found:-0}" ]; then
      echo "{\"model\":\"$model\",\"begins\":\"$op\",\"number\":$number}"
      act $op
      echo "{\"model\":\"$model\",\"op\":\"$op\",\"by\":\"weft\",\"seconds\":0.001}"
    fi
    number=$((number + 1))
  done
}

smi() {
  case $all in
    *clocks.sm,*) printf '1980, 3201, 650.1, 60, 0x0000000000000004\n1755, 3201, 699.0, 61, 0x0000000000000000\n' ;;
    *--query-gpu*) echo 'NVIDIA H200, 580.159.04, 143771, 1980, 3201, 700.00' ;;
    *) echo 'a table' ;;
  esac
}

[ -z "$SEEN" ] || [ -z "$WEFT_PART" ] || [ ! -e "$RESULTS/h200.json" ] || cp "$RESULTS/h200.json" "$SEEN/$WEFT_PART"
case $name in
  nvidia-smi) smi ;;
  weft)
    value --timeline "$@"
    [ -z "$found" ] || echo '{}' >"$found"
    value --output "$@"
    [ -z "$found" ] || echo 'attention 1' >"$found"
    train
    ;;
  bench_cuda) bench "$@" ;;
  test_gpu)
    [ $# -gt 0 ] || printf 'Rooms:\ngpu_kernels\ngpu_processes\ngpu_train\n'
    echo '[  PASSED  ] 3 test(s).'
    ;;
  ncu) printf '==PROF== connected\n"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n"0","attend","1,234"\n' ;;
  compute-sanitizer) echo '========= ERROR SUMMARY: 0 errors' ;;
  *) echo '{"tokens_per_s":1000.5,"mfu":0.4,"steps":3}' ;;
esac
[ -z "$WEFT_PART" ] || act "${WEFT_PART%-blocking}"
exit 0
