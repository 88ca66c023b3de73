/* Families of strategies: their rules and bounds, and their members. */
#include "core/base/error.h"
#include "planner/bound.h"
#include "planner/searcher.h"
#include "planner/workers.h"
#include <math.h>

/* ------------------------------------------------------------------------- rules */

/* What is known of a family before its first bound from layers. */
struct begun {
  double flops;              /* bound by FLOPs; negative: every strategy breaks a rule */
  uint32_t n_strategies;     /* number of strategies */
  struct weft_choice choice; /* the first strategy that breaks no rule */
};

/* Number of families whose rules one task checks. */
enum { SLICE = 256 };

/* The bound by FLOPs of the first choice of `list` that breaks no rule; negative if there is none.
 * Sets *legal to this choice. */
static double
find_legal (const struct searcher *s, const GArray *list, enum weft_space_level level,
            struct weft_choice *legal)
{
  for (guint i = 0; i < list->len; i++) {
    *legal = g_array_index (list, struct weft_choice, i);
    struct weft_job job = weft_space_job (s->job, legal);
    struct weft_job family = weft_space_family_job (s->job, legal, level);
    if (weft_job_check (&job, NULL))
      return weft_bound_flops (&family);
  }
  return -1;
}

static struct begun
begin (const struct searcher *s, const struct weft_choice *family, enum weft_space_level level,
       GArray *list)
{
  struct begun begun;

  weft_space_families (s->job, s->options->ranges, family, level, WEFT_SPACE_STRATEGIES, list);
  begun.n_strategies = list->len;
  begun.flops = find_legal (s, list, level, &begun.choice);
  return begun;
}

/* The families that are begun, and their number. */
struct beginning {
  struct searcher *s;
  const GArray *families;
};

static void
begin_slice (void *user, uint32_t task, void *result)
{
  const struct beginning *b = user;
  g_autoptr (GArray) list = g_array_new (FALSE, FALSE, sizeof (struct weft_choice));
  struct begun *begun = result;

  for (guint i = task * SLICE; i < MIN (b->families->len, (task + 1) * SLICE); i++)
    *begun++ = begin (b->s, &g_array_index (b->families, struct weft_choice, i),
                      WEFT_SPACE_SCHEDULES, list);
}

static void
show_begun (void *user, uint32_t done, uint32_t of)
{
  const struct beginning *b = user;

  weft_searcher_progress (b->s, "checking rules", done * SLICE, of * SLICE);
}

static gboolean
stops_beginning (void *user)
{
  struct beginning *b = user;

  return weft_searcher_stops (b->s);
}

/* Adds a family that has strategies. */
static struct weft_candidate *
add_family (struct searcher *s, const struct begun *begun, enum weft_space_level level)
{
  struct weft_candidate *c = g_new0 (struct weft_candidate, 1);

  c->choice = begun->choice;
  c->level = level;
  c->n_strategies = begun->n_strategies;
  c->fate = begun->flops < 0 ? WEFT_FATE_RULE : WEFT_FATE_PRUNED;
  c->flops = c->bound = fmax (0, begun->flops);
  g_ptr_array_add (s->families, c);
  return c;
}

/* Keeps a family out of the search whose process ended early. */
static void
add_lost (struct searcher *s)
{
  add_family (s, &(struct begun){ .n_strategies = 1 }, WEFT_SPACE_SCHEDULES)->fate =
      WEFT_FATE_FAULT;
  if (!s->fault)
    g_set_error (&s->fault, WEFT_ERROR, WEFT_ERROR_BUG,
                 "the process that checked its rules ended early, and so did a second one");
}

/* Lists the families, checks their rules and computes the first lower bound of each, in several
 * processes. */
static gboolean
list_families (struct searcher *s, GError **error)
{
  g_autoptr (GArray) families = g_array_new (FALSE, FALSE, sizeof (struct weft_choice));
  struct beginning b = { s, families };

  weft_space_families (s->job, s->options->ranges, NULL, 0, WEFT_SPACE_SCHEDULES, families);
  uint32_t n = (families->len + SLICE - 1) / SLICE;
  const struct weft_workers workers = { .n_tasks = n,
                                        .n_workers = n > 1 ? s->options->n_workers : 1,
                                        .result_bytes = SLICE * sizeof (struct begun),
                                        .run = begin_slice,
                                        .user = &b,
                                        .progress = show_begun,
                                        .progress_user = &b,
                                        .stop = stops_beginning };
  g_autofree struct begun *begun = g_new (struct begun, (size_t) n * SLICE);
  g_autofree gboolean *done = g_new0 (gboolean, n);

  if (n > 0 && !weft_workers_run (&workers, begun, done, error))
    return FALSE;
  for (guint i = 0; i < families->len; i++)
    if (!done[i / SLICE] && !s->stopped)
      add_lost (s);
    else if (begun[i].n_strategies > 0)
      add_family (s, &begun[i], WEFT_SPACE_SCHEDULES);
  return TRUE;
}

gboolean
weft_searcher_begin (struct searcher *s, GError **error)
{
  gboolean ok = weft_searcher_stops (s) || list_families (s, error);

  for (guint i = 0; ok && s->options->exhaustive && i < s->families->len; i++)
    weft_searcher_expand (s, s->families->pdata[i]);
  for (guint i = 0; ok && s->options->exhaustive && i < s->strategies->len; i++) {
    struct weft_candidate *c = s->strategies->pdata[i];
    if (c->fate == WEFT_FATE_PRUNED && !weft_searcher_stops (s))
      ok = weft_searcher_rank (s, c, error);
  }
  return ok;
}

/* ------------------------------------------------------------------------- bounds */

/* The least bytes that a strategy of a family of equal kernels may need. */
static double
least_bytes (const struct searcher *s, const struct weft_candidate *family, const GArray *ranks)
{
  g_autoptr (GArray) members = g_array_new (FALSE, FALSE, sizeof (struct weft_choice));
  double least = INFINITY;

  weft_space_families (s->job, s->options->ranges, &family->choice, WEFT_SPACE_KERNELS,
                       WEFT_SPACE_STRATEGIES, members);
  for (guint i = 0; i < members->len; i++) {
    struct weft_job job = weft_space_job (s->job, &g_array_index (members, struct weft_choice, i));
    least = fmin (least, weft_bound_bytes (&job, ranks));
  }
  return least;
}

void
weft_searcher_look_at_family (struct searcher *s, struct weft_candidate *c)
{
  g_autoptr (GArray) ranks = g_array_new (FALSE, FALSE, sizeof (struct weft_rank_bytes));
  struct weft_job job = weft_space_family_job (s->job, &c->choice, c->level);

  c->bound = fmax (c->bound, weft_bound_family (s->segments, &job, ranks));
  c->known = WEFT_PASSES;
  if (c->level == WEFT_SPACE_SCHEDULES)
    return;
  double bytes = least_bytes (s, c, ranks);
  c->bytes = (uint64_t) bytes;
  if (bytes > weft_plan_capacity (&job))
    c->fate = WEFT_FATE_MEMORY;
}

void
weft_searcher_approach (struct searcher *s, struct weft_candidate *c)
{
  struct weft_job job = weft_space_family_job (s->job, &c->choice, c->level);

  s->n_steps++;
  if (c->known == WEFT_FLOPS) {
    weft_searcher_look_at_family (s, c);
    return;
  }
  if (c->known == WEFT_SCHEDULE && c->level < WEFT_SPACE_STRATEGIES) {
    weft_searcher_expand (s, c);
    return;
  }
  if (c->known == WEFT_PASSES)
    c->bound = fmax (c->bound, weft_bound_schedule (s->segments, &job));
  else if (c->known == WEFT_SCHEDULE)
    c->bound = fmax (c->bound, weft_bound_ends (s->segments, &job));
  else
    c->bound = fmax (c->bound, weft_bound_lanes (s->segments, &job));
  c->known++;
}

/* ------------------------------------------------------------------------- members */

static void
add_member (struct searcher *s, const struct weft_candidate *family,
            const struct weft_choice *choice, const GArray *ranks)
{
  struct weft_candidate *c = g_new0 (struct weft_candidate, 1);
  struct weft_job job = weft_space_job (s->job, choice);

  c->choice = *choice;
  c->level = WEFT_SPACE_STRATEGIES;
  c->known = MAX (family->known, WEFT_PASSES);
  c->fate = weft_job_check (&job, NULL) ? WEFT_FATE_PRUNED : WEFT_FATE_RULE;
  g_ptr_array_add (s->strategies, c);
  if (c->fate == WEFT_FATE_RULE)
    return;
  double bytes = weft_bound_bytes (&job, ranks);
  c->flops = family->flops;
  c->bound = family->bound;
  c->bytes = (uint64_t) bytes;
  if (bytes > weft_plan_capacity (&job) && !s->options->exhaustive)
    c->fate = WEFT_FATE_MEMORY;
}

static void
add_members (struct searcher *s, struct weft_candidate *family)
{
  g_autoptr (GArray) ranks = g_array_new (FALSE, FALSE, sizeof (struct weft_rank_bytes));
  g_autoptr (GArray) members = g_array_new (FALSE, FALSE, sizeof (struct weft_choice));
  struct weft_job job = weft_space_job (s->job, &family->choice);

  if (family->fate != WEFT_FATE_RULE)
    family->bound = fmax (family->bound, weft_bound_family (s->segments, &job, ranks));
  weft_space_families (s->job, s->options->ranges, &family->choice, WEFT_SPACE_KERNELS,
                       WEFT_SPACE_STRATEGIES, members);
  for (guint i = 0; i < members->len; i++)
    add_member (s, family, &g_array_index (members, struct weft_choice, i), ranks);
}

/* Adds the families of equal kernels within one of equal schedules. None is faster than the bound
 * of the whole. */
static void
add_kernels (struct searcher *s, const struct weft_candidate *family)
{
  g_autoptr (GArray) within = g_array_new (FALSE, FALSE, sizeof (struct weft_choice));
  g_autoptr (GArray) list = g_array_new (FALSE, FALSE, sizeof (struct weft_choice));

  weft_space_families (s->job, s->options->ranges, &family->choice, family->level,
                       WEFT_SPACE_KERNELS, within);
  for (guint i = 0; i < within->len; i++) {
    struct begun begun =
        begin (s, &g_array_index (within, struct weft_choice, i), WEFT_SPACE_KERNELS, list);
    if (begun.n_strategies > 0) {
      struct weft_candidate *c = add_family (s, &begun, WEFT_SPACE_KERNELS);
      c->bound = fmax (c->bound, family->bound);
    }
  }
}

void
weft_searcher_expand (struct searcher *s, struct weft_candidate *family)
{
  if (family->level == WEFT_SPACE_SCHEDULES)
    add_kernels (s, family);
  else
    add_members (s, family);
  family->expanded = TRUE;
}
