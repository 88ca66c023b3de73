/* Job configurations of torchtitan. */
#include "interop/torchtitan.h"
#include "tests/fuzz/import.h"

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  weft_fuzz_import (&weft_torchtitan, data, size);
  return 0;
}
