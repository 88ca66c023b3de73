#!/usr/bin/env bash
# Packs what a GPU machine needs that has a driver, CUDA and PyTorch, but neither our libraries nor a
# network: programs built here for x86-64 and Hopper GPUs, and the shared libraries beside them.
#
#   tests/gpu/pack.sh [FOLDER]     build/gpu-pack; there, or anywhere it is copied to: FOLDER/run.sh
#
# SimGrid stays behind: only predictions need it.  So do CUDA's own libraries and those of the C and
# C++ compilers, which every machine with CUDA has; run.sh looks for the former.
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
# Paths to libraries are relative to the program, and hold for the libraries' own needs too.
cmake -G Ninja -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release \
  "-DWEFT_CUDA_ARCHITECTURES=90a-real;90-virtual" -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON \
  '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib;$ORIGIN/..' -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags \
  -DCMAKE_MODULE_LINKER_FLAGS=-Wl,--disable-new-dtags >"$log" 2>&1 ||
  die "cmake failed, see $log"
grep -q 'built without --executor cuda' "$log" &&
  die "found no CUDA toolkit 12.8 with NCCL 2.28, wanted one: see exec_cuda/module.cmake"
ninja -C "$build" weft weft_cuda bench_cuda test_gpu >>"$log" 2>&1 ||
  die "the build failed, see $log"

rm -rf -- "$pack"
mkdir -p -- "$pack"/{bin,lib/weft,share/weft,data}
cp -- "$build/weft" "$build/bench/bench_cuda" "$build/tests/test_gpu" "$pack/bin"
cp -- "$build/libweft_cuda.so" "$pack/lib/weft"
strip -- "$pack"/bin/* "$pack/lib/weft/libweft_cuda.so"
cp -r -- "$root"/{models,topologies,stacks} "$pack/share/weft"
cp -- "$root/tests/gpu/run.sh" "$root/bench/torch_twin.py" "$root/LICENSE" "$pack"

# What they are linked with, but for what every machine with CUDA has.
for file in "$pack"/bin/* "$pack/lib/weft/libweft_cuda.so"; do
  ldd "$file"
done | awk '$3 ~ /^\// { print $3 }' | sort -u |
  grep -Ev '/(ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcuda|libcudart|libcublas|libcublasLt|libnccl|libcupti)[-.]' |
  while read -r library; do
    cp -L -- "$library" "$pack/lib"
  done

# Tokens to train on: which ones does not matter, only that all models know them.
perl -e 'srand 1; print pack "v*", map { int rand 32000 } 1 .. 2_000_000' >"$pack/data/random.bin"

megabytes=$(($(du -sk -- "$pack" | cut -f1) / 1024))
((megabytes < most_megabytes)) || die "$pack: found $megabytes MB, wanted less than $most_megabytes"
printf 'pack.sh: %s: %d MB, %d libraries; on the GPU machine: run.sh RESULTS\n' \
  "$pack" "$megabytes" "$(find "$pack/lib" -maxdepth 1 -name '*.so*' | wc -l)" >&2
