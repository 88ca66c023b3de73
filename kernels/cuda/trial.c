#include "kernels/cuda/trial.h"
#include "core/base/words.h"
#include <cuda_runtime.h>

#define PATTERN (1u << 20) /* elements */
enum { N_RUNS = 5, PAUSE = 20 /* microseconds between two questions whether a run has ended */ };

double weft_trial_limit = 10;
static gboolean hung; /* work of this process does not end */

uint32_t
weft_trial_alignment (const void *at)
{
  uintptr_t bits = (uintptr_t) at | 256;
  return at ? (uint32_t) (bits & (~bits + 1)) : 0;
}

static uint64_t
size_of (uint8_t dtype)
{
  return weft_dtype_bytes ((enum weft_dtype) dtype);
}

/* Random numbers of magnitude 0.5 to 1, of both signs. fp8 codes stand for numbers from 1 to 2. */
static void
fill_pattern (uint8_t dtype, void *out)
{
  uint32_t seed = 1;

  for (uint32_t i = 0; i < PATTERN; i++) {
    seed = seed * 1664525 + 1013904223;
    if (dtype == WEFT_FP32)
      ((uint32_t *) out)[i] = (seed & 0x807fffff) | 0x3f000000;
    else if (dtype == WEFT_FP8)
      ((uint8_t *) out)[i] = (uint8_t) ((seed >> 24 & 0x87) | 0x38);
    else if (dtype == WEFT_E5M2)
      ((uint8_t *) out)[i] = (uint8_t) ((seed >> 24 & 0x83) | 0x3c);
    else if (dtype == WEFT_BF16)
      ((uint16_t *) out)[i] = (uint16_t) ((seed >> 16 & 0x807f) | 0x3f00);
    else
      ((uint16_t *) out)[i] = (uint16_t) ((seed >> 16 & 0x83ff) | 0x3800);
  }
}

gboolean
weft_trial_block (void **block, const void *like, uint64_t n, uint8_t dtype, const void **at)
{
  uint64_t bytes = n * size_of (dtype), done = MIN (bytes, PATTERN * size_of (dtype));
  uint32_t offset = weft_trial_alignment (like) % 256;
  g_autofree uint8_t *pattern = g_malloc (PATTERN * size_of (dtype));

  if (!like)
    return TRUE;
  if (cudaMalloc (block, bytes + offset) != cudaSuccess) {
    /* clears the error, which the next CUDA call would otherwise report */
    (void) cudaGetLastError ();
    return FALSE;
  }
  uint8_t *to = (uint8_t *) *block + offset;
  fill_pattern (dtype, pattern);
  gboolean ok = cudaMemcpy (to, pattern, done, cudaMemcpyHostToDevice) == cudaSuccess;
  for (; ok && done < bytes; done += MIN (done, bytes - done))
    ok = cudaMemcpy (to + done, to, MIN (done, bytes - done), cudaMemcpyDeviceToDevice) ==
         cudaSuccess;
  *at = to;
  return ok;
}

void
weft_trial_free (void *block)
{
  if (!hung)
    (void) cudaFree (block);
}

/* Waits until an event is complete, at most weft_trial_limit seconds. */
static gboolean
is_complete (cudaEvent_t event)
{
  gint64 end = g_get_monotonic_time () + (gint64) (weft_trial_limit * G_USEC_PER_SEC);
  cudaError_t state;

  while ((state = cudaEventQuery (event)) == cudaErrorNotReady && !hung) {
    hung = g_get_monotonic_time () > end;
    g_usleep (PAUSE);
  }
  if (state != cudaSuccess)
    (void) cudaGetLastError ();
  return state == cudaSuccess;
}

static float
least_of (int runs, const char *(*run) (const void *user), const void *user, void *stream)
{
  cudaEvent_t begin = NULL, end = NULL;
  float least = -1, took;
  gboolean ok = cudaEventCreate (&begin) == cudaSuccess && cudaEventCreate (&end) == cudaSuccess &&
                !hung;

  for (int i = 0; ok && i < 1 + runs; i++) {
    ok = cudaEventRecord (begin, (cudaStream_t) stream) == cudaSuccess && !run (user) &&
         cudaEventRecord (end, (cudaStream_t) stream) == cudaSuccess && is_complete (end) &&
         cudaEventElapsedTime (&took, begin, end) == cudaSuccess;
    least = ok && i > 0 && (least < 0 || took < least) ? took : least; /* run 0 warms up */
  }
  if (begin)
    (void) cudaEventDestroy (begin);
  if (end)
    (void) cudaEventDestroy (end);
  return hung ? WEFT_TRIAL_HUNG : ok ? least : -1;
}

float
weft_trial_time (const char *(*run) (const void *user), const void *user, void *stream)
{
  return least_of (N_RUNS, run, user, stream);
}

float
weft_trial_glance (const char *(*run) (const void *user), const void *user, void *stream)
{
  return least_of (1, run, user, stream);
}
