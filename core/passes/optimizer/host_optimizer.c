/* Optimizer offload: part of each rank's optimizer state is in host memory, and Adam runs there
 * (Megatron-Core optimizer/cpu_offloading/hybrid_optimizer.py; ZeRO-Offload, arXiv 2101.06840).
 *
 *   what    The fraction optimizer_offload_fraction of the elements that this rank updates is
 *           offloaded, rounded. Buckets that the next forward reads last are offloaded first. Of
 *           the last offloaded bucket, only the end of this rank's slice is offloaded.
 *           (Megatron-Core offloads whole tensors, but a slice does not consist of whole tensors.)
 *   host    Gradient, moments and fp32 weights take 16 bytes for each element throughout the step,
 *           or 14 if Adam reads 16-bit gradients as they are. During a copy, the 16-bit values take
 *           host memory too.
 *   when    The update runs after all kernels up to the clip of gradients. With
 *           overlap_cpu_optimizer_d2h_h2d, copies run on separate streams, and a slice is cut into
 *           as many parts as its bucket has matrices (Megatron-Core has one CPU optimizer for each
 *           tensor). One part is then copied to the host while another is updated and a third is
 *           copied back. Without overlap, all gradients are copied to the host, then the GPU
 *           updates its elements, and all weights are copied back after Adam on the CPU.
 *   memory  A copy to memory that is not page-locked blocks the host thread. With pin_cpu_grads =
 *           false, no update begins before all gradients are on the host. With pin_cpu_params =
 *           false, Adam of a part waits until the previous part was copied to the device. */
#include "core/passes/optimizer/states.h"
#include <math.h>

/* A part of a bucket's slice that Adam on the CPU updates. Its master weights and moments are views
 * of flat buffers in host memory. */
struct part {
  uint32_t bucket;
  /* begin: first element of the part in this rank's slice on the device; n: number of elements */
  uint64_t begin, n;
  /* grad: gradients that Adam reads; sent: gradients as copied from the device, in the dtype of the
   * reduction; equal to grad unless grad is an fp32 copy */
  uint32_t grad, sent;
  uint32_t master, m, v, param;
};

static gboolean
overlaps (const struct weft_step *s)
{
  return s->strategy->overlap_cpu_optimizer_d2h_h2d;
}

/* Whether Adam of a part on the CPU waits until the updated weights of the previous part were
 * copied to the device. */
static gboolean
blocks_on_return (const struct weft_step *s)
{
  return overlaps (s) && !s->strategy->pin_cpu_params;
}

void
weft_host_optimizer_split (struct weft_step *s)
{
  uint32_t n = s->params->layout.n_bucket;
  uint64_t all = 0, left;

  if (!s->strategy->optimizer_cpu_offload)
    return;
  for (uint32_t k = 0; k < n; k++)
    all += weft_optimizer_slice (s, k);
  left = (uint64_t) llround ((double) all * s->strategy->optimizer_offload_fraction);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t k = s->sharding->unit_of ? n - 1 - i : i;
    s->optimizer->n_host[k] = MIN (left, weft_optimizer_slice (s, k));
    left -= s->optimizer->n_host[k];
  }
}

/* Number of parts into which the host-updated elements of bucket k are cut. */
static uint64_t
parts_of (const struct weft_step *s, uint32_t k)
{
  uint64_t matrices = 0;

  for (uint32_t i = 0; i < weft_params_count (s) && overlaps (s); i++)
    matrices += s->params->layout.place[i].bucket == k && weft_param_at (s, i)->columns > 1;
  return CLAMP (matrices, 1, s->optimizer->n_host[k]);
}

static GArray *
cut (struct weft_step *s)
{
  GArray *parts = g_array_new (FALSE, FALSE, sizeof (struct part));

  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++) {
    uint64_t n = s->optimizer->n_host[k], first = weft_optimizer_slice (s, k) - n;
    uint64_t n_part = n ? parts_of (s, k) : 0;
    for (uint64_t i = 0; i < n_part; i++) {
      uint64_t begin = n * i / n_part, end = n * (i + 1) / n_part;
      struct part part = { .bucket = k, .begin = first + begin, .n = end - begin };
      g_array_append_val (parts, part);
    }
  }
  return parts;
}

/* Filter for optimizer states that every part on the host has. Always TRUE. */
static gboolean
every (const struct weft_flat *flat)
{
  (void) flat;
  return TRUE;
}

/* Whether the host stores a master copy of a weight. fp32 weights need none, because kernels read
 * them directly. Other weights are converted from the master copy when they are copied to the
 * device. */
static gboolean
has_master (const struct weft_flat *flat)
{
  return flat->dtype != WEFT_FP32;
}

static gboolean
has_none (const struct weft_flat *flat)
{
  return flat->dtype == WEFT_FP32;
}

static const struct state {
  enum weft_buf_kind kind;
  const char *name;
  size_t member;
  gboolean (*wanted) (const struct weft_flat *flat);
} states[] = {
  { WEFT_BUF_GRADIENTS, "host_gradients", offsetof (struct part, grad), every },
  { WEFT_BUF_OPTIMIZER, "host_master", offsetof (struct part, master), has_master },
  { WEFT_BUF_WEIGHTS, "host_weights", offsetof (struct part, param), has_none },
  { WEFT_BUF_OPTIMIZER, "host_exp_avg", offsetof (struct part, m), every },
  { WEFT_BUF_OPTIMIZER, "host_exp_avg_sq", offsetof (struct part, v), every },
};

static uint64_t
size_in (const struct weft_step *s, const struct state *state, const struct part *part)
{
  return state->wanted (weft_step_flat (s, part->bucket)) ? part->n : 0;
}

/* The dtype of the gradients that Adam on the CPU reads. It is the same for all buckets. */
static enum weft_dtype
grad_dtype (const struct weft_step *s)
{
  return weft_optimizer_copies_gradients (s, 0) ? WEFT_FP32 : weft_step_flat (s, 0)->grad_dtype;
}

/* Creates one flat buffer for one optimizer state in host memory, and a view of it for each part. A
 * part without this state has WEFT_NO_BUF. */
static void
add_state (struct weft_step *s, GArray *parts, const struct state *state)
{
  enum weft_dtype dtype = state->kind == WEFT_BUF_GRADIENTS ? grad_dtype (s) : WEFT_FP32;
  uint64_t total = 0, start = 0, size = weft_dtype_bytes (dtype);
  uint32_t flat = WEFT_NO_BUF;

  for (uint32_t i = 0; i < parts->len; i++)
    total += size_in (s, state, &g_array_index (parts, struct part, i));
  if (total)
    flat = weft_host_permanent (s, state->kind, dtype, total, state->name);
  for (uint32_t i = 0; i < parts->len; i++) {
    struct part *part = &g_array_index (parts, struct part, i);
    uint32_t *view = (uint32_t *) (void *) ((char *) part + state->member);
    uint64_t n = size_in (s, state, part);
    *view = n ? weft_build_view (s->b, flat, start * size, n * size, state->name) : WEFT_NO_BUF;
    start += n;
  }
}

/* Creates host buffers for 16-bit gradients and weights, which occupy memory only while a part is
 * copied. */
static void
add_copy_buffers (struct weft_step *s, struct part *part)
{
  const struct weft_flat *flat = weft_step_flat (s, part->bucket);

  part->sent = part->grad;
  if (flat->grad_dtype != grad_dtype (s))
    part->sent = weft_host_buffer (s, WEFT_BUF_COMMUNICATION, flat->grad_dtype, part->n,
                                   "host_gradients_16");
  if (part->master != WEFT_NO_BUF)
    part->param =
        weft_host_buffer (s, WEFT_BUF_COMMUNICATION, flat->dtype, part->n, "host_weights_16");
}

static void
add_states (struct weft_step *s, GArray *parts)
{
  for (size_t i = 0; i < G_N_ELEMENTS (states); i++)
    add_state (s, parts, &states[i]);
  for (uint32_t i = 0; i < parts->len; i++)
    add_copy_buffers (s, &g_array_index (parts, struct part, i));
}

/* Copies the clip factor to host memory for Adam kernels on the CPU. */
uint32_t
weft_host_optimizer_factor (struct weft_step *s)
{
  if (!weft_step_has_factor (s))
    return WEFT_NO_BUF;
  uint32_t host = weft_host_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "host_clip_factor");
  weft_to_host (s, &(struct weft_host_copy){ "clip_factor", s->scalars.factor, host, 0, 1 });
  weft_wait_like_next_kernel (s);
  return host;
}

static void
send (struct weft_step *s, const struct part *part, uint32_t tied_bucket, uint32_t tied_reduced)
{
  uint32_t device = weft_bucket_gradients (s, part->bucket);
  struct weft_host_copy copy = { "gradients", device, part->sent, part->begin, part->n };

  weft_to_host (s, &copy);
  weft_wait_like_next_kernel (s);
  weft_wait_for_shared_gradients (s);
  if (part->bucket == tied_bucket && tied_reduced != WEFT_NO_OP)
    weft_build_dep (s->b, tied_reduced);
}

void
weft_host_optimizer_send (struct weft_step *s, uint32_t tied_bucket, uint32_t tied_reduced)
{
  if (!s->strategy->optimizer_cpu_offload)
    return;
  s->optimizer->host_parts = cut (s);
  s->optimizer->host_wait = WEFT_NO_OP;
  if (s->optimizer->host_parts->len == 0)
    return;
  add_states (s, s->optimizer->host_parts);
  s->optimizer->host_factor = weft_host_optimizer_factor (s);
  for (uint32_t i = 0; i < s->optimizer->host_parts->len; i++)
    send (s, &g_array_index (s->optimizer->host_parts, struct part, i), tied_bucket, tied_reduced);
  if (overlaps (s) && s->strategy->pin_cpu_grads)
    return;
  s->optimizer->host_wait = weft_build_last (s->b, WEFT_LANE_D2H);
  weft_next_kernel_waits_for (s, s->optimizer->host_wait);
}

/* Converts the gradients of a part to fp32 on the CPU. The kernel waits for op `after`, which
 * copies the gradients to the host. */
static void
convert (struct weft_step *s, const struct part *part, uint32_t after)
{
  struct weft_shape shape = WEFT_SHAPE (weft_step_flat (s, part->bucket)->grad_dtype, part->n);

  if (part->sent == part->grad)
    return;
  shape.out_dtype = WEFT_FP32;
  weft_emit_on_host (s, WEFT_OP_CAST, "grad_fp32", shape,
                     WEFT_USES (WEFT_R (part->sent), WEFT_W (part->grad)));
  weft_build_dep (s->b, after);
}

static void
update (struct weft_step *s, const struct part *part, uint32_t after)
{
  struct weft_shape shape = WEFT_SHAPE (weft_step_flat (s, part->bucket)->dtype, part->n, 0, 0,
                                        weft_optimizer_gradient_bytes (s, part->grad));
  struct weft_use param = { .buf = part->param, .read = part->master == WEFT_NO_BUF, .write = 1 };

  convert (s, part, after);
  weft_emit_on_host (s, WEFT_OP_ADAM, "adam", shape,
                     WEFT_USES (WEFT_R (part->grad), WEFT_R (s->optimizer->host_factor), param,
                                WEFT_RW (part->master), WEFT_RW (part->m), WEFT_RW (part->v)));
  weft_build_dep (s->b, after);
}

static uint32_t
bring_back (struct weft_step *s, const struct part *part)
{
  uint32_t device = weft_bucket_weights (s, part->bucket);
  struct weft_host_copy copy = { "weights", device, part->param, part->begin, part->n };
  uint32_t op = weft_from_host (s, &copy);

  weft_wait_like_next_kernel (s);
  return op;
}

/* Updates the host's parts of one bucket. The GPU has updated the other elements of the bucket. */
void
weft_host_optimizer_update (struct weft_step *s, uint32_t k)
{
  uint32_t n = s->optimizer->host_parts ? s->optimizer->host_parts->len : 0;

  for (uint32_t i = 0; i < n; i++) {
    const struct part *part = &g_array_index (s->optimizer->host_parts, struct part, i);
    if (part->bucket != k)
      continue;
    update (s, part, s->optimizer->host_wait);
    s->optimizer->host_wait = blocks_on_return (s) ? bring_back (s, part) : WEFT_NO_OP;
  }
}

/* Copies the updated weights from host to device, after all updates on the GPU. */
void
weft_host_optimizer_finish (struct weft_step *s)
{
  uint32_t n = s->optimizer->host_parts ? s->optimizer->host_parts->len : 0;

  for (uint32_t i = 0; i < n && !blocks_on_return (s); i++) {
    bring_back (s, &g_array_index (s->optimizer->host_parts, struct part, i));
    if (!overlaps (s))
      weft_build_dep (s->b, weft_build_last (s->b, WEFT_LANE_HOST));
  }
  g_clear_pointer (&s->optimizer->host_parts, g_array_unref);
}
