/* segment.h - which parameters lie in a slice of a flat buffer.
 *
 * Kernels that treat parameters separately (weight decay, tied copies that the norm counts once)
 * and code that reads or writes global tensors (checkpoints, dumps) iterate over the segments of a
 * bucket's slice: runs of elements of one parameter, in address order. Padding belongs to no
 * segment. */
#pragma once
#include "core/program/program.h"

struct weft_segment {
  uint32_t param;  /* index in the program */
  uint64_t start;  /* element of the parameter, row-major */
  uint64_t offset; /* element of the slice */
  uint64_t n;
};

/* Segments of elements [first, first + n) of the flat buffers (weft_param.start counts in them).
 * Returns their number; `out` has room for n_param of them. */
uint32_t weft_segments (const weft_program *p, uint64_t first, uint64_t n,
                        struct weft_segment *out);

/* The segment of one parameter; FALSE if there is none. For a tensor in pieces, that of the first
 * piece that meets [first, first + n): a rank's slice of a bucket meets only one. */
gboolean weft_param_segment (const struct weft_param *param, uint64_t first, uint64_t n,
                             struct weft_segment *out);

/* Where one rank keeps the optimizer state of elements [first, first + n) of the flat buffers: the
 * operands of one adam op. A rank has a slice of each bucket; if some of it is updated on the host
 * (host_optimizer.c), several adam ops each have a part. Element i of a part is element i of its
 * buffers, except: element part + i of device weights; element first - flat + i of buffers marked
 * as shards (the bucket, or what it is cut into first). */
struct weft_slice {
  uint64_t first, n, flat; /* flat: start of the bucket or shard that contains the part */
  uint64_t part;           /* offset of the part in the rank's slice of the bucket */
  uint32_t grad, weight, master, m, v; /* buffers; master is WEFT_NO_BUF if the weights are fp32 */
  uint32_t reduced;        /* gradient of the whole slice on the device; or grad */
  uint32_t copy;           /* weights that the host keeps between steps, or WEFT_NO_BUF */
};

/* The slices of one rank, one per adam op, by address. The caller frees with g_free(). */
struct weft_slice *weft_slices (const weft_program *p, const struct weft_mesh *mesh, uint32_t rank,
                                uint32_t *n);
