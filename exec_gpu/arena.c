/* Memory and streams of a rank.  There is one allocation for each pool, exactly as large as
 * planned.  The mailbox, the control block and scratch of kernels are outside the plan. */
#include "exec_gpu/arena.h"
#include "exec_gpu/counted.h"
#include <string.h>

static gboolean
alloc (struct gpu_rank *r, enum weft_pool pool, uint64_t bytes, void **out, GError **error)
{
  return bytes == 0 || gpu_ok (r->m, GPU_CALL (r->m, alloc, pool, bytes, out), error,
                               "rank %u: %" G_GUINT64_FORMAT " bytes of %s memory", r->rank, bytes,
                               weft_pool_words[pool]);
}

static gboolean
open_pools (struct gpu_rank *r, GError **error)
{
  const struct weft_memory *memory = &r->m->base.plan->memory[r->p->role];

  if (r->m->options.memory) {
    const struct gpu_machine *lender = (const struct gpu_machine *) r->m->options.memory;
    memcpy (r->bind.arena, lender->rank[r->row].bind.arena, sizeof r->bind.arena);
    return TRUE;
  }
  for (int pool = 0; pool < WEFT_N_POOL; pool++) {
    void *at = NULL;
    if (!alloc (r, pool, memory->planned[pool], &at, error))
      return FALSE;
    r->bind.arena[pool] = at;
  }
  return TRUE;
}

/* Layout of the mailbox (pinned host memory): the control block; one word per lane, which counts
 * completed work; then the tokens of each copy_in op and the results of each copy_out op, in the
 * order of ops. */
static void
lay_out_mailbox (struct gpu_rank *r)
{
  uint64_t at = gpu_slot_bytes (sizeof (struct weft_control)) +
                gpu_slot_bytes (WEFT_N_LANE * sizeof (uint32_t));

  r->slot = g_new0 (uint32_t, r->p->n_op + 1);
  for (uint32_t op = 0; op < r->p->n_op; op++) {
    if (!weft_op_info[r->p->op[op].kind].mailbox)
      continue;
    r->slot[op] = (uint32_t) at;
    for (uint32_t i = 0; i < r->p->op[op + 1].uses - r->p->op[op].uses; i++)
      at += gpu_slot_bytes (gpu_mail_bytes (r, op, i));
  }
  r->mailbox_bytes = at;
}

/* Argument of widen(), which enlarges the scratch memory of a lane to the size that a kernel
 * needs. */
struct need {
  const struct weft_gpu_calls *calls;
  struct weft_gpu_scratch *scratch;
};

static void
widen (void *user, const struct weft_kernel *k)
{
  struct need *need = user;
  need->scratch->bytes = MAX (need->scratch->bytes, need->calls->scratch (need->calls->self, k));
}

static gboolean
open_scratch (struct gpu_rank *r, GError **error)
{
  for (uint32_t op = 0; op < r->p->n_op; op++) {
    struct need need = { r->m->calls, &r->scratch[r->p->op[op].lane] };
    if (r->p->op[op].lane != WEFT_LANE_HOST)
      weft_bind_kernels (&r->bind, op, widen, &need);
    need.scratch->bytes = MAX (need.scratch->bytes, gpu_counted_scratch (r, op));
  }
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++) {
    r->scratch[lane].bytes = (r->scratch[lane].bytes + 255) / 256 * 256; /* aligned end */
    if (!alloc (r, WEFT_POOL_DEVICE, r->scratch[lane].bytes, &r->scratch[lane].at, error))
      return FALSE;
  }
  return TRUE;
}

static gboolean
open_streams (struct gpu_rank *r, GError **error)
{
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++) {
    gboolean talks = weft_lane_traits[lane].communicates;
    if (r->p->lane_n[lane] == 0 && lane != WEFT_LANE_GPU)
      continue;
    if (!gpu_ok (r->m, GPU_CALL (r->m, stream_open, talks, &r->stream[lane]), error,
                 "rank %u: a stream for lane %s", r->rank, weft_lane_words[lane]))
      return FALSE;
  }
  return TRUE;
}

/* Sets all memory pools to zero. No op writes the padding rows of a vocabulary, but kernels read
 * these rows as weights: if they contained NaN, the product with 0 would be NaN. */
static gboolean
clear_pools (struct gpu_rank *r, GError **error)
{
  const struct weft_memory *memory = &r->m->base.plan->memory[r->p->role];
  weft_gpu_stream *stream = r->stream[WEFT_LANE_GPU];

  for (int pool = 0; pool < WEFT_N_POOL && !r->m->options.memory; pool++) {
    void *at = r->bind.arena[pool];
    if (at && pool == WEFT_POOL_HOST)
      memset (at, 0, memory->planned[pool]);
    else if (at && !gpu_ok (r->m, GPU_CALL (r->m, fill, at, 0, memory->planned[pool], stream),
                            error, "rank %u: clearing its memory", r->rank))
      return FALSE;
  }
  return gpu_ok (r->m, GPU_CALL (r->m, finish, stream), error, "rank %u: clearing its memory",
                 r->rank);
}

/* Allocates the control block.  Ranks that share a GPU use the block of the first rank. */
static gboolean
open_control (struct gpu_rank *r, GError **error)
{
  if (!r->origin) {
    r->control = r->m->rank[0].control;
    return TRUE;
  }
  return alloc (r, WEFT_POOL_DEVICE, sizeof (struct weft_control), &r->control, error);
}

gboolean
gpu_arena_open (struct gpu_rank *r, GError **error)
{
  void *mailbox = NULL;

  lay_out_mailbox (r);
  if (!gpu_choose (r, error) || !open_pools (r, error) ||
      !alloc (r, WEFT_POOL_HOST, r->mailbox_bytes, &mailbox, error))
    return FALSE;
  r->mailbox = mailbox;
  memset (r->mailbox, 0, r->mailbox_bytes);
  if (!open_control (r, error) || !open_scratch (r, error) || !open_streams (r, error) ||
      !clear_pools (r, error))
    return FALSE;
  r->bind.control = r->control;
  return TRUE;
}

/* Each memory pool has an address range of its own, so that addresses in two pools never
 * coincide. */
void
gpu_arena_open_addresses (struct gpu_rank *r)
{
  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    r->bind.arena[pool] = (uint8_t *) ((uintptr_t) (pool + 1) << 44);
}

static void
release (struct gpu_rank *r, enum weft_pool pool, void *at)
{
  if (at)
    GPU_CALL (r->m, release, pool, at);
}

void
gpu_arena_close (struct gpu_rank *r)
{
  GPU_CALL (r->m, choose, r->device);
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
    if (r->stream[lane])
      GPU_CALL (r->m, stream_close, r->stream[lane]);
  for (int pool = 0; pool < WEFT_N_POOL && !r->m->options.memory; pool++)
    release (r, pool, r->bind.arena[pool]);
  release (r, WEFT_POOL_HOST, r->mailbox);
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
    release (r, WEFT_POOL_DEVICE, r->scratch[lane].at);
  if (r->origin)
    release (r, WEFT_POOL_DEVICE, r->control);
  g_free (r->slot);
}

/* ------------------------------------------------------------------- the mailbox */

void
gpu_arena_fill (struct gpu_rank *r)
{
  const struct weft_control *control = r->m->options.control;

  memset (gpu_progress (r, 0), 0, WEFT_N_LANE * sizeof (uint32_t));
  if (!control)
    return;
  struct weft_control *copy = (struct weft_control *) (void *) r->mailbox;
  *copy = *control;
  copy->corrected = weft_control_correction (control);
  copy->tokens = NULL; /* kernels on the GPU cannot read this pointer to host memory */
  for (uint32_t op = 0; op < r->p->n_op && control->tokens; op++)
    if (r->p->op[op].kind == WEFT_OP_COPY_IN)
      weft_feed_tokens (r->m->base.plan, r->rank, op, control->tokens,
                        (int32_t *) (void *) (r->mailbox + r->slot[op]));
}

gboolean
gpu_arena_read (struct gpu_rank *r, struct weft_metrics *metrics, GError **error)
{
  const void *value[WEFT_MOST_OPERANDS];
  uint32_t bad = WEFT_NO_OP;

  for (uint32_t op = 0; op < r->p->n_op; op++) {
    const struct weft_op *row = &r->p->op[op];
    uint64_t at = r->slot[op];
    if (row->kind != WEFT_OP_COPY_OUT || !r->issued[op] || gpu_skips (r, op))
      continue;
    for (uint32_t i = 0; i < r->p->op[op + 1].uses - row->uses; i++) {
      value[i] = r->mailbox + at;
      at += gpu_slot_bytes (gpu_mail_bytes (r, op, i));
    }
    if (!weft_watch_read (&r->watch, r->m->base.plan, r->rank, op, value, metrics))
      bad = MIN (bad, op);
  }
  return bad == WEFT_NO_OP || weft_watch_refuse (r->m->base.plan, r->rank, bad, error);
}
