/* Configurations of DeepSpeed, and classes of Megatron-Core. */
#include "interop/deepspeed.h"
#include "interop/megatron_core.h"
#include "tests/fuzz/import.h"

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  weft_fuzz_import (&weft_deepspeed, data, size);
  weft_fuzz_import (&weft_megatron_core, data, size);
  return 0;
}
