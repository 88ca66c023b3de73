/* segment.h - which parameters lie in a slice of a flat buffer.
 *
 * Kernels that treat parameters differently (weight decay, tied copies that the norm counts once)
 * and whoever reads or writes global tensors (checkpoints, dumps) walk a bucket's slice by its
 * segments: runs of elements of one parameter, in address order; padding belongs to nobody. */
#pragma once
#include "core/program.h"

struct weft_segment {
  uint32_t param;  /* of the program */
  uint64_t start;  /* element of the parameter, row-major */
  uint64_t offset; /* element of the slice */
  uint64_t n;
};

/* Segments of elements [first, first + n) of the flat buffers (weft_param.start counts in them).
 * Returns how many; `out` has room for n_param of the program. */
uint32_t weft_segments (const weft_program *p, uint64_t first, uint64_t n,
                        struct weft_segment *out);

/* Where one rank keeps the optimizer state of elements [first, first + n) of the flat buffers: what
 * one adam op reads and writes.  Element i of the slice is element i of its buffers; of those marked
 * as shards, element first - flat + i. */
struct weft_slice {
  uint64_t first, n, flat; /* flat: where what the shard is one of begins */
  uint32_t grad, weight, master, m, v; /* buffers; master WEFT_NO_BUF when the weights are fp32 */
};

/* The slices of one rank, one for each adam op and bucket in order; `place` is the rank's among
 * those that share the optimizer out, weft_mesh_slot().  Caller frees with g_free(). */
struct weft_slice *weft_slices (const weft_program *p, uint32_t place, uint32_t *n);
