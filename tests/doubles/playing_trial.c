#include "tests/doubles/playing_trial.h"
#include "core/base/words.h"
#include <stdlib.h>
#include <string.h>

struct playing_trial playing_trial;

gboolean
weft_trial_block (void **block, const void *like, uint64_t n, uint8_t dtype, const void **at)
{
  uint64_t bytes = n * weft_dtype_bytes ((enum weft_dtype) dtype);

  if (!like || playing_trial.no_memory)
    return !like;
  if (posix_memalign (block, 256, MAX (bytes, 1)))
    return FALSE;
  /* bytes of 0x3f, which are numbers near 1/2 in fp16, bf16 and fp32 */
  memset (*block, 0x3f, bytes);
  playing_trial.n_blocks++;
  *at = *block;
  return TRUE;
}

void
weft_trial_free (void *block)
{
  playing_trial.n_blocks -= block != NULL;
  free (block);
}

float
weft_trial_time (const char *(*run) (const void *user), const void *user, void *stream)
{
  float takes = playing_trial.takes[playing_trial.n_runs++ % G_N_ELEMENTS (playing_trial.takes)];

  (void) stream;
  if (takes == WEFT_TRIAL_HUNG)
    return takes;
  return takes >= 0 && !run (user) ? takes : -1;
}
