/* Recipes of NeMo Automodel, and configurations of accelerate. */
#include "interop/accelerate.h"
#include "interop/automodel.h"
#include "tests/fuzz/import.h"

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  weft_fuzz_import (&weft_automodel, data, size);
  weft_fuzz_import (&weft_accelerate, data, size);
  return 0;
}
