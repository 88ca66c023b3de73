/* segment.h - which parameters lie in a slice of a flat buffer.
 *
 * Kernels that treat parameters separately (weight decay, tied copies that the norm counts once)
 * and code that reads or writes global tensors (checkpoints, dumps) iterate over the segments of a
 * bucket's slice: runs of elements of one parameter. Padding belongs to no segment. */
#pragma once
#include "core/program/program.h"

struct weft_segment {
  uint32_t param;  /* index in the program */
  uint64_t start;  /* element of the parameter, row-major */
  uint64_t offset; /* element of the slice */
  uint64_t n;
};

/* Lists the segments of elements [first, first + n), counted through all flat buffers like
 * weft_param.start. They are in reverse registration order, which is address order in the layout of
 * Megatron-Core (layout.h). Returns their number; `out` has room for n_param of them. */
uint32_t weft_segments (const weft_program *p, uint64_t first, uint64_t n,
                        struct weft_segment *out);

/* The segment of one parameter; FALSE if there is none. For a tensor in pieces, the segment of the
 * first piece that overlaps [first, first + n): a rank's slice of a bucket overlaps only one
 * piece. */
gboolean weft_param_segment (const struct weft_param *param, uint64_t first, uint64_t n,
                             struct weft_segment *out);

/* The buffers with the optimizer state of elements [first, first + n) of the flat buffers on one
 * rank: the operands of one adam op. A rank has a slice of each bucket. If the host updates some
 * elements of a slice (host_optimizer.c), several adam ops each update a part. Element i of a part
 * is element i of its buffers, with two exceptions: in device weights it is element part + i, and
 * in buffers marked as shards it is element first - flat + i. */
struct weft_slice {
  uint64_t first, n, flat; /* flat: start of the bucket or shard that contains the part */
  uint64_t part;           /* offset of the part in the rank's slice of the bucket */
  uint32_t grad, weight, master, m, v; /* buffers; master is WEFT_NO_BUF if the weights are fp32 */
  uint32_t reduced;        /* gradient of the whole slice on the device; or grad */
  uint32_t copy;           /* weights that the host stores between steps, or WEFT_NO_BUF */
};

/* The slices of one rank, one per adam op, by address. The caller frees with g_free(). */
struct weft_slice *weft_slices (const weft_program *p, const struct weft_mesh *mesh, uint32_t rank,
                                uint32_t *n);
