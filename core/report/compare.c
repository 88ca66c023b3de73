#include "core/report/compare.h"
#include <math.h>
#include <string.h>

enum { A = WEFT_COMPARE_A, B = WEFT_COMPARE_B, SIDES = WEFT_N_COMPARE };

static const weft_program *
program_at (const struct weft_compare_side *side, uint32_t row)
{
  return side->plan->role[side->timeline->role[row]];
}

static gboolean
is_timed (const struct weft_compare_side *side, uint32_t row, uint32_t op)
{
  return !isnan (side->timeline->begin[row][op]) && !isnan (side->timeline->end[row][op]);
}

static double
length (const struct weft_compare_side *side, uint32_t row, uint32_t op)
{
  return side->timeline->end[row][op] - side->timeline->begin[row][op];
}

/* ------------------------------------------------------------------ same program */

static gboolean
same_op (const weft_program *p, const weft_program *q, uint32_t op)
{
  const struct weft_op *x = &p->op[op], *y = &q->op[op];

  return x->kind == y->kind && x->lane == y->lane && x->group == y->group && x->flags == y->flags &&
         x->layer == y->layer && x->micro == y->micro && x->chunk == y->chunk &&
         x->phase == y->phase && x->peer == y->peer && x->reduce == y->reduce &&
         strcmp (p->name[x->name], q->name[y->name]) == 0;
}

static char *
op_text (const weft_program *p, uint32_t op)
{
  g_autofree char *label = op < p->n_op ? weft_op_label (p, op) : NULL;

  if (!label)
    return g_strdup ("none");
  return g_strdup_printf ("%s (%s)", weft_op_info[p->op[op].kind].word, label);
}

/* Describes the first difference between two programs of one role; NULL if they are the same. The
 * caller frees the text. */
static char *
program_mismatch (const weft_program *p, const weft_program *q)
{
  uint32_t op = 0, both = MIN (p->n_op, q->n_op);

  while (op < both && same_op (p, q, op))
    op++;
  if (op == p->n_op && op == q->n_op)
    return NULL;
  g_autofree char *a = op_text (p, op), *b = op_text (q, op);
  return g_strdup_printf ("stage %u has %u ops in A and %u in B, and op %u is %s in A and %s in B",
                          p->role, p->n_op, q->n_op, op, a, b);
}

/* The axes of a mesh, in the order in which ranks are numbered. */
static char *
mesh_text (const struct weft_mesh *m)
{
  return g_strdup_printf ("%u ranks (tensor %u, context %u, %s %u, %s %u)", m->n_ranks, m->tp,
                          m->cp, m->stages_inside ? "pipeline" : "data",
                          m->stages_inside ? m->pp : m->dp, m->stages_inside ? "data" : "pipeline",
                          m->stages_inside ? m->dp : m->pp);
}

static char *
find_mismatch (const weft_plan *a, const weft_plan *b)
{
  const struct weft_mesh *m = &a->mesh, *n = &b->mesh;
  char *mismatch = NULL;

  if (m->tp != n->tp || m->cp != n->cp || m->dp != n->dp || m->pp != n->pp ||
      m->stages_inside != n->stages_inside) {
    g_autofree char *one = mesh_text (m), *two = mesh_text (n);
    return g_strdup_printf ("A has %s, B has %s", one, two);
  }
  for (uint32_t role = 0; role < a->n_roles && !mismatch; role++)
    mismatch = program_mismatch (a->role[role], b->role[role]);
  return mismatch;
}

/* ---------------------------------------------------------------------- settings */

/* Sections of a job: their tables, and the offset of their values in struct weft_job. */
static const struct {
  const char *name;
  const struct weft_table *table;
  size_t values;
} sections[] = {
  { "model", &weft_model_table, offsetof (struct weft_job, model) },
  { "cluster", &weft_cluster_table, offsetof (struct weft_job, cluster.f) },
  { "train", &weft_train_table, offsetof (struct weft_job, train) },
  { "stack", &weft_stack_table, offsetof (struct weft_job, stack) },
  { "strategy", &weft_strategy_table, offsetof (struct weft_job, strategy) },
};

static const union weft_value *
values_of (const struct weft_job *job, unsigned section)
{
  return (const union weft_value *) (const void *) ((const char *) job + sections[section].values);
}

/* Records a setting if its values in the two jobs differ. Takes ownership of both texts. The texts
 * are NULL if a job was not built from settings. */
static void
add_setting (weft_compare *c, struct weft_compare_setting setting, char *a, char *b)
{
  setting.text[A] = a;
  setting.text[B] = b;

  if (g_strcmp0 (a, b) != 0) {
    g_array_append_val (c->setting, setting);
    return;
  }
  g_free (a);
  g_free (b);
}

/* The value of a setting as text; "-" for a field that the fabric of the cluster does not have. */
static char *
setting_text (const struct weft_job *job, unsigned section, unsigned row)
{
  const struct weft_table *table = sections[section].table;

  if (table == &weft_cluster_table && !weft_cluster_has (&job->cluster, row))
    return g_strdup ("-");
  return weft_field_print (&table->field[row], values_of (job, section)[row]);
}

static void
add_section (weft_compare *c, const struct weft_job *a, const struct weft_job *b, unsigned section)
{
  const struct weft_table *table = sections[section].table;

  for (unsigned i = 0; i < table->n; i++)
    if (table->field[i].type != WEFT_TYPE_METHOD)
      add_setting (c,
                   (struct weft_compare_setting){ sections[section].name, table->field[i].name,
                                                  table->field[i].unit, { NULL } },
                   setting_text (a, section, i), setting_text (b, section, i));
}

/* Records all settings of the two jobs that differ. The topology and the number of GPUs are
 * compared apart from the fields of the cluster, because they are not fields of its table. */
static void
add_settings (weft_compare *c)
{
  const struct weft_job *a = &c->side[A].plan->job, *b = &c->side[B].plan->job;

  add_setting (c, (struct weft_compare_setting){ "cluster", "topology", "", { NULL } },
               g_strdup (g_quark_to_string (a->cluster.topology)),
               g_strdup (g_quark_to_string (b->cluster.topology)));
  add_setting (c, (struct weft_compare_setting){ "cluster", "gpus", "", { NULL } },
               g_strdup_printf ("%u", a->cluster.n_gpus),
               g_strdup_printf ("%u", b->cluster.n_gpus));
  for (unsigned i = 0; i < G_N_ELEMENTS (sections); i++)
    add_section (c, a, b, i);
}

static void
clear_setting (gpointer data)
{
  struct weft_compare_setting *setting = data;

  for (int side = 0; side < SIDES; side++)
    g_free (setting->text[side]);
}

/* -------------------------------------------------------------------------- sums */

/* State while the ops of both sides are added to sums. */
struct adder {
  weft_compare *c;
  /* sums over one label each; sums over a kind are computed from them afterwards */
  GArray *sum;
  GHashTable *known;              /* position in `sum` plus one, for each (kind, group, label) */
  uint32_t **slot[SIDES];         /* [side][role][op]: position of the op's sum in `sum` */
  /* [role][op]: the rank with the largest difference; only if both sides have the same programs */
  struct weft_compare_op **worst;
  double rounding;                /* seconds */
};

/* The label of an op, without the number at its end: "bucket" for "bucket 3". */
static const char *
label_of (const weft_program *p, uint32_t op)
{
  const char *name = p->name[p->op[op].name];
  size_t n = strlen (name), digits = n;

  while (digits > 0 && g_ascii_isdigit (name[digits - 1]))
    digits--;
  g_autofree char *base = g_strndup (name, digits > 1 && name[digits - 1] == ' ' ? digits - 1 : n);
  return g_intern_string (base);
}

static uint32_t
find_slot (struct adder *add, const weft_program *p, uint32_t op)
{
  const struct weft_op *row = &p->op[op];
  const char *label = label_of (p, op);
  char *key = g_strdup_printf ("%u %u %s", row->kind, row->group, label);
  uint32_t slot = GPOINTER_TO_UINT (g_hash_table_lookup (add->known, key));

  if (slot) {
    g_free (key);
    return slot - 1;
  }
  const struct weft_compare_sum sum = { .kind = row->kind, .group = row->group, .label = label };
  g_array_append_val (add->sum, sum);
  g_hash_table_insert (add->known, key, GUINT_TO_POINTER (add->sum->len));
  return add->sum->len - 1;
}

static void
find_slots (struct adder *add, int side)
{
  const weft_plan *plan = add->c->side[side].plan;

  add->slot[side] = g_new (uint32_t *, plan->n_roles);
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    const weft_program *p = plan->role[role];
    add->slot[side][role] = g_new (uint32_t, p->n_op + 1);
    for (uint32_t op = 0; op < p->n_op; op++)
      add->slot[side][role][op] = find_slot (add, p, op);
  }
}

static void
free_slots (struct adder *add, int side)
{
  for (uint32_t role = 0; role < add->c->side[side].plan->n_roles; role++)
    g_free (add->slot[side][role]);
  g_free (add->slot[side]);
}

/* The time at which all dependencies of `op` had ended. */
static double
deps_end (const weft_program *p, const double *end, uint32_t op)
{
  double latest = 0;

  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    /* fmax() ignores the end of an op that did not run, which is NaN */
    latest = fmax (latest, end[p->deps[d]]);
  return latest;
}

/* Seconds from the time at which an op could have begun to the begin of the op. */
static double
wait_of (const struct weft_compare_side *side, uint32_t row, uint32_t op)
{
  const weft_program *p = program_at (side, row);
  const double *end = side->timeline->end[row];
  enum weft_lane lane = p->op[op].lane;
  const uint32_t *ops = p->lane_ops[lane];
  uint32_t first = p->pos[op], last;

  while (first > 0 && p->op[ops[first]].flags & WEFT_OP_GROUPED)
    first--;
  last = weft_program_group_end (p, lane, first);
  double ready = first > 0 ? fmax (0, end[ops[first - 1]]) : 0;
  for (uint32_t i = first; i < last; i++)
    ready = fmax (ready, deps_end (p, end, ops[i]));
  return fmax (0, side->timeline->begin[row][op] - ready);
}

static void
add_op (struct adder *add, int side, uint32_t row, uint32_t op, uint32_t ranks)
{
  const struct weft_compare_side *s = &add->c->side[side];
  uint32_t slot = add->slot[side][s->timeline->role[row]][op];
  struct weft_compare_sum *sum = &g_array_index (add->sum, struct weft_compare_sum, slot);

  sum->n[side] += ranks;
  sum->seconds[side] += ranks * length (s, row, op);
  sum->wait[side] += ranks * wait_of (s, row, op);
}

/* ------------------------------------------------------------------------- worst */

static double
difference (const struct weft_compare_op *op)
{
  return fabs (op->seconds[B] - op->seconds[A]);
}

static int
by_difference (const void *a, const void *b)
{
  const struct weft_compare_op *x = a, *y = b;

  if (difference (x) != difference (y))
    return difference (x) > difference (y) ? -1 : 1;
  return x->role != y->role ? (x->role < y->role ? -1 : 1) : (x->op > y->op) - (x->op < y->op);
}

/* Stores, for every op of every role, the rank on which the seconds of the two sides differ most.
 * If several ranks have the same difference, the first of them is stored. */
static void
keep_worst (struct adder *add, const struct weft_compare_op *op)
{
  struct weft_compare_op *kept = &add->worst[op->role][op->op];

  if (difference (op) > fmax (difference (kept), add->rounding))
    *kept = *op;
}

static void
list_worst (struct adder *add, uint32_t most)
{
  const weft_plan *plan = add->c->side[A].plan;
  GArray *worst = add->c->worst;

  for (uint32_t role = 0; role < plan->n_roles; role++)
    for (uint32_t op = 0; op < plan->role[role]->n_op; op++)
      if (difference (&add->worst[role][op]) > 0)
        g_array_append_val (worst, add->worst[role][op]);
  g_array_sort (worst, by_difference);
  g_array_set_size (worst, MIN (worst->len, most));
}

/* -------------------------------------------------------------------------- join */

/* A row of A and a row of B that represent common ranks: the first common rank, and the number of
 * common ranks. */
struct pair {
  uint32_t row[SIDES], rank, ranks;
};

static void
join_op (struct adder *add, const struct pair *pair, uint32_t op)
{
  const struct weft_compare_side *side = add->c->side;
  gboolean timed[SIDES];

  for (int s = 0; s < SIDES; s++)
    timed[s] = is_timed (&side[s], pair->row[s], op);
  if (timed[A] != timed[B])
    add->c->n_only[timed[A] ? A : B] += pair->ranks;
  if (!timed[A] || !timed[B])
    return;
  struct weft_compare_op both = { .rank = pair->rank,
                                  .role = side[A].timeline->role[pair->row[A]],
                                  .op = op };
  for (int s = 0; s < SIDES; s++) {
    add_op (add, s, pair->row[s], op, pair->ranks);
    both.seconds[s] = length (&side[s], pair->row[s], op);
  }
  add->c->n_joined += pair->ranks;
  keep_worst (add, &both);
}

static int
by_rows (const void *a, const void *b)
{
  const struct pair *x = a, *y = b;

  if (x->row[A] != y->row[A])
    return x->row[A] < y->row[A] ? -1 : 1;
  if (x->row[B] != y->row[B])
    return x->row[B] < y->row[B] ? -1 : 1;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

#define NO_ROW 0xffffffffu

/* Returns an array that maps each rank to the row that represents the rank, or to NO_ROW. The
 * caller frees the array with g_free(). */
static uint32_t *
rows_of_ranks (const struct weft_compare_side *side)
{
  const weft_timeline *t = side->timeline;
  uint32_t n = side->plan->mesh.n_ranks, *row = g_new (uint32_t, n);
  g_autoptr (weft_actors) actors =
      t->folded && !t->row_of ? weft_actors_new (&side->plan->fabric, &side->plan->mesh, TRUE)
                              : NULL;

  if (t->row_of) {
    memcpy (row, t->row_of, n * sizeof *row);
    return row;
  }
  memset (row, 0xff, n * sizeof *row);
  for (uint32_t i = 0; i < t->n; i++)
    row[t->rank[i]] = i;
  for (uint32_t rank = 0; actors && rank < n; rank++)
    row[rank] = row[actors->rank[actors->actor_of[rank]]];
  return row;
}

/* Lists all pairs of a row of A and a row of B that represent a common rank, in the order of A's
 * rows. */
static GArray *
find_pairs (const weft_compare *c)
{
  g_autofree uint32_t *a = rows_of_ranks (&c->side[A]), *b = rows_of_ranks (&c->side[B]);
  GArray *pairs = g_array_new (FALSE, FALSE, sizeof (struct pair));
  unsigned kept = 0;

  for (uint32_t rank = 0; rank < c->side[A].plan->mesh.n_ranks; rank++) {
    const struct pair pair = { { a[rank], b[rank] }, rank, 1 };
    if (a[rank] != NO_ROW && b[rank] != NO_ROW)
      g_array_append_val (pairs, pair);
  }
  g_array_sort (pairs, by_rows);
  struct pair *p = (struct pair *) (void *) pairs->data;
  for (unsigned i = 0; i < pairs->len; i++)
    if (kept && p[i].row[A] == p[kept - 1].row[A] && p[i].row[B] == p[kept - 1].row[B])
      p[kept - 1].ranks++;
    else
      p[kept++] = p[i];
  g_array_set_size (pairs, kept);
  return pairs;
}

static void
join (struct adder *add, uint32_t most_worst)
{
  g_autoptr (GArray) pairs = find_pairs (add->c);
  const weft_plan *plan = add->c->side[A].plan;

  add->worst = g_new (struct weft_compare_op *, plan->n_roles);
  for (uint32_t role = 0; role < plan->n_roles; role++)
    add->worst[role] = g_new0 (struct weft_compare_op, plan->role[role]->n_op + 1);
  for (unsigned i = 0; i < pairs->len; i++) {
    const struct pair *pair = &g_array_index (pairs, struct pair, i);
    uint32_t n_op = program_at (&add->c->side[A], pair->row[A])->n_op;
    for (int s = 0; s < SIDES; s++)
      add->c->n_ranks[s] += pair->ranks;
    for (uint32_t op = 0; op < n_op; op++)
      join_op (add, pair, op);
  }
  list_worst (add, most_worst);
  for (uint32_t role = 0; role < plan->n_roles; role++)
    g_free (add->worst[role]);
  g_free (add->worst);
}

static void
add_alone (struct adder *add, int side)
{
  const struct weft_compare_side *s = &add->c->side[side];

  for (uint32_t row = 0; row < s->timeline->n; row++) {
    uint32_t ranks = s->timeline->stands_for[row];
    add->c->n_ranks[side] += ranks;
    for (uint32_t op = 0; op < program_at (s, row)->n_op; op++)
      if (is_timed (s, row, op))
        add_op (add, side, row, op, ranks);
  }
}

/* ------------------------------------------------------------------------- order */

static double
weight (const struct weft_compare_sum *sum)
{
  return fmax (sum->seconds[A], sum->seconds[B]);
}

static gboolean
same_kind (const struct weft_compare_sum *x, const struct weft_compare_sum *y)
{
  return x->kind == y->kind && x->group == y->group;
}

/* Compares two sums for sorting: largest first. Equal sums are ordered by kind, group and label, so
 * that the order is deterministic. */
static int
by_weight (const void *a, const void *b)
{
  const struct weft_compare_sum *x = a, *y = b;

  if (weight (x) != weight (y))
    return weight (x) > weight (y) ? -1 : 1;
  if (!same_kind (x, y))
    return x->kind != y->kind ? (int) x->kind - (int) y->kind : (int) x->group - (int) y->group;
  return g_strcmp0 (x->label, y->label);
}

static void
add_sum (struct weft_compare_sum *to, const struct weft_compare_sum *from)
{
  for (int side = 0; side < SIDES; side++) {
    to->n[side] += from->n[side];
    to->seconds[side] += from->seconds[side];
    to->wait[side] += from->wait[side];
  }
}

static void
divide (struct weft_compare_sum *sum, const uint32_t *n_ranks)
{
  for (int side = 0; side < SIDES; side++) {
    sum->seconds[side] /= MAX (n_ranks[side], 1);
    sum->wait[side] /= MAX (n_ranks[side], 1);
  }
}

/* Adds up the sums of labels, and returns one sum for each pair of kind and group. */
static GArray *
sum_kinds (const GArray *labels)
{
  GArray *kinds = g_array_new (FALSE, FALSE, sizeof (struct weft_compare_sum));

  for (unsigned i = 0, k; i < labels->len; i++) {
    const struct weft_compare_sum *label = &g_array_index (labels, struct weft_compare_sum, i);
    struct weft_compare_sum kind = { .kind = label->kind, .group = label->group };
    if (label->n[A] + label->n[B] == 0)
      continue;
    for (k = 0; k < kinds->len; k++)
      if (same_kind (&g_array_index (kinds, struct weft_compare_sum, k), label))
        break;
    if (k == kinds->len)
      g_array_append_val (kinds, kind);
    add_sum (&g_array_index (kinds, struct weft_compare_sum, k), label);
  }
  g_array_sort (kinds, by_weight);
  return kinds;
}

/* Fills c->sum with the sums over op kinds, largest first; after each kind, the sums over its
 * labels. */
static void
order_sums (weft_compare *c, GArray *labels)
{
  for (unsigned i = 0; i < labels->len; i++)
    divide (&g_array_index (labels, struct weft_compare_sum, i), c->n_ranks);
  g_array_sort (labels, by_weight);
  g_autoptr (GArray) kinds = sum_kinds (labels);
  for (unsigned k = 0; k < kinds->len; k++) {
    const struct weft_compare_sum *kind = &g_array_index (kinds, struct weft_compare_sum, k);
    g_array_append_val (c->sum, *kind);
    for (unsigned i = 0; i < labels->len; i++) {
      const struct weft_compare_sum *label = &g_array_index (labels, struct weft_compare_sum, i);
      if (same_kind (kind, label) && label->n[A] + label->n[B])
        g_array_append_val (c->sum, *label);
    }
  }
}

/* ------------------------------------------------------------------------- whole */

static void
add_sums (weft_compare *c, uint32_t most_worst)
{
  g_autoptr (GArray) sum = g_array_new (FALSE, FALSE, sizeof (struct weft_compare_sum));
  g_autoptr (GHashTable) known = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  struct adder add = { .c = c, .sum = sum, .known = known };

  add.rounding =
      WEFT_COMPARE_ROUNDING * fmax (c->side[A].timeline->seconds, c->side[B].timeline->seconds);
  for (int side = 0; side < SIDES; side++)
    find_slots (&add, side);
  if (!c->mismatch)
    join (&add, most_worst);
  else
    for (int side = 0; side < SIDES; side++)
      add_alone (&add, side);
  order_sums (c, sum);
  for (int side = 0; side < SIDES; side++)
    free_slots (&add, side);
}

weft_compare *
weft_compare_new (const struct weft_compare_side *a, const struct weft_compare_side *b,
                  uint32_t most_worst)
{
  weft_compare *c = g_new0 (weft_compare, 1);

  c->side[A] = *a;
  c->side[B] = *b;
  c->sum = g_array_new (FALSE, FALSE, sizeof (struct weft_compare_sum));
  c->worst = g_array_new (FALSE, FALSE, sizeof (struct weft_compare_op));
  c->setting = g_array_new (FALSE, FALSE, sizeof (struct weft_compare_setting));
  g_array_set_clear_func (c->setting, clear_setting);
  for (int side = 0; side < SIDES; side++)
    c->report[side] = weft_report_new (c->side[side].plan, c->side[side].timeline);
  c->mismatch = find_mismatch (a->plan, b->plan);
  add_settings (c);
  add_sums (c, most_worst);
  return c;
}

void
weft_compare_free (weft_compare *c)
{
  for (int side = 0; side < SIDES; side++)
    weft_report_free (c->report[side]);
  g_array_unref (c->sum);
  g_array_unref (c->worst);
  g_array_unref (c->setting);
  g_free (c->mismatch);
  g_free (c);
}
