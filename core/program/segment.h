/* segment.h - which parameters lie in a slice of a flat buffer.
 *
 * Kernels that treat parameters differently (weight decay, tied copies that the norm counts once)
 * and whoever reads or writes global tensors (checkpoints, dumps) walk a bucket's slice by its
 * segments: runs of elements of one parameter, in address order; padding belongs to nobody. */
#pragma once
#include "core/program/program.h"

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

/* Those of one parameter; FALSE when there are none.  Of a tensor in pieces the first piece that
 * elements [first, first + n) meet: a rank's slice of a bucket meets one. */
gboolean weft_param_segment (const struct weft_param *param, uint64_t first, uint64_t n,
                             struct weft_segment *out);

/* Where one rank keeps the optimizer state of elements [first, first + n) of the flat buffers: what
 * one adam op reads and writes.  A rank has a slice of each bucket; where some of it is updated on the
 * host (host_optimizer.c), several adam ops have a part of it each.  Element i of a part is element i
 * of its buffers, but of the weights on the device element part + i; of those marked as shards, which
 * are the bucket or what it is cut into first, element first - flat + i. */
struct weft_slice {
  uint64_t first, n, flat; /* flat: where what a shard is one of begins */
  uint64_t part;           /* where in the rank's slice of the bucket this begins */
  uint32_t grad, weight, master, m, v; /* buffers; master WEFT_NO_BUF when the weights are fp32 */
  uint32_t reduced;        /* the gradient of the whole slice, on the device; or grad */
  uint32_t copy;           /* weights that the host keeps between steps, or WEFT_NO_BUF */
};

/* The slices of one rank, one for each adam op, by address.  Caller frees with g_free(). */
struct weft_slice *weft_slices (const weft_program *p, const struct weft_mesh *mesh, uint32_t rank,
                                uint32_t *n);
