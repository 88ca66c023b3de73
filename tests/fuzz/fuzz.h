/* fuzz.h - interface of fuzz targets: any bytes go in, and nothing may crash, hang, leak or break
 * an invariant (which aborts). tests/fuzz/fuzz_main.c describes how to run them. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Name and type are those of LLVM libFuzzer. Returns 0. */
int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size);
