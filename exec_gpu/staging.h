/* staging.h - staging buffers: pinned host memory from which write() copies to the device while the
 * host fills the next part. Each rank has two buffers of WEFT_EXEC_STAGING bytes, from the first
 * use until the next step begins. Copies run on the stream of lane gpu. */
#pragma once
#include "exec_gpu/machine.h"

/* A buffer from which no copy is running; NULL if there is no pinned memory left. */
uint8_t *gpu_staging_take (struct gpu_rank *r);

/* Copies n bytes to device memory if `from` is the buffer that gpu_staging_take() returned last,
 * and returns without waiting. FALSE: it is not, and nothing was done. */
gboolean gpu_staging_copy (struct gpu_rank *r, void *to, const void *from, uint64_t n);

/* Waits for all copies and frees both buffers. */
void gpu_staging_close (struct gpu_rank *r);
