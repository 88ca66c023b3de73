/* fuzz.h - interface of fuzz targets. A target accepts any bytes and must not crash, hang, leak or
 * violate an invariant (which aborts). tests/fuzz/fuzz_main.c describes how to run targets. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* LLVM libFuzzer calls a function of this name and type. Returns 0. */
int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size);
