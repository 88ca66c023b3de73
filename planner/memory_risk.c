#include "planner/memory_risk.h"
#include <math.h>

double
weft_memory_error (weft_bands *bands, const struct weft_job *job)
{
  const struct weft_traits traits = weft_traits_of (job);
  struct weft_band band = weft_bands_of (bands, &traits, WEFT_MEMORY);

  return fmax (0, band.rows ? band.high : 0);
}

gboolean
weft_memory_is_risky (weft_bands *bands, const struct weft_job *job, double bytes)
{
  return bytes * (1 + weft_memory_error (bands, job)) > job->cluster.f.gpu_memory;
}
