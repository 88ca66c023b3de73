/* Mutants (damaged copies of correct programs). Each mutant has one defect: a dependency or a write
 * is removed, a buffer gets the address of another live buffer, a view is shifted, or a transfer or
 * collective is swapped, changed or removed. A second, slow and simple checker, the judge, decides
 * whether a mutant with a defect inside one program is still correct; the checks of check.h must
 * agree with the judge.
 *
 * The judge uses two rules of program.h: ops of a lane run in order, and an op waits for its
 * dependencies. From these rules it computes which ops have ended when an op starts, and compares
 * them with the order that every pair of uses of a buffer requires: all O(n^2) pairs, one by
 * one. */
#include "core/plan/check.h"
#include "tests/made/mutant.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

#define TINY                                                                                       \
  "num_layers=4 hidden_size=16 num_attention_heads=2 kv_channels=8 ffn_hidden_size=32 "            \
  "vocab_size=64 seq_length=16 activation=swiglu precision=bf16 topology=dgx-h100 "
#define BOTH_OVERLAPS                                                                              \
  "use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "

static const char *const jobs[] = {
  TINY "gpus=1 global_batch_size=2",
  TINY "gpus=4 global_batch_size=8",
  TINY "gpus=4 global_batch_size=8 overlap_grad_reduce=true bucket_size=2000",
  TINY "gpus=4 global_batch_size=8 " BOTH_OVERLAPS
       "bucket_size=2000 gradient_accumulation_fusion=true",
  TINY "gpus=4 global_batch_size=8 " BOTH_OVERLAPS "bucket_size=1 grad_reduce_in_fp32=true "
       "share_embeddings_and_output_weights=true",
  TINY
  "gpus=8 global_batch_size=16 pipeline_model_parallel_size=2 " BOTH_OVERLAPS
  "bucket_size=2000 recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
  TINY "gpus=8 global_batch_size=16 pipeline_model_parallel_size=2 overlap_grad_reduce=true "
       "batch_p2p_sync=false bucket_size=2000 share_embeddings_and_output_weights=true "
       "pipeline_schedule=gpipe",
  TINY "gpus=8 global_batch_size=16 pipeline_model_parallel_size=4 " BOTH_OVERLAPS
       "bucket_size=3000 share_embeddings_and_output_weights=true deallocate_pipeline_outputs=true "
       "batch_p2p_sync=false",
};

/* ------------------------------------------------------------------- copies */

/* Returns a copy of `p` without op `gone`. The uses of buffers by this op and the dependencies on
 * this op are removed too. */
static weft_program *
without_op (const weft_program *p, uint32_t gone)
{
  weft_program *q = weft_mutant_copy (p);
  uint32_t deps = 0, uses = 0, n = 0;

  for (uint32_t i = 0; i <= p->n_op; i++) {
    struct weft_op row = p->op[i];
    row.deps = deps;
    row.uses = uses;
    if (i == gone)
      continue;
    q->op[n++] = row;
    for (uint32_t d = p->op[i].deps; i < p->n_op && d < p->op[i + 1].deps; d++)
      if (p->deps[d] != gone)
        q->deps[deps++] = p->deps[d] - (p->deps[d] > gone);
    for (uint32_t u = p->op[i].uses; i < p->n_op && u < p->op[i + 1].uses; u++)
      q->uses[uses++] = p->uses[u];
  }
  q->n_op--;
  weft_program_index (q);
  return q;
}

/* ------------------------------------- the judge: a slow and simple checker */

/* A relation between ops: for every op, a set of ops, stored as a row of bits. */
struct relation {
  uint32_t n, words;
  uint64_t *bits;
};

static struct relation
relation_new (uint32_t n)
{
  uint32_t words = n / 64 + 1;
  return (struct relation){ n, words, g_new0 (uint64_t, (size_t) n * words + 1) };
}

static uint64_t *
row_of (const struct relation *r, uint32_t op)
{
  return &r->bits[(size_t) op * r->words];
}

static gboolean
has (const struct relation *r, uint32_t op, uint32_t other)
{
  return row_of (r, op)[other / 64] >> other % 64 & 1;
}

static void
put (struct relation *r, uint32_t op, uint32_t other)
{
  row_of (r, op)[other / 64] |= (uint64_t) 1 << other % 64;
}

/* Finds the launch group of `op`: positions [*first, *last) on its lane. */
static void
group_of (const weft_program *p, uint32_t op, uint32_t *first, uint32_t *last)
{
  uint32_t lane = p->op[op].lane;

  *first = p->pos[op];
  *last = p->pos[op] + 1;
  while (p->op[p->lane_ops[lane][*first]].flags & WEFT_OP_GROUPED)
    --*first;
  while (*last < p->lane_n[lane] && p->op[p->lane_ops[lane][*last]].flags & WEFT_OP_GROUPED)
    ++*last;
}

/* Records that `op` starts after the whole launch group of `dep` has ended. */
static void
after (struct relation *known, const weft_program *p, uint32_t op, uint32_t dep)
{
  uint32_t first, last;

  for (uint32_t w = 0; w < known->words; w++)
    row_of (known, op)[w] |= row_of (known, dep)[w];
  group_of (p, dep, &first, &last);
  for (uint32_t i = first; i < last; i++)
    put (known, op, p->lane_ops[p->op[dep].lane][i]);
}

/* Records which ops have ended when `op` starts: the dependencies of its launch group, and the
 * earlier ops of its lane. */
static void
learn (struct relation *known, const weft_program *p, uint32_t op)
{
  uint32_t first, last, lane = p->op[op].lane;

  group_of (p, op, &first, &last);
  for (uint32_t i = first; i < last; i++) {
    uint32_t member = p->lane_ops[lane][i];
    for (uint32_t d = p->op[member].deps; d < p->op[member + 1].deps; d++)
      after (known, p, op, p->deps[d]);
  }
  if (first > 0)
    after (known, p, op, p->lane_ops[lane][first - 1]);
}

static struct relation
find_known (const weft_program *p)
{
  struct relation known = relation_new (p->n_op);
  size_t bytes = (size_t) known.n * known.words * sizeof (uint64_t);
  g_autofree uint64_t *before = g_malloc (bytes + 1);

  /* An op waits for the dependencies of all members of its launch group, including members with
   * higher numbers. So the pass over the ops is repeated until no set changes. */
  do {
    memcpy (before, known.bits, bytes);
    for (uint32_t op = 0; op < p->n_op; op++)
      learn (&known, p, op);
  } while (memcmp (before, known.bits, bytes) != 0);
  return known;
}

/* One use of a buffer: bytes [from, to), counted in the buffer that owns the memory. */
struct access {
  uint32_t op;
  uint64_t from, to;
  gboolean write;
};

/* For every buffer, an array of its uses. Uses of a view are in the array of the buffer that
 * owns its memory. */
static GPtrArray *
list_accesses (const weft_program *p)
{
  GPtrArray *all = g_ptr_array_new_with_free_func ((GDestroyNotify) g_array_unref);

  for (uint32_t i = 0; i < p->n_buf; i++)
    g_ptr_array_add (all, g_array_new (FALSE, FALSE, sizeof (struct access)));
  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++) {
      const struct weft_use *use = &p->uses[u];
      if (use->buf == WEFT_NO_BUF)
        continue;
      uint32_t owner = weft_buf_owner (p, use->buf);
      uint64_t from = owner == use->buf ? 0 : p->buf[use->buf].offset;
      struct access row = { op, from, from + p->buf[use->buf].bytes, use->write };
      g_array_append_val ((GArray *) all->pdata[owner], row);
    }
  return all;
}

/* Records the order that uses of one buffer require: if two uses have common bytes and at least
 * one of them writes, the op with the lower number must end first. */
static void
ask_for_uses (struct relation *asked, GArray *uses)
{
  for (guint i = 0; i < uses->len; i++)
    for (guint j = 0; j < uses->len; j++) {
      const struct access *a = &g_array_index (uses, struct access, i);
      const struct access *b = &g_array_index (uses, struct access, j);
      if (a->op < b->op && (a->write || b->write) && a->from < b->to && b->from < a->to)
        put (asked, b->op, a->op);
    }
}

static gboolean
share_address (const weft_program *p, uint32_t a, uint32_t b)
{
  const struct weft_buf *x = &p->buf[a], *y = &p->buf[b];

  return a != b && x->base == WEFT_NO_BUF && y->base == WEFT_NO_BUF && x->pool == y->pool &&
         x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}

/* Records the order for two buffers that share an address: all uses of `old` must end before any
 * use of `new`. Returns FALSE if both are live at once, so that no order is correct. */
static gboolean
ask_for_address (struct relation *asked, const weft_program *p, GPtrArray *all, uint32_t old,
                 uint32_t new)
{
  GArray *before = all->pdata[old], *then = all->pdata[new];

  if (p->buf[new].last < p->buf[old].first)
    /* `new` ends before `old` begins: nothing to record. find_asked() calls ask_for_address() a
     * second time with the two buffers exchanged. */
    return TRUE;
  for (guint i = 0; i < before->len; i++)
    for (guint j = 0; j < then->len; j++)
      put (asked, g_array_index (then, struct access, j).op,
           g_array_index (before, struct access, i).op);
  return p->buf[old].last < p->buf[new].first;
}

/* Collects the required order of every pair of ops: bit a of row b is set if op a must have ended
 * when op b starts. Returns FALSE if no order makes the program correct. */
static gboolean
find_asked (const weft_program *p, struct relation *asked)
{
  g_autoptr (GPtrArray) all = list_accesses (p);
  gboolean possible = TRUE;

  *asked = relation_new (p->n_op);
  for (uint32_t a = 0; a < p->n_buf; a++) {
    ask_for_uses (asked, all->pdata[a]);
    for (uint32_t b = 0; b < p->n_buf; b++)
      if (share_address (p, a, b))
        possible &= ask_for_address (asked, p, all, a, b);
  }
  return possible;
}

/* Whether every buffer that is not permanent is written before it is read. In the programs of
 * this test, such buffers have no views. */
static gboolean
reads_what_was_written (const weft_program *p)
{
  g_autofree gboolean *written = g_new0 (gboolean, p->n_buf + 1);

  for (uint32_t u = 0; u < p->op[p->n_op].uses; u++) {
    const struct weft_use *use = &p->uses[u];
    if (use->buf == WEFT_NO_BUF || p->buf[use->buf].permanent)
      continue;
    assert_int_equal (p->buf[use->buf].base, WEFT_NO_BUF);
    if (use->read && !written[use->buf])
      return FALSE;
    written[use->buf] |= use->write;
  }
  return TRUE;
}

static gboolean
ordered_as_asked (const weft_program *p, const struct relation *asked)
{
  struct relation known = find_known (p);
  gboolean ok = TRUE;

  for (size_t i = 0; i < (size_t) known.n * known.words; i++)
    ok &= (asked->bits[i] & ~known.bits[i]) == 0;
  g_free (known.bits);
  return ok;
}

static gboolean
judge (const weft_program *p)
{
  struct relation asked;
  gboolean ok =
      find_asked (p, &asked) && ordered_as_asked (p, &asked) && reads_what_was_written (p);

  g_free (asked.bits);
  return ok;
}

static gboolean
proved (const weft_program *p, GError **error)
{
  return weft_check_program (p, error) && weft_check_addresses (p, error);
}

/* ------------------------------------------------------------------ fixture */

static int
set_up (void **state)
{
  weft_plan **plan = g_new0 (weft_plan *, G_N_ELEMENTS (jobs));

  for (size_t i = 0; i < G_N_ELEMENTS (jobs); i++)
    plan[i] = weft_test_plan ("%s", jobs[i]);
  *state = plan;
  return 0;
}

static int
tear_down (void **state)
{
  weft_plan **plan = *state;

  for (size_t i = 0; i < G_N_ELEMENTS (jobs); i++)
    weft_plan_free (plan[i]);
  g_free (plan);
  return 0;
}

/* Calls `visit` with every program of every plan. */
static void
for_all (void **state, void (*visit) (const weft_plan *plan, uint32_t role, void *user), void *user)
{
  weft_plan *const *plan = *state;

  for (size_t i = 0; i < G_N_ELEMENTS (jobs); i++)
    for (uint32_t role = 0; role < plan[i]->n_roles; role++)
      visit (plan[i], role, user);
}

/* Asserts that the message contains the number and the label of `op`. */
static void
assert_names (const char *message, const weft_program *p, uint32_t op)
{
  g_autofree char *label = weft_op_label (p, op), *number = g_strdup_printf ("op %u", op);

  if (!strstr (message, label) || !strstr (message, number))
    fail_msg ("\"%s\" does not name %s (%s)", message, number, label);
}

/* -------------------------------------------------------------------- edges */

/* Dependencies that protect no buffer. They model the order in which a framework launches work, and
 * change only times and no results, so removing one is harmless. */
static const struct launch {
  enum weft_lane then, first;
  gboolean sync; /* TRUE: programs have the dependency only with batch_p2p_sync */
  const char *why;
} launches[] = {
  { WEFT_LANE_DP, WEFT_LANE_GPU, FALSE,
    "a collective of a bucket waits for kernels enqueued before it" },
  { WEFT_LANE_DP, WEFT_LANE_PP, FALSE, "and for the exchange that the next kernel would wait for" },
  { WEFT_LANE_PP, WEFT_LANE_GPU, FALSE, "an exchange waits for kernels enqueued before it" },
  { WEFT_LANE_GPU, WEFT_LANE_PP, FALSE,
    "a kernel waits for all of the exchange before it (batch_p2p_comm)" },
  { WEFT_LANE_GPU, WEFT_LANE_H2D, TRUE, "and for tokens on their way (batch_p2p_sync)" },
  { WEFT_LANE_H2D, WEFT_LANE_GPU, FALSE, "tokens come one forward pass ahead, not earlier" },
};

struct edges {
  uint32_t caught, implied, launch[G_N_ELEMENTS (launches)];
};

static void
count_harmless (struct edges *n, const weft_plan *plan, const weft_program *without, uint32_t op,
                uint32_t dep)
{
  const weft_program *p = plan->role[without->role];
  gboolean sync = plan->n_roles > 1 && plan->job.strategy.batch_p2p_sync;
  struct relation known = find_known (without);
  gboolean implied = has (&known, op, dep);

  g_free (known.bits);
  if (implied) {
    n->implied++;
    return;
  }
  for (size_t i = 0; i < G_N_ELEMENTS (launches); i++)
    if (launches[i].then == p->op[op].lane && launches[i].first == p->op[dep].lane &&
        (sync || !launches[i].sync)) {
      n->launch[i]++;
      return;
    }
  g_autofree char *a = weft_op_label (p, dep), *b = weft_op_label (p, op);
  fail_msg ("role %u: nothing asks for op %u (%s) before op %u (%s)", p->role, dep, a, op, b);
}

static void
remove_each_edge (const weft_plan *plan, uint32_t role, void *user)
{
  const weft_program *p = plan->role[role];
  struct edges *n = user;
  struct relation asked;

  assert_true (find_asked (p, &asked));
  assert_true (ordered_as_asked (p, &asked));
  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++) {
      g_autoptr (GError) error = NULL;
      g_autoptr (weft_program) q = weft_mutant_without_edge (p, op, d);
      gboolean harmless = ordered_as_asked (q, &asked);
      if (proved (q, &error) != harmless)
        fail_msg ("role %u without op %u before op %u: the judge says %s, the check %s", role,
                  p->deps[d], op, harmless ? "harmless" : "race",
                  error ? error->message : "nothing");
      if (harmless)
        count_harmless (n, plan, q, op, p->deps[d]);
      n->caught += !harmless;
    }
  g_free (asked.bits);
}

static void
every_dependency_is_missed_or_only_launch_order (void **state)
{
  struct edges n = { 0 };

  for_all (state, remove_each_edge, &n);
  print_message ("%5u dependencies removed and caught\n%5u implied by others\n", n.caught,
                 n.implied);
  for (size_t i = 0; i < G_N_ELEMENTS (launches); i++) {
    print_message ("%5u only launch order: %s\n", n.launch[i], launches[i].why);
    assert_true (n.launch[i] > 0);
  }
  assert_true (n.caught > 300);
  assert_true (n.implied < n.caught / 4);
}

/* --------------------------------------------------------------------- uses */

struct tally {
  uint32_t caught, harmless;
};

/* Runs the checks of check.h and the judge (the simple second checker) on a mutant, and fails if
 * only one of them refuses the mutant. TRUE: both refuse it. */
static gboolean
agree (const weft_program *q, struct tally *n, GError **error)
{
  gboolean good = judge (q);

  if (proved (q, error) != good)
    fail_msg ("role %u: the judge says %s, the check %s", q->role, good ? "good" : "bad",
              *error ? (*error)->message : "nothing");
  *(good ? &n->harmless : &n->caught) += 1;
  return !good;
}

static void
drop_each_write (const weft_plan *plan, uint32_t role, void *user)
{
  const weft_program *p = plan->role[role];

  for (uint32_t u = 0; u < p->op[p->n_op].uses; u++) {
    g_autoptr (GError) error = NULL;
    if (!p->uses[u].write || p->uses[u].buf == WEFT_NO_BUF)
      continue;
    g_autoptr (weft_program) q = weft_mutant_copy (p);
    q->uses[u].write = 0;
    if (agree (q, user, &error))
      assert_non_null (strstr (error->message, "before any op wrote it"));
  }
}

/* Makes one mutant for each write, in which this write is missing. Such a mutant is still correct
 * if the buffer is permanent, or if no op reads the buffer later. */
static void
a_write_that_is_dropped_leaves_its_reader_without (void **state)
{
  struct tally n = { 0 };

  for_all (state, drop_each_write, &n);
  print_message ("%u writes dropped and caught, %u of permanent buffers or unread\n", n.caught,
                 n.harmless);
  assert_true (n.caught > n.harmless);
}

static void
overlap_buffers (const weft_plan *plan, uint32_t role, void *user)
{
  const weft_program *p = plan->role[role];

  for (uint32_t i = 0; i + 7 < p->n_buf; i++) {
    g_autoptr (GError) error = NULL;
    const struct weft_buf *a = &p->buf[i], *b = &p->buf[i + 1 + i % 7];
    if (a->base != WEFT_NO_BUF || b->base != WEFT_NO_BUF || !a->bytes || !b->bytes ||
        a->first > b->last || b->first > a->last)
      continue;
    g_autoptr (weft_program) q = weft_mutant_copy (p);
    q->buf[i].offset = b->offset;
    assert_true (agree (q, user, &error));
    assert_non_null (strstr (error->message, "overwrites buffer"));
  }
}

static void
two_live_buffers_on_one_address_are_refused (void **state)
{
  struct tally n = { 0 };

  for_all (state, overlap_buffers, &n);
  print_message ("%u overlaps of live buffers\n", n.caught);
  assert_true (n.caught > 200);
}

/* Makes mutants in which a view begins at the start of the buffer that it is a part of, or one
 * element earlier than before. The view then overlaps the view of another bucket. */
static void
shift_each_view (const weft_plan *plan, uint32_t role, void *user)
{
  const weft_program *p = plan->role[role];

  for (uint32_t i = 0; i < p->n_buf; i++)
    for (int way = 0; way < 2; way++) {
      g_autoptr (GError) error = NULL;
      uint64_t step = weft_dtype_bytes (p->buf[i].dtype);
      if (p->buf[i].base == WEFT_NO_BUF || p->buf[i].offset < step)
        continue;
      g_autoptr (weft_program) q = weft_mutant_copy (p);
      q->buf[i].offset = way ? p->buf[i].offset - step : 0;
      if (agree (q, user, &error))
        assert_non_null (strstr (error->message, ": a race"));
    }
}

static void
a_view_that_is_shifted_into_a_bucket_under_way_races (void **state)
{
  struct tally n = { 0 };

  for_all (state, shift_each_view, &n);
  print_message ("%u shifted views race, %u keep to bytes of their own lane's order\n", n.caught,
                 n.harmless);
  assert_true (n.caught > 100);
}

/* -------------------------------------------------------------------- roles */

/* Checks all roles of a plan, where `instead` replaces the program of its role. */
static gboolean
roles_proved (const weft_plan *plan, weft_program *instead, GError **error)
{
  g_autofree weft_program **role = g_memdup2 (plan->role, plan->n_roles * sizeof *plan->role);

  role[instead->role] = instead;
  return weft_check_roles (&plan->mesh, role, error);
}

static uint32_t
list_transfers (const weft_plan *plan, uint32_t role, enum weft_op_kind kind, uint32_t *op)
{
  uint32_t n = 0;

  for (uint32_t i = 0; i < plan->role[role]->n_op; i++)
    if (plan->role[role]->op[i].kind == kind)
      op[n++] = i;
  return n;
}

static void
swap_transfers (const weft_plan *plan, uint32_t role, void *user)
{
  const weft_program *p = plan->role[role];
  g_autofree uint32_t *op = g_new (uint32_t, p->n_op);

  for (int kind = WEFT_OP_SEND; kind <= WEFT_OP_RECV; kind++) {
    uint32_t n = list_transfers (plan, role, kind, op);
    for (uint32_t i = 0; i + 1 < n; i++) {
      g_autoptr (GError) error = NULL;
      g_autoptr (weft_program) q = weft_mutant_copy (p);
      uint16_t micro = q->op[op[i]].micro;
      q->op[op[i]].micro = q->op[op[i + 1]].micro;
      q->op[op[i + 1]].micro = micro;
      if (p->op[op[i]].peer != p->op[op[i + 1]].peer ||
          p->op[op[i]].micro == p->op[op[i + 1]].micro)
        continue;
      assert_false (roles_proved (plan, q, &error));
      assert_non_null (strstr (error->message, "must agree in kind, size, type and order"));
      assert_names (error->message, q, op[i]);
      ++*(uint32_t *) user;
    }
  }
}

static void
two_transfers_swapped_on_one_role_disagree (void **state)
{
  uint32_t n = 0;

  for_all (state, swap_transfers, &n);
  print_message ("%u swaps\n", n);
  assert_true (n > 20);
}

static void
change_collectives (const weft_plan *plan, uint32_t role, void *user)
{
  const weft_program *p = plan->role[role];

  for (uint32_t op = 0; op < p->n_op; op++) {
    g_autoptr (GError) error = NULL;
    if (plan->n_roles == 1 || weft_op_info[p->op[op].kind].class != WEFT_CLASS_COLLECTIVE ||
        p->op[op].group == WEFT_GROUP_DP)
      continue;
    g_autoptr (weft_program) q = weft_mutant_copy (p);
    q->op[op].kind = WEFT_OP_BROADCAST;
    assert_false (roles_proved (plan, q, &error));
    assert_names (error->message, q, op);
    ++*(uint32_t *) user;
  }
}

static void
another_collective_on_one_role_disagrees (void **state)
{
  uint32_t n = 0;

  for_all (state, change_collectives, &n);
  print_message ("%u collectives between roles\n", n);
  assert_true (n > 10);
}

static void
resize_transfers (const weft_plan *plan, uint32_t role, void *user)
{
  const weft_program *p = plan->role[role];

  for (uint32_t op = 0; op < p->n_op; op++) {
    g_autoptr (GError) error = NULL;
    if (weft_op_info[p->op[op].kind].class != WEFT_CLASS_P2P)
      continue;
    g_autoptr (weft_program) q = weft_mutant_copy (p);
    q->shape = g_renew (struct weft_shape, q->shape, ++q->n_shape);
    q->shape[q->n_shape - 1] = *weft_op_shape (p, op);
    q->shape[q->n_shape - 1].dim[0] += 1;
    q->op[op].shape = q->n_shape - 1;
    assert_false (roles_proved (plan, q, &error));
    assert_names (error->message, q, op);
    ++*(uint32_t *) user;
  }
}

static void
another_size_on_one_side_of_a_transfer_disagrees (void **state)
{
  uint32_t n = 0;

  for_all (state, resize_transfers, &n);
  print_message ("%u sizes\n", n);
  assert_true (n > 40);
}

static void
drop_transfers (const weft_plan *plan, uint32_t role, void *user)
{
  const weft_program *p = plan->role[role];

  for (uint32_t op = 0; op < p->n_op; op++) {
    g_autoptr (GError) error = NULL, unread = NULL;
    if (weft_op_info[p->op[op].kind].class != WEFT_CLASS_P2P)
      continue;
    g_autoptr (weft_program) q = without_op (p, op);
    assert_false (roles_proved (plan, q, &error));
    assert_non_null (strstr (error->message, "role "));
    assert_non_null (strstr (error->message, "op "));
    if (p->op[op].kind == WEFT_OP_RECV) {
      assert_false (weft_check_program (q, &unread));
      assert_non_null (strstr (unread->message, "before any op wrote it"));
    }
    ++*(uint32_t *) user;
  }
}

static void
a_transfer_without_its_other_side_is_refused (void **state)
{
  uint32_t n = 0;

  for_all (state, drop_transfers, &n);
  print_message ("%u transfers dropped\n", n);
  assert_true (n > 40);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_dependency_is_missed_or_only_launch_order),
  cmocka_unit_test (a_write_that_is_dropped_leaves_its_reader_without),
  cmocka_unit_test (two_live_buffers_on_one_address_are_refused),
  cmocka_unit_test (a_view_that_is_shifted_into_a_bucket_under_way_races),
  cmocka_unit_test (two_transfers_swapped_on_one_role_disagree),
  cmocka_unit_test (another_collective_on_one_role_disagrees),
  cmocka_unit_test (another_size_on_one_side_of_a_transfer_disagrees),
  cmocka_unit_test (a_transfer_without_its_other_side_is_refused),
};

WEFT_TESTS (tests, .set_up = set_up, .tear_down = tear_down)
