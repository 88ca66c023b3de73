/* segment.h - which parameters lie in a slice (one rank's part) of a flat buffer.
 *
 * A segment is a run of elements of one parameter. Two kinds of code iterate over the segments of a
 * bucket's slice: kernels that treat parameters differently (weight decay; tied copies, of which
 * the gradient norm counts one), and code that reads or writes whole tensors (checkpoints, dumps).
 * Padding belongs to no segment. */
#pragma once
#include "core/program/program.h"

struct weft_segment {
  uint32_t param;  /* index of the segment's parameter in the program */
  uint64_t start;  /* index of the segment's first element in the parameter, row-major */
  uint64_t offset; /* index of the segment's first element in the slice */
  uint64_t n;
};

/* Lists the segments (runs of one parameter) in elements [first, first + n), counted through all
 * flat buffers as weft_param.start is. Segments come in reverse registration order, which is
 * address order in the layout of Megatron-Core (layout.h). Returns the number of segments; `out`
 * must have room for n_param of them. */
uint32_t weft_segments (const weft_program *p, uint64_t first, uint64_t n,
                        struct weft_segment *out);

/* Sets *out to the segment (run of one parameter) that elements [first, first + n) contain of the
 * parameter. Returns FALSE if there is none. A tensor in row pieces can have several segments; *out
 * is then the segment of the first piece that overlaps the range. A rank's slice of a bucket
 * overlaps only one piece. */
gboolean weft_param_segment (const struct weft_param *param, uint64_t first, uint64_t n,
                             struct weft_segment *out);

/* Buffers with the optimizer state of elements [first, first + n) of the flat buffers on one rank.
 * These buffers are the operands of one Adam op. A rank has a slice of each bucket. If the host
 * updates some elements of a slice (host_optimizer.c), several Adam ops each update a part of the
 * slice. Element i of a part has index i in the part's buffers, with two exceptions: index part + i
 * in device weights, and index first - flat + i in buffers marked as shards. */
struct weft_slice {
  /* flat: index of the first element of the bucket or shard that contains the updated elements;
   * first, n: the updated elements */
  uint64_t first, n, flat;
  /* part: offset of the updated elements in the rank's slice of the bucket */
  uint64_t part;
  /* numbers of the operands of the Adam op; master is WEFT_NO_BUF if the weights are fp32. With
   * Muon, m is the momentum, and v is WEFT_NO_BUF */
  uint32_t grad, weight, master, m, v;
  /* scales of 8-bit moments, one for each WEFT_8BIT_BLOCK elements; otherwise WEFT_NO_BUF */
  uint32_t m_scale, v_scale;
  enum weft_optimizer rule; /* the kind of the op that updates these elements */
  /* device buffer with the gradient of the whole slice if the host updates part of it; otherwise
   * equal to grad */
  uint32_t reduced;
  /* copy: host buffer in which the updated weights stay from step to step, or WEFT_NO_BUF */
  uint32_t copy;
};

/* Returns the optimizer slices of one rank, one per Adam op or bucket of Muon, sorted by address.
 * Sets *n to their number. The caller frees the array with g_free(). */
struct weft_slice *weft_slices (const weft_program *p, const struct weft_mesh *mesh, uint32_t rank,
                                uint32_t *n);
