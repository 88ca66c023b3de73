/* SQLite databases of Nsight Systems: what is accepted has times, names and classes, and its
 * breakdown adds up. */
#include "interop/traces/names.h"
#include "interop/traces/nsys.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/trace.h"

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  const struct weft_trace_options options = { NULL };
  g_autoptr (weft_trace) trace = weft_trace_new ("fuzz");
  g_autoptr (GError) error = NULL;

  if (!weft_nsys_parse (trace, data, size, "fuzz", &options, &error))
    fuzz_trace_refused (error);
  else
    fuzz_trace_accepted (trace);
  return 0;
}
