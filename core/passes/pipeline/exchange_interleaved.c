/* Sends and receives of the interleaved schedule, in which each rank holds several model chunks and
 * consecutive stages form a ring over the ranks. Megatron-Core's order (schedules.py
 * forward_backward_pipelining_with_interleaving) has a warm-up of forward passes (F), then
 * alternates a forward and a backward pass (B), then has the remaining backward passes:
 *
 *   warm-up   F, {send_forward, recv_forward}; the last exchange also has recv_backward
 *   steady    F, B, {send_forward, send_backward, recv_forward, recv_backward}
 *   cooldown  B, {send_backward, recv_backward}
 *
 * With overlap_p2p_comm, no op in steady state waits for a whole exchange. Kernels wait for the
 * transfers whose buffers they read, and for the send before the newest send:
 *
 *   steady    F, send_forward, recv_forward; B, send_backward, recv_backward
 *
 * With overlap_p2p_comm_warmup_flush, transfers of warm-up and cooldown overlap kernels too. In
 * these phases a rank receives the input of its pass k + 2 before it computes pass k + 1. (Forward
 * passes of a rank are numbered from 0, and so are its backward passes.)
 *
 * A tensor that is received after pass k is the input of pass k + 1. Exception: the first of p
 * ranks receives from the last rank, whose forward passes run p - 1 passes later. After its own
 * pass k the first rank receives the output of pass k - (p - 1) of the last rank, and stores the
 * tensor until the pass that reads it. In backward, the last rank receives from the first rank in
 * this way. */
#include "core/passes/pipeline/posting.h"

/* The forward passes of this rank, or its backward passes, in schedule order. */
struct slots {
  const struct weft_cell **cell;
  uint32_t n, n_over; /* n: number of passes; n_over: number of passes completed so far */
  /* TRUE: for this direction the rank holds the first stage, and receives the input of its other
   * chunks from the rank of the last stage */
  gboolean leads;
  uint32_t sent; /* last send that was posted to overlap kernels, or WEFT_NO_OP */
};

struct weft_slots {
  struct slots forward, backward;
  uint32_t warm; /* number of forward passes in the warm-up */
};

static void
fill_slots (const struct weft_step *s, struct slots *slots, gboolean forward)
{
  const struct weft_cell *row = s->grid->cell[s->role];
  uint32_t n = s->grid->n_cell[s->role];

  slots->cell = g_new (const struct weft_cell *, n);
  for (uint32_t i = 0; i < n; i++)
    if ((row[i].phase == WEFT_PHASE_FORWARD) == forward)
      slots->cell[slots->n++] = &row[i];
  slots->leads = s->role == (forward ? 0 : s->grid->n_ranks - 1);
  slots->sent = WEFT_NO_OP;
}

static struct weft_slots *
slots_new (const struct weft_step *s)
{
  const struct weft_grid_spec spec = weft_job_grid_spec (s->job);
  struct weft_slots *all = g_new0 (struct weft_slots, 1);
  uint64_t after = spec.n_ranks - 1 - s->role,
           warm = 2 * after + (s->n_chunks - 1) * weft_spec_group (&spec) + spec.extra_warmup;

  fill_slots (s, &all->forward, TRUE);
  fill_slots (s, &all->backward, FALSE);
  all->warm = (uint32_t) MIN (warm, all->forward.n);
  return all;
}

static void
slots_free (struct weft_slots *all)
{
  g_free (all->forward.cell);
  g_free (all->backward.cell);
  g_free (all);
}

/* Sets *cell to the pass whose input is received after pass number k of this rank. Returns FALSE if
 * no input is received after pass k. */
static gboolean
arrives_after (const struct weft_step *s, const struct slots *slots, uint32_t k,
               struct weft_cell *cell)
{
  uint32_t behind = s->grid->n_ranks - 1;
  gboolean forward = slots->cell[0]->phase == WEFT_PHASE_FORWARD;

  if (k + 1 >= slots->n || (slots->leads && k < behind))
    return FALSE;
  *cell = *slots->cell[slots->leads ? k - behind : k + 1];
  if (!slots->leads)
    return TRUE;
  if (forward ? cell->chunk + 1u == s->n_chunks : cell->chunk == 0)
    return FALSE;
  cell->chunk += forward ? 1 : -1;
  return TRUE;
}

static void
receive_after (struct weft_step *s, const struct slots *slots, uint32_t k)
{
  struct weft_cell cell;

  if (arrives_after (s, slots, k, &cell))
    weft_exchange_receive (s, &cell);
}

/* Returns the index of the pass that was completed last. */
static uint32_t
newest (const struct slots *slots)
{
  return slots->n_over - 1;
}

static void
send_newest (struct weft_step *s, const struct slots *slots)
{
  weft_exchange_send (s, slots->cell[newest (slots)]);
}

static gboolean
is_steady (const struct weft_slots *all)
{
  return all->forward.n_over > all->warm && all->backward.n_over + all->warm <= all->forward.n;
}

/* Adds the receive of the first gradient, which belongs to the last exchange of the warm-up. */
static void
receive_first_gradient (struct weft_step *s, const struct weft_slots *all)
{
  if (all->forward.n_over == MIN (all->warm, all->forward.n))
    weft_exchange_receive (s, all->backward.cell[0]);
}

/* ------------------------------------------------------------------ one after the other */

static void
exchange_in_turn (struct weft_step *s, struct weft_slots *all, gboolean forward)
{
  gboolean steady = is_steady (all);

  if (forward && steady)
    return;
  weft_exchange_begin (s, WEFT_POST_GROUP);
  if (forward || steady)
    send_newest (s, &all->forward);
  if (!forward)
    send_newest (s, &all->backward);
  if (forward || steady)
    receive_after (s, &all->forward, newest (&all->forward));
  if (!forward)
    receive_after (s, &all->backward, newest (&all->backward));
  if (forward && all->warm < all->forward.n)
    receive_first_gradient (s, all);
  weft_exchange_end (s);
  if (forward && all->warm == all->forward.n) {
    weft_exchange_begin (s, WEFT_POST_GROUP);
    receive_first_gradient (s, all);
    weft_exchange_end (s);
  }
}

/* ----------------------------------------------------- transfers that run beside kernels */

/* Whether a pass belongs to warm-up or cooldown, in which forward and backward passes do not
 * alternate. */
static gboolean
is_alone (const struct weft_slots *all, const struct slots *slots, uint32_t slot)
{
  return slots == &all->forward ? slot < all->warm : slot + all->warm >= slots->n;
}

static void
exchange_aside (struct weft_step *s, struct weft_slots *all, gboolean forward)
{
  struct slots *slots = forward ? &all->forward : &all->backward;
  gboolean flush = s->strategy->overlap_p2p_comm_warmup_flush;
  uint32_t k = newest (slots);
  gboolean waits = is_alone (all, slots, k) && !flush;
  /* TRUE: the input of the rank's next pass was received before the current pass was computed
   * (overlap_p2p_comm_warmup_flush) */
  gboolean ahead = flush && !slots->leads && is_alone (all, slots, k);

  weft_exchange_begin (s, waits ? WEFT_POST_EACH : WEFT_POST_ASIDE);
  send_newest (s, slots);
  if (!ahead)
    receive_after (s, slots, k);
  /* kernels wait for the rank's previous send in this direction (forward or backward) */
  if (slots->sent != WEFT_NO_OP)
    weft_next_kernel_waits_for (s, slots->sent);
  slots->sent = weft_exchange_end (s);
  weft_exchange_begin (s, WEFT_POST_ASIDE);
  if (forward && is_alone (all, slots, k))
    receive_first_gradient (s, all);
  if (flush && !slots->leads && k + 1 < slots->n && is_alone (all, slots, k + 1))
    receive_after (s, slots, k + 1);
  if (flush && forward && k + 1 == slots->n && !all->backward.leads && all->warm == slots->n)
    receive_after (s, &all->backward, 0);
  weft_exchange_end (s);
}

static void
start (struct weft_step *s)
{
  gboolean flush = s->strategy->overlap_p2p_comm_warmup_flush;

  s->pipeline->slots = slots_new (s);
  weft_exchange_begin (s, WEFT_POST_GROUP);
  weft_exchange_receive (s, s->pipeline->slots->forward.cell[0]);
  weft_exchange_end (s);
  weft_exchange_begin (s, WEFT_POST_ASIDE);
  if (flush && !s->pipeline->slots->forward.leads &&
      is_alone (s->pipeline->slots, &s->pipeline->slots->forward, 0))
    receive_after (s, &s->pipeline->slots->forward, 0);
  weft_exchange_end (s);
}

/* Makes the end of the step wait for the last send. */
static void
finish (struct weft_step *s)
{
  if (s->pipeline->slots->backward.sent != WEFT_NO_OP)
    weft_next_kernel_waits_for (s, s->pipeline->slots->backward.sent);
  g_clear_pointer (&s->pipeline->slots, slots_free);
}

void
weft_exchange_interleaved (struct weft_step *s, uint32_t i, weft_kernels *beside)
{
  const struct weft_cell *row = s->grid->cell[s->role];

  if (i == 0) {
    start (s);
    return;
  }
  gboolean forward = row[i - 1].phase == WEFT_PHASE_FORWARD;
  (forward ? &s->pipeline->slots->forward : &s->pipeline->slots->backward)->n_over++;
  (s->strategy->overlap_p2p_comm ? exchange_aside : exchange_in_turn) (s, s->pipeline->slots,
                                                                       forward);
  weft_exchange_run_beside (s, beside);
  if (i == s->grid->n_cell[s->role])
    finish (s);
}

const struct weft_cell *
weft_slot_at (const struct weft_step *s, gboolean forward, int64_t k)
{
  const struct slots *slots =
      forward ? &s->pipeline->slots->forward : &s->pipeline->slots->backward;

  return k < 0 || k >= slots->n ? NULL : slots->cell[k];
}

uint32_t
weft_slots_over (const struct weft_step *s, gboolean forward)
{
  return (forward ? &s->pipeline->slots->forward : &s->pipeline->slots->backward)->n_over;
}
