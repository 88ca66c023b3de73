/* Builds the report as a JSON document weft.sim/1. */
#include "core/base/json.h"
#include "core/report/report.h"
#include <math.h>

/* ------------------------------------------------------------------------- job */

static void
add_fields (JsonBuilder *b, const struct weft_table *table, const union weft_value *values)
{
  for (unsigned i = 0; i < table->n; i++)
    weft_json_value (b, table->field[i].name, &table->field[i], values[i]);
}

static void
add_table (JsonBuilder *b, const struct weft_table *table, const union weft_value *values)
{
  json_builder_begin_object (b);
  add_fields (b, table, values);
  json_builder_end_object (b);
}

void
weft_report_build_train (const struct weft_job *job, JsonBuilder *b)
{
  add_table (b, &weft_train_table, job->train.at);
}

/* Whether a knob is listed in the report. TRUE: the knob is a size, the user set it, or it differs
 * from its default. */
static gboolean
shows (const struct weft_job *job, unsigned knob)
{
  static const unsigned sizes[] = { WEFT_KNOB_tensor_model_parallel_size,
                                    WEFT_KNOB_pipeline_model_parallel_size,
                                    WEFT_KNOB_context_parallel_size };

  for (unsigned i = 0; i < G_N_ELEMENTS (sizes); i++)
    if (sizes[i] == knob)
      return TRUE;
  return job->knob_set[knob] ||
         !weft_field_is_default (&weft_strategy_table.field[knob], job->strategy.at[knob]);
}

void
weft_report_build_strategy (const struct weft_job *job, JsonBuilder *b)
{
  json_builder_begin_object (b);
  for (unsigned i = 0; i < weft_strategy_table.n; i++)
    if (i != WEFT_KNOB_dp_size && shows (job, i))
      weft_json_value (b, (&weft_strategy_table.field[i])->name, &weft_strategy_table.field[i],
                       job->strategy.at[i]);
  weft_json_int (b, "dp_size", weft_job_dp (job));
  json_builder_end_object (b);
}

static void
add_cluster (JsonBuilder *b, const struct weft_cluster *cluster)
{
  json_builder_begin_object (b);
  weft_json_text (b, "topology", g_quark_to_string (cluster->topology));
  weft_json_int (b, "nodes", cluster->n_nodes);
  weft_json_int (b, "gpus", cluster->n_gpus);
  for (unsigned i = 0; i < weft_cluster_table.n; i++)
    if (weft_cluster_has (cluster, i))
      weft_json_value (b, weft_cluster_table.field[i].name, &weft_cluster_table.field[i],
                       cluster->f.at[i]);
  json_builder_end_object (b);
}

void
weft_report_build_job (const struct weft_job *job, JsonBuilder *b)
{
  json_builder_begin_object (b);
  json_builder_set_member_name (b, "model");
  add_table (b, &weft_model_table, job->model.at);
  json_builder_set_member_name (b, "cluster");
  add_cluster (b, &job->cluster);
  json_builder_set_member_name (b, "train");
  weft_report_build_train (job, b);
  json_builder_set_member_name (b, "stack");
  add_table (b, &weft_stack_table, job->stack.at);
  json_builder_set_member_name (b, "strategy");
  weft_report_build_strategy (job, b);
  json_builder_end_object (b);
}

/* --------------------------------------------------------------------- numbers */

#define MEMBER(name, doc) weft_json_real (b, #name, part->name);

void
weft_report_build_iteration (const weft_report *r, JsonBuilder *b)
{
  const struct weft_report_iteration *part = &r->iteration;

  json_builder_begin_object (b);
  WEFT_REPORT_ITERATION_LIST (MEMBER)
  weft_json_text (b, "flops_convention",
                  weft_flops_convention_words[r->plan->job.train.flops_convention]);
  json_builder_end_object (b);
}

static void
add_axes (JsonBuilder *b, const weft_report *r)
{
  json_builder_begin_object (b);
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    if (!weft_report_is_axis (lane))
      continue;
    weft_json_object (b, weft_lane_words[lane]);
    weft_json_real (b, "busy_s", r->axis[lane].busy_s);
    weft_json_real (b, "exposed_s", r->axis[lane].exposed_s);
    weft_json_int (b, "bytes", llround (r->axis[lane].bytes));
    json_builder_end_object (b);
  }
  json_builder_end_object (b);
}

static void
add_overlap (JsonBuilder *b, const weft_report *r)
{
  const struct weft_report_overlap *part = &r->overlap;

  json_builder_begin_object (b);
  WEFT_REPORT_OVERLAP_LIST (MEMBER)
  json_builder_set_member_name (b, "by_axis");
  add_axes (b, r);
  json_builder_end_object (b);
}

/* Adds the JSON member "waits": the ops that wait for memory, with seconds if there is a
 * timeline. */
static void
add_stalls (JsonBuilder *b, const weft_report *r, const struct weft_memory_stalls *stalls)
{
  weft_json_object (b, "waits");
  weft_json_int (b, "ops", stalls->n_op);
  weft_json_int (b, "kernels", stalls->n_kernel);
  if (r->timeline)
    weft_json_real (b, "held_s", stalls->held_s);
  weft_json_array (b, "for");
  for (guint i = 0; stalls->cause && i < stalls->cause->len; i++) {
    const struct weft_memory_stall *w = &g_array_index (stalls->cause, struct weft_memory_stall, i);
    json_builder_begin_object (b);
    weft_json_text (b, "lane", weft_lane_words[w->lane]);
    weft_json_text (b, "op", weft_memory_stall_word (w));
    weft_json_int (b, "ops", w->ops);
    if (r->timeline)
      weft_json_real (b, "held_s", w->held_s);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  json_builder_end_object (b);
}

static void
add_role (JsonBuilder *b, const weft_report *r, uint32_t role)
{
  const struct weft_report_role *row = &r->role[role];

  json_builder_begin_object (b);
  weft_json_int (b, "role", role);
  weft_json_int (b, "peak_bytes", row->peak_bytes);
  weft_json_text (b, "peak_op", row->peak_label);
  weft_json_int (b, "planned_bytes", row->planned_bytes);
  weft_json_int (b, "live_bytes", row->live_bytes);
  weft_json_int (b, "reserved_bytes", row->reserved_bytes);
  weft_json_int (b, "cached_bytes", row->cached_bytes);
  weft_json_object (b, "by_kind");
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    weft_json_int (b, weft_buf_kind_words[kind], row->by_kind[kind]);
  weft_json_int (b, "padding", row->padding);
  json_builder_end_object (b);
  weft_json_int (b, "registered_bytes", row->registered_bytes);
  weft_json_int (b, "host_bytes", row->host_bytes);
  weft_json_int (b, "init_bytes", row->init_bytes);
  add_stalls (b, r, &row->stalls);
  weft_json_object (b, "host_by_kind");
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    weft_json_int (b, weft_buf_kind_words[kind], row->host_by_kind[kind]);
  json_builder_end_object (b);
  json_builder_end_object (b);
}

void
weft_report_build_memory (const weft_report *r, JsonBuilder *b)
{
  json_builder_begin_object (b);
  weft_json_int (b, "capacity_bytes", r->capacity_bytes);
  weft_json_int (b, "peak_bytes", r->peak_bytes);
  weft_json_bool (b, "fits", r->fits);
  weft_json_int (b, "host_capacity_bytes", r->host_capacity_bytes);
  weft_json_int (b, "host_bytes", r->host_bytes);
  weft_json_array (b, "roles");
  for (uint32_t role = 0; role < r->plan->n_roles; role++)
    add_role (b, r, role);
  json_builder_end_array (b);
  json_builder_end_object (b);
}

static void
add_startup (JsonBuilder *b, const struct weft_report_startup *startup)
{
  json_builder_begin_object (b);
  weft_json_real (b, "initialisation_s", startup->initialisation_s);
  weft_json_int (b, "fills", startup->fills);
  weft_json_int (b, "fill_bytes", startup->fill_bytes);
  weft_json_real (b, "broadcast_params_s", startup->broadcast_params_s);
  weft_json_int (b, "broadcasts", startup->broadcasts);
  weft_json_int (b, "bytes", startup->bytes);
  json_builder_end_object (b);
}

static void
add_engine (JsonBuilder *b, const weft_timeline *t)
{
  json_builder_begin_object (b);
  weft_json_text (b, "executor", t->executor);
  weft_json_text (b, "simgrid", t->engine);
  weft_json_bool (b, "folded", t->folded);
  weft_json_int (b, "rows", t->n);
  weft_json_bool (b, "contended", t->contended);
  weft_json_int (b, "ops", t->n_ops);
  weft_json_int (b, "activities", t->n_activities);
  weft_json_real (b, "wall_s", t->wall_seconds);
  json_builder_end_object (b);
}

void
weft_report_to_json (const weft_report *r, JsonBuilder *b)
{
  weft_json_text (b, "schema", "weft.sim/1");
  json_builder_set_member_name (b, "job");
  weft_report_build_job (&r->plan->job, b);
  json_builder_set_member_name (b, "iteration");
  weft_report_build_iteration (r, b);
  json_builder_set_member_name (b, "overlap");
  add_overlap (b, r);
  json_builder_set_member_name (b, "memory");
  weft_report_build_memory (r, b);
  json_builder_set_member_name (b, "startup");
  add_startup (b, &r->startup);
  json_builder_set_member_name (b, "engine");
  add_engine (b, r->timeline);
}
