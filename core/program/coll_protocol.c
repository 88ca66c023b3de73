/* Protocols of NCCL: the latency, flag bytes and rate of each protocol, from the fields of
 * core/cluster.def and core/stack.def. */
#include "core/program/coll_style.h"
#include <math.h>

static gboolean
is_tiered (const struct weft_coll_shape *s)
{
  return s->style == WEFT_FABRIC_TIERS;
}

static double
local_latency (const struct weft_coll_shape *s, enum weft_protocol protocol)
{
  const union weft_cluster_fields *c = &s->cluster->f;

  return protocol == WEFT_PROTOCOL_LL      ? c->node_intra_latency_ll
         : protocol == WEFT_PROTOCOL_LL128 ? c->node_intra_latency_ll128
                                           : s->latency[WEFT_WAY_LOCAL];
}

static double
remote_latency (const struct weft_coll_shape *s, enum weft_protocol protocol)
{
  const union weft_cluster_fields *c = &s->cluster->f;
  /* The latency of spine switches and transport is equal for all protocols. */
  double path = s->latency[WEFT_WAY_REMOTE] - c->fabric_latency;

  return protocol == WEFT_PROTOCOL_LL      ? c->fabric_latency_ll + path
         : protocol == WEFT_PROTOCOL_LL128 ? c->fabric_latency_ll128 + path
                                           : s->latency[WEFT_WAY_REMOTE];
}

gboolean
weft_coll_has_protocol (const struct weft_coll_shape *s, enum weft_protocol protocol)
{
  const union weft_cluster_fields *c = &s->cluster->f;
  gboolean ll = protocol == WEFT_PROTOCOL_LL;

  if (protocol == WEFT_PROTOCOL_SIMPLE)
    return TRUE;
  return is_tiered (s) &&
         (s->side[WEFT_WAY_LOCAL] == 1 ||
          (ll ? c->node_intra_latency_ll : c->node_intra_latency_ll128) > 0) &&
         (s->side[WEFT_WAY_REMOTE] == 1 ||
          (ll ? c->fabric_latency_ll : c->fabric_latency_ll128) > 0);
}

/* Bytes of data that one rank sends. If each rank has only one flow, every element of `bytes`
 * contains the rank's total; otherwise one element is for flows inside a node and one for flows
 * between nodes. */
static double
sent (const struct weft_coll_shape *s, const double bytes[WEFT_MAX_WAYS])
{
  return s->uniform && s->side[WEFT_WAY_REMOTE] > 1
             ? bytes[WEFT_WAY_LOCAL] + bytes[WEFT_WAY_REMOTE]
             : bytes[WEFT_WAY_LOCAL];
}

/* Rate in bytes per second at which the kernel of a rank writes data with the flags of protocol LL
 * or LL128. 0: no limit. */
static double
kernel_rate (const struct weft_coll_shape *s, enum weft_protocol protocol)
{
  const union weft_cluster_fields *c = &s->cluster->f;

  if (protocol == WEFT_PROTOCOL_LL128)
    return c->node_ll128_bandwidth;
  if (protocol == WEFT_PROTOCOL_SIMPLE)
    return 0;
  return s->side[WEFT_WAY_REMOTE] > 1 ? c->fabric_ll_bandwidth : c->node_ll_bandwidth;
}

/* Seconds that one channel of a ring inside a node needs in protocol LL for the bytes that NCCL
 * gives this channel before another channel is used. */
static double
channel_seconds (const struct weft_coll_shape *s, const union weft_stack *stack, double whole,
                 double sent_bytes)
{
  double rate = s->cluster->f.node_ll_channel_bandwidth;
  double per_channel = stack ? stack->collective_channel_bytes_ll * s->n : 0;

  if (!(rate > 0) || !(whole > 0) || s->side[WEFT_WAY_REMOTE] > 1)
    return 0;
  return sent_bytes * fmin (1, per_channel / whole) / rate;
}

void
weft_coll_terms_of (const struct weft_coll_shape *s, const union weft_stack *stack,
                    enum weft_protocol protocol, double whole, const double bytes[WEFT_MAX_WAYS],
                    struct weft_coll_terms *terms)
{
  double rate = kernel_rate (s, protocol);

  *terms = (struct weft_coll_terms){ .slow = 1, .counted = 1, .late = 1 };
  for (int axis = 0; axis < WEFT_MAX_AXES; axis++)
    terms->step[axis] = s->latency[axis];
  if (stack)
    terms->base = protocol == WEFT_PROTOCOL_LL      ? stack->collective_base_latency_ll
                  : protocol == WEFT_PROTOCOL_LL128 ? stack->collective_base_latency_ll128
                                                    : stack->collective_base_latency;
  if (!is_tiered (s))
    return;
  terms->step[WEFT_WAY_LOCAL] = local_latency (s, protocol);
  terms->step[WEFT_WAY_REMOTE] = remote_latency (s, protocol);
  if (rate > 0)
    *(protocol == WEFT_PROTOCOL_LL128 ? &terms->hidden : &terms->least) = sent (s, bytes) / rate;
  if (protocol == WEFT_PROTOCOL_LL)
    terms->hidden = channel_seconds (s, stack, whole, sent (s, bytes));
}

double
weft_coll_wire (const struct weft_coll_shape *s, enum weft_protocol protocol, uint32_t way)
{
  static const double flags[WEFT_N_PROTOCOL] = { [WEFT_PROTOCOL_SIMPLE] = 1,
                                                 [WEFT_PROTOCOL_LL] = 2,
                                                 [WEFT_PROTOCOL_LL128] = 128. / 120 };
  double congestion = 1;

  if (is_tiered (s) && way == WEFT_WAY_REMOTE && s->side[WEFT_WAY_REMOTE] > 1)
    congestion += s->cluster->f.fabric_congestion * log2 (s->side[WEFT_WAY_REMOTE]);
  return flags[protocol] * congestion;
}

double
weft_coll_chunk_latency (const struct weft_coll_shape *s, const union weft_stack *stack,
                         enum weft_protocol protocol)
{
  return stack && protocol == WEFT_PROTOCOL_SIMPLE && !weft_cluster_is_cpu (s->cluster)
             ? stack->collective_chunk_latency
             : 0;
}
