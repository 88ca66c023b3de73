#include "cli/figures/figures.h"
#include "core/cluster/cluster.h"
#include <math.h>
#include <stdlib.h>

/* All kernels of one kind and name, over the ranks of the timeline. */
struct group {
  double flops, bytes, seconds;
};

struct drawing {
  struct weft_panel *panel;
  GHashTable *group;                      /* "KIND NAME" -> struct group */
  struct weft_series *kind[WEFT_N_OP];    /* NULL: no kernel of this kind has FLOPs */
  double low, high;                       /* ends of FLOPs per byte */
};

static void
add_kernels (struct drawing *d, const weft_report *r, uint32_t actor)
{
  const weft_timeline *t = r->timeline;
  const weft_program *p = r->plan->role[t->role[actor]];

  for (uint32_t i = 0; i < p->lane_n[WEFT_LANE_GPU]; i++) {
    uint32_t op = p->lane_ops[WEFT_LANE_GPU][i];
    double seconds = t->end[actor][op] - t->begin[actor][op];
    if (!(seconds > 0) || weft_op_flops (p, op) <= 0 || weft_op_bytes (p, op) <= 0)
      continue;
    g_autofree char *name = g_strdup_printf ("%u %s", p->op[op].kind, p->name[p->op[op].name]);
    struct group *group = g_hash_table_lookup (d->group, name);
    if (!group) {
      group = g_new0 (struct group, 1);
      g_hash_table_insert (d->group, g_steal_pointer (&name), group);
    }
    group->flops += weft_op_flops (p, op);
    group->bytes += weft_op_bytes (p, op);
    group->seconds += seconds;
  }
}

/* Adds a point for each group, in the order of their names. */
static void
add_points (struct drawing *d)
{
  g_autoptr (GList) names =
      g_list_sort (g_hash_table_get_keys (d->group), (GCompareFunc) g_strcmp0);

  for (GList *at = names; at; at = at->next) {
    const struct group *group = g_hash_table_lookup (d->group, at->data);
    int kind = atoi (at->data);
    double intensity = group->flops / group->bytes;
    if (!d->kind[kind])
      d->kind[kind] = weft_panel_series (d->panel, WEFT_SHAPE_POINTS, weft_op_info[kind].word);
    weft_series_add (d->kind[kind],
                     (struct weft_item){ .x = intensity, .y = group->flops / group->seconds });
    d->low = fmin (d->low, intensity);
    d->high = fmax (d->high, intensity);
  }
}

/* Adds the roof of a rate and a bandwidth. */
static void
add_roof (struct drawing *d, double rate, double bandwidth, const char *name)
{
  struct weft_series *line = weft_panel_series (d->panel, WEFT_SHAPE_LINE, name);
  double ridge = rate / bandwidth, low = fmin (d->low, ridge) / 3, high = fmax (d->high, ridge) * 3;

  line->quiet = TRUE;
  weft_series_add (line, (struct weft_item){ .x = low, .y = low * bandwidth });
  weft_series_add (line, (struct weft_item){ .x = ridge, .y = rate });
  weft_series_add (line, (struct weft_item){ .x = high, .y = rate });
}

weft_figure *
weft_cli_figure_roofline (const weft_report *r)
{
  const struct weft_job *job = &r->plan->job;
  const struct weft_cluster *c = &job->cluster;
  weft_figure *figure = weft_figure_new ("Roofline: kernels of a step");
  g_autoptr (GHashTable) group = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, g_free);
  struct drawing d = { .panel = weft_figure_panel (figure, NULL),
                       .group = group,
                       .low = INFINITY };

  d.panel->width = 560;
  d.panel->x.scale = d.panel->y.scale = WEFT_SCALE_LOG;
  weft_chart_axis_name (&d.panel->x, "FLOPs per byte of GPU memory", "");
  weft_chart_axis_name (&d.panel->y, "rate", "FLOP/s");
  for (uint32_t actor = 0; actor < r->timeline->n; actor++)
    add_kernels (&d, r, actor);
  add_points (&d);
  if (d.high <= 0)
    return figure;
  add_roof (&d, weft_report_printed_peak (job), c->f.gpu_memory_bandwidth_spec, "as printed");
  add_roof (&d, weft_cluster_matmul_rate (c, job->train.precision), c->f.gpu_memory_bandwidth,
            "that kernels reach");
  ((struct weft_series *) d.panel->series->pdata[d.panel->series->len - 1])->dashed = TRUE;
  return figure;
}
