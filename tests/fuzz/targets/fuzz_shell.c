/* Shell scripts of Megatron-LM, which are followed and never run. */
#include "interop/megatron.h"
#include "tests/fuzz/import.h"

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  weft_fuzz_import (&weft_megatron_lm, data, size);
  return 0;
}
