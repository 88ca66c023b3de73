#include "core/report/energy.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/sheet.h"
#include "core/base/units.h"
#include "core/cluster/fabric.h"
#include <math.h>

#define POWER(id, word_, field, doc_) { word_, doc_, WEFT_CLUSTER_##field },
static const struct {
  const char *word, *doc;
  unsigned field; /* row of weft_cluster_table */
} powers[WEFT_N_POWER] = { WEFT_POWER_LIST (POWER) };
#undef POWER

/* ---------------------------------------------------------------- powers */

static void
need (const struct weft_cluster *cluster, unsigned row, GString *missing)
{
  if (cluster->f.at[row].r > 0 || !weft_cluster_has (cluster, row))
    return;
  g_string_append_printf (missing, "%s[%s] %s", missing->len ? ", " : "",
                          weft_sheet_section (&weft_cluster_sheet, row),
                          weft_sheet_key (&weft_cluster_sheet, row));
}

static gboolean
check_kind (const struct weft_cluster *cluster, GError **error)
{
  g_autoptr (GString) missing = g_string_new (NULL);

  for (unsigned i = 0; i < WEFT_N_POWER; i++)
    need (cluster, powers[i].field, missing);
  need (cluster, WEFT_CLUSTER_node_power, missing);
  need (cluster, WEFT_CLUSTER_node_nic_power, missing);
  return missing->len == 0 ||
         weft_bad_input (error,
                         "topology %s: found no %s, wanted watts: the topology file gives them, or "
                         "section [cluster] of the job as gpu_idle_power = 100W",
                         g_quark_to_string (cluster->topology), missing->str);
}

gboolean
weft_energy_check (const struct weft_cluster *cluster, GError **error)
{
  for (uint32_t kind = 0; kind < weft_cluster_n_kinds (cluster); kind++)
    if (!check_kind (weft_cluster_of_kind (cluster, kind), error))
      return FALSE;
  return TRUE;
}

void
weft_energy_watts (const struct weft_cluster *cluster, uint32_t gpu, double watts[WEFT_N_POWER])
{
  const struct weft_cluster *c =
      weft_cluster_of_kind (cluster, weft_cluster_kind_of (cluster, gpu));

  for (unsigned i = 0; i < WEFT_N_POWER; i++)
    watts[i] = c->f.at[powers[i].field].r;
}

weft_energy
weft_energy_begin (const weft_plan *plan, const weft_timeline *t)
{
  const struct weft_cluster *all = &plan->job.cluster;
  weft_energy e = { .seconds = t->seconds,
                    .gpus = all->n_gpus,
                    .tokens = (double) plan->job.train.global_batch_size *
                              (double) plan->job.model.seq_length,
                    .run_tokens = NAN };

  for (uint32_t gpu = 0; gpu < all->n_gpus; gpu += MIN (all->n_gpus, all->f.node_gpus)) {
    const struct weft_cluster *c = weft_cluster_of_kind (all, weft_cluster_kind_of (all, gpu));
    double share = fmin (1, (double) all->n_gpus / (double) c->f.node_gpus) * t->seconds;
    e.nodes_j += share * c->f.node_power;
    e.links_j += share * (double) c->f.node_nics * c->f.node_nic_power;
  }
  return e;
}

/* ---------------------------------------------------------------- states */

/* A begin (+1) or an end (-1) of work of one kind. */
struct edge {
  double date;
  enum weft_power state;
  int step;
};

/* What an op is for the power of its GPU; WEFT_POWER_IDLE: nothing. */
static enum weft_power
state_of (const struct weft_op *op)
{
  if (weft_op_info[op->kind].class != WEFT_CLASS_COMPUTE)
    return WEFT_POWER_COMMUNICATION;
  if (op->lane == WEFT_LANE_HOST)
    return WEFT_POWER_IDLE;
  enum weft_kernel_class kernel = weft_op_kernel (op->kind);
  return kernel == WEFT_KERNEL_MATMUL || kernel == WEFT_KERNEL_ATTENTION ? WEFT_POWER_MATMULS
                                                                         : WEFT_POWER_KERNELS;
}

static int
by_date (const void *a, const void *b)
{
  const struct edge *x = a, *y = b;
  return x->date < y->date ? -1 : x->date > y->date;
}

static GArray *
edges_of (const weft_plan *plan, const weft_timeline *t, uint32_t row)
{
  const weft_program *p = plan->role[t->role[row]];
  GArray *edges = g_array_sized_new (FALSE, FALSE, sizeof (struct edge), 2 * p->n_op + 1);

  for (uint32_t op = 0; op < p->n_op; op++) {
    enum weft_power state = state_of (&p->op[op]);
    const struct edge both[2] = { { t->begin[row][op], state, 1 }, { t->end[row][op], state, -1 } };
    if (state != WEFT_POWER_IDLE && both[1].date > both[0].date)
      g_array_append_vals (edges, both, 2);
  }
  g_array_sort (edges, by_date);
  return edges;
}

GArray *
weft_energy_changes (const weft_plan *plan, const weft_timeline *t, uint32_t row)
{
  g_autoptr (GArray) edges = edges_of (plan, t, row);
  GArray *changes = g_array_new (FALSE, FALSE, sizeof (struct weft_power_change));
  struct weft_power_change now = { 0, WEFT_POWER_IDLE };
  int running[WEFT_N_POWER] = { 0 };

  g_array_append_val (changes, now);
  for (guint i = 0; i < edges->len; i++) {
    const struct edge *e = &g_array_index (edges, struct edge, i);
    running[e->state] += e->step;
    if (i + 1 < edges->len && g_array_index (edges, struct edge, i + 1).date == e->date)
      continue;
    enum weft_power state = WEFT_N_POWER - 1;
    while (state > WEFT_POWER_IDLE && !running[state])
      state--;
    if (state == now.state)
      continue;
    now = (struct weft_power_change){ e->date, state };
    g_array_append_val (changes, now);
  }
  return changes;
}

/* ---------------------------------------------------------------- sums */

double
weft_energy_gpus (const weft_energy *e)
{
  double joules = 0;
  for (unsigned i = 0; i < WEFT_N_POWER; i++)
    joules += e->gpu_j[i];
  return joules;
}

double
weft_energy_step (const weft_energy *e)
{
  return weft_energy_gpus (e) + e->links_j + e->nodes_j;
}

double
weft_energy_run_kwh (const weft_energy *e)
{
  return weft_energy_step (e) / e->tokens * e->run_tokens / 3.6e6;
}

/* ---------------------------------------------------------------- text */

static void
print_part (const weft_energy *e, const char *what, double joules, const char *note, GString *out)
{
  g_autofree char *text = weft_units_human (joules, "J");

  g_string_append_printf (out, "  %-18s%10s %5.1f %%%s%s\n", what, text,
                          100 * joules / weft_energy_step (e), *note ? "   " : "", note);
}

static void
print_run (const weft_energy *e, GString *out)
{
  g_autofree char *tokens = weft_units_human (e->run_tokens, ""),
                  *watt_hours = weft_units_human (1000 * weft_energy_run_kwh (e), "Wh");

  g_string_append_printf (out, "%-20s%10s   %s tokens, without failures and checkpoints\n", "run",
                          watt_hours, g_strchomp (tokens));
}

void
weft_energy_print (const weft_energy *e, GString *out)
{
  double joules = weft_energy_step (e), all = e->seconds * e->gpus;
  g_autofree char *total = weft_units_human (joules, "J"),
                  *token = weft_units_human (joules / e->tokens, "J"),
                  *gpu = weft_units_human (weft_energy_gpus (e) / all, "W"),
                  *share = weft_units_human (joules / all, "W");

  g_string_append_printf (out, "\n%-20s%10s   %s a token\n", "energy of the step", total, token);
  for (unsigned i = WEFT_N_POWER; i-- > 0;) {
    g_autofree char *note = g_strdup_printf ("%.1f %% of the time of a GPU, %s",
                                             100 * e->gpu_s[i] / all, powers[i].doc);
    print_part (e, powers[i].word, e->gpu_j[i], note, out);
  }
  print_part (e, "network ports", e->links_j, "with their share of the switches", out);
  print_part (e, "nodes", e->nodes_j, "beside GPUs and ports", out);
  g_string_append_printf (out, "%-20s%10s   a GPU, %s with its share of ports and nodes\n",
                          "mean power", gpu, share);
  if (!isnan (e->run_tokens))
    print_run (e, out);
}

/* ---------------------------------------------------------------- JSON */

void
weft_energy_to_json (const weft_energy *e, JsonBuilder *b)
{
  double joules = weft_energy_step (e), all = e->seconds * e->gpus;

  weft_json_object (b, "energy");
  weft_json_real (b, "step_j", joules);
  weft_json_real (b, "token_j", joules / e->tokens);
  weft_json_object (b, "gpus");
  for (unsigned i = 0; i < WEFT_N_POWER; i++) {
    g_autofree char *member = g_strconcat (powers[i].word, "_j", NULL);
    weft_json_real (b, member, e->gpu_j[i]);
  }
  weft_json_real (b, "total_j", weft_energy_gpus (e));
  json_builder_end_object (b);
  weft_json_real (b, "links_j", e->links_j);
  weft_json_real (b, "nodes_j", e->nodes_j);
  weft_json_real (b, "gpu_watts", weft_energy_gpus (e) / all);
  weft_json_real (b, "watts_per_gpu", joules / all);
  weft_json_real_or_null (b, "run_tokens", e->run_tokens);
  weft_json_real_or_null (b, "run_kwh", weft_energy_run_kwh (e));
  json_builder_end_object (b);
}
