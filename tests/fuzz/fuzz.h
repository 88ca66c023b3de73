/* fuzz.h - what every fuzz target defines: bytes from anywhere go in, and nothing may crash, hang,
 * leak or break a promise (then it aborts).  tests/fuzz/fuzz_main.c says how to run them. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* The name and type are LLVM libFuzzer's.  Returns 0. */
int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size);
