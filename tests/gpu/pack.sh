#!/usr/bin/env bash
# Packs a folder for a GPU machine that has a driver, CUDA and PyTorch, but neither our libraries nor a
# network: programs built here for x86-64 and Hopper GPUs, and the shared libraries that they need.
#
#   tests/gpu/pack.sh [FOLDER]     FOLDER: build/gpu-pack by default. On the GPU machine: FOLDER/run.sh
#
# SimGrid is left out, because only predictions need it.  CUDA's libraries and those of the C and C++
# compilers are left out, because every machine with CUDA has them; run.sh searches for CUDA's.
set -euo pipefail

self=$(readlink -f -- "${BASH_SOURCE[0]}")
root=$(dirname -- "$(dirname -- "$(dirname -- "$self")")")
pack=${1:-$root/build/gpu-pack}
build=$root/build-gpu
log=$build/pack.log
most_megabytes=60

die() {
  printf 'pack.sh: %s\n' "$*" >&2
  exit 1
}

[[ $(uname -m) == x86_64 ]] || die "found $(uname -m), wanted x86_64: GPU machines are"

mkdir -p -- "$build"
# Library paths are relative to the program.  DT_RPATH (not RUNPATH) also applies to dependencies of libraries.
cmake -G Ninja -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release \
  "-DWEFT_CUDA_ARCHITECTURES=90a-real;90-virtual" -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON \
  '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib;$ORIGIN/..' -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags \
  -DCMAKE_MODULE_LINKER_FLAGS=-Wl,--disable-new-dtags >"$log" 2>&1 ||
  die "cmake failed, see $log"
grep -q 'built without --executor cuda' "$log" &&
  die "found no CUDA toolkit 12.8 with NCCL 2.28, wanted one: see exec_gpu/cuda/module.cmake"
ninja -C "$build" weft weft_cuda bench_cuda test_gpu >>"$log" 2>&1 ||
  die "the build failed, see $log"

rm -rf -- "$pack"
mkdir -p -- "$pack"/{bin,lib/weft,share/weft,data}
cp -- "$build/weft" "$build/bench/bench_cuda" "$build/tests/test_gpu" "$pack/bin"
cp -- "$build/libweft_cuda.so" "$pack/lib/weft"
strip -- "$pack"/bin/* "$pack/lib/weft/libweft_cuda.so"
cp -r -- "$root"/{models,topologies,stacks} "$pack/share/weft"
cp -- "$root/tests/gpu/run.sh" "$root/bench/torch_twin.py" "$root/LICENSE" "$pack"
cp -r -- "$root/tests/gpu/contact" "$pack"
rm -rf -- "$pack/contact/__pycache__"

# Copies the libraries that the programs are linked with, except those of every machine with CUDA.
for file in "$pack"/bin/* "$pack/lib/weft/libweft_cuda.so"; do
  ldd "$file"
done | awk '$3 ~ /^\// { print $3 }' | sort -u |
  grep -Ev '/(ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcuda|libcudart|libcublas|libcublasLt|libnccl|libcupti)[-.]' |
  while read -r library; do
    cp -L -- "$library" "$pack/lib"
  done

# Random tokens to train on, all in the vocabulary of every model.
perl -e 'srand 1; print pack "v*", map { int rand 32000 } 1 .. 2_000_000' >"$pack/data/random.bin"

megabytes=$(($(du -sk -- "$pack" | cut -f1) / 1024))
((megabytes < most_megabytes)) || die "$pack: found $megabytes MB, wanted less than $most_megabytes"
printf 'pack.sh: %s: %d MB, %d libraries; on the GPU machine: run.sh RESULTS\n' \
  "$pack" "$megabytes" "$(find "$pack/lib" -maxdepth 1 -name '*.so*' | wc -l)" >&2
