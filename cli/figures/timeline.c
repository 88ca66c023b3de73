#include "cli/figures/figures.h"
#include <math.h>

/* Lengths in points. */
enum { WIDTH = 900, KERNELS = 22, TRANSFERS = 12 };

/* Ops whose gap is a smaller share of the step than this are one box. */
#define SLACK (1.0 / 2000)


struct drawing {
  const weft_report *r;
  struct weft_panel *panel;
  struct weft_series *phase[WEFT_N_PHASE], *transfers;
};

/* Consecutive ops of a lane that are drawn as one box. */
struct run {
  double begin, end;
  const struct weft_op *op; /* NULL: no run yet */
};

static void
add_box (struct drawing *d, const struct run *run, unsigned row)
{
  gboolean kernels = run->op && run->op->lane == WEFT_LANE_GPU;
  struct weft_item item = { .x = run->begin, .x2 = run->end, .y = row };

  if (!run->op)
    return;
  if (kernels && run->op->micro != WEFT_NO_MICRO)
    item.text = g_strdup_printf ("%u", run->op->micro);
  weft_series_add (kernels ? d->phase[run->op->phase] : d->transfers, item);
}

/* Kernels of one pass over a microbatch are one box; transfers of a lane are one box if they follow
 * each other. */
static gboolean
continues (const struct run *run, const struct weft_op *op)
{
  return op->lane != WEFT_LANE_GPU ||
         (run->op->phase == op->phase && run->op->micro == op->micro);
}

static void
add_lane (struct drawing *d, uint32_t actor, int lane, unsigned row)
{
  const weft_timeline *t = d->r->timeline;
  const weft_program *p = d->r->plan->role[t->role[actor]];
  struct run run = { 0 };

  for (uint32_t i = 0; i < p->lane_n[lane]; i++) {
    uint32_t op = p->lane_ops[lane][i];
    double begin = t->begin[actor][op], end = t->end[actor][op];
    if (!(end > begin))
      continue;
    if (!run.op || begin > run.end + SLACK * t->seconds || !continues (&run, &p->op[op])) {
      add_box (d, &run, row);
      run = (struct run){ begin, end, &p->op[op] };
    }
    run.end = fmax (run.end, end);
  }
  add_box (d, &run, row);
}

static gboolean
takes_time (const struct drawing *d, uint32_t actor, int lane)
{
  const weft_timeline *t = d->r->timeline;
  const weft_program *p = d->r->plan->role[t->role[actor]];

  for (uint32_t i = 0; i < p->lane_n[lane]; i++) {
    uint32_t op = p->lane_ops[lane][i];
    if (t->end[actor][op] > t->begin[actor][op])
      return TRUE;
  }
  return FALSE;
}

/* Adds a stage: a row for its kernels, and a lower one for each lane that moves data. Returns their
 * height. */
static double
add_stage (struct drawing *d, uint32_t actor)
{
  uint32_t role = d->r->timeline->role[actor];
  g_autofree char *word = g_strdup_printf ("stage %u", role);
  double height = KERNELS;

  add_lane (d, actor, WEFT_LANE_GPU, weft_chart_axis_word (&d->panel->y, word, KERNELS));
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    if (!weft_report_is_axis (lane) || !takes_time (d, actor, lane))
      continue;
    unsigned row = weft_chart_axis_word (&d->panel->y, weft_lane_words[lane], TRANSFERS);
    add_lane (d, actor, lane, row);
    height += TRANSFERS;
  }
  return height;
}

weft_figure *
weft_cli_figure_timeline (const weft_report *r)
{
  weft_figure *figure = weft_figure_new ("Timeline of a step: one rank of each stage; numbers are "
                                         "microbatches");
  struct drawing d = { .r = r, .panel = weft_figure_panel (figure, NULL) };
  g_autofree gboolean *drawn = g_new0 (gboolean, r->plan->n_roles);

  for (int phase = 0; phase < WEFT_N_PHASE; phase++) {
    d.phase[phase] =
        weft_panel_series (d.panel, WEFT_SHAPE_INTERVALS, weft_phase_looks[phase].legend);
    d.phase[phase]->look = weft_phase_looks[phase].look;
  }
  d.transfers = weft_panel_series (d.panel, WEFT_SHAPE_INTERVALS, "transfers");
  d.transfers->look = WEFT_CLI_TRANSFER_LOOK;
  d.panel->width = WIDTH;
  d.panel->height = 0;
  d.panel->x.low = 0;
  d.panel->x.high = r->timeline->seconds;
  weft_chart_axis_name (&d.panel->x, "time since the step began", "s");
  for (uint32_t actor = 0; actor < r->timeline->n; actor++) {
    uint32_t role = r->timeline->role[actor];
    if (!drawn[role])
      d.panel->height += add_stage (&d, actor);
    drawn[role] = TRUE;
  }
  return figure;
}
