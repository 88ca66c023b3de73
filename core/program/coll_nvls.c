/* All-reduces in the switches of NVLink (NVLink SHARP), as NCCL's algorithms NVLS and NVLSTree run
 * them. */
#include "core/program/coll_style.h"
#include <math.h>

/* The most GPUs of a node (heads) that read sums from the switches and multicast them
 * (NCCL_MAX_NVLS_ARITY in src/include/device.h of NVIDIA/nccl). */
enum { MOST_HEADS = 32 };

static uint32_t
heads (const struct weft_coll_shape *s)
{
  return MIN (s->side[WEFT_WAY_LOCAL], MOST_HEADS);
}

static uint32_t
channels (const struct weft_coll_shape *s)
{
  const union weft_cluster_fields *c = &s->cluster->f;

  return (uint32_t) (s->side[WEFT_WAY_REMOTE] > 1 ? c->fabric_nvls_channels
                                                  : c->node_nvls_channels);
}

/* Bytes on the NVLink of each GPU. The switches of a node read S from every GPU, return the sums of
 * S / h to each of h heads, and multicast the h results: S + S / h bytes in each direction. Between
 * nodes the double binary trees of weft_coll_tree_share() run from head to head. The other GPUs of
 * a node, if there are more than MOST_HEADS, count as if they sent as much as a head. */
static gboolean
nvls_bytes (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
            double bytes[WEFT_MAX_WAYS])
{
  if (kind != WEFT_OP_ALL_REDUCE || !s->uniform || s->side[WEFT_WAY_LOCAL] < 2 ||
      s->cluster->f.node_intra != WEFT_NVLINK || s->cluster->f.node_nvls_bandwidth <= 0)
    return FALSE;
  bytes[WEFT_WAY_LOCAL] = whole * (1 + 1.0 / heads (s));
  bytes[WEFT_WAY_REMOTE] =
      s->side[WEFT_WAY_REMOTE] > 1 ? whole * weft_coll_tree_share (s) / heads (s) : 0;
  return TRUE;
}

static void
nvls_steps (enum weft_op_kind kind, const struct weft_coll_shape *s, uint32_t steps[WEFT_MAX_AXES])
{
  (void) kind;
  steps[WEFT_WAY_LOCAL] = 1;
  steps[WEFT_WAY_REMOTE] = weft_coll_tree_hops (s);
}

/* Bytes of the tensor for which the fullest channel takes as long as for `whole` bytes. Without
 * collective_nvls_chunk all channels have the same share. */
static double
filled_bytes (const struct weft_coll_shape *s, const union weft_stack *stack, double whole)
{
  double chunks = stack ? stack->collective_nvls_chunk * heads (s) : 0;

  return chunks > 0 ? fmax (whole, fmin (whole, chunks) * channels (s)) : whole;
}

struct chunk {
  double bytes, loops;
};

/* Bytes that a loop of all channels and heads handles. The tensor gets the largest chunk with which
 * there are enough loops (calcCollChunking() in src/enqueue.cc of NVIDIA/nccl). */
static double
loop_bytes (const struct weft_coll_shape *s, double whole)
{
  static const struct chunk
      one_node[] = { { 131072, 64 }, { 65536, 8 }, { 32768, 2 }, { 16384, 0 } },
      trees[] = { { 131072, 4 }, { 65536, 1 }, { 32768, 0 } };
  double lanes = (double) heads (s) * channels (s);
  uint32_t nodes = s->side[WEFT_WAY_REMOTE];
  const struct chunk *c = nodes == 1 ? one_node : nodes < 4 ? trees : trees + 1;

  while (whole < c->loops * c->bytes * lanes)
    c++;
  return c->bytes * lanes;
}

/* Loops pass three stages that work at the same time: each GPU copies its part into the buffers of
 * the switches, heads add and multicast, each GPU copies the results out. So the first loop and the
 * last one leave two stages of `stage` seconds exposed. Between nodes, each hop of the trees
 * forwards a chunk when it has all of it. */
static double
fill_seconds (const struct weft_coll_shape *s, double loop, double stage)
{
  return 2 * stage + weft_coll_tree_hops (s) * loop / heads (s) / s->cluster->f.node_nic_bandwidth;
}

/* The latency of the NVLink switches includes the base latency, and the wait for the first loop.
 * The waits for further loops are part of the rate that large tensors reach, by which NCCL
 * chooses. */
static void
adjust_nvls (const struct weft_coll_shape *s, const union weft_stack *stack,
             enum weft_protocol protocol, double whole, const double bytes[WEFT_MAX_WAYS],
             struct weft_coll_terms *terms)
{
  const union weft_cluster_fields *c = &s->cluster->f;
  double seconds = bytes[WEFT_WAY_LOCAL] / c->node_nvls_bandwidth;

  terms->base = 0;
  terms->step[WEFT_WAY_LOCAL] = c->node_nvls_latency;
  if (!(seconds > 0))
    return;
  double filled = filled_bytes (s, stack, whole), slow = seconds * filled / whole;
  double loop = fmin (loop_bytes (s, filled), filled), loops = filled / loop;
  double waits = (loops - 1) * weft_coll_chunk_latency (s, stack, protocol);
  terms->least = seconds + waits;
  terms->hidden = slow + waits;
  terms->fill = fill_seconds (s, loop, slow / loops);
}

const struct weft_coll_algorithm weft_coll_nvls = {
  "nvls", nvls_bytes, nvls_steps, adjust_nvls, .choices = 1u << WEFT_ALGORITHM_NVLS, .simple = TRUE
};
