/* Builds a comparison as a JSON document weft.compare/1. */
#include "core/report/compare.h"
#include "core/base/json.h"

enum { A = WEFT_COMPARE_A, B = WEFT_COMPARE_B, SIDES = WEFT_N_COMPARE };

/* Adds the JSON member "ratio", which is B / A; null if A is 0. */
static void
add_ratio (JsonBuilder *b, const double *seconds)
{
  if (seconds[A] > 0)
    weft_json_real (b, "ratio", seconds[B] / seconds[A]);
  else
    weft_json_null (b, "ratio");
}

static void
add_pair (JsonBuilder *b, const double *seconds)
{
  weft_json_real (b, "a_s", seconds[A]);
  weft_json_real (b, "b_s", seconds[B]);
  add_ratio (b, seconds);
}

/* Adds the JSON member "measured_reserved_bytes", an object with bytes by name; null if the bytes
 * were not measured. */
static void
add_reserved (JsonBuilder *b, const weft_timeline *t)
{
  if (!t->knows_reserved) {
    weft_json_null (b, "measured_reserved_bytes");
    return;
  }
  weft_json_object (b, "measured_reserved_bytes");
  for (int i = 0; i < WEFT_N_RESERVED; i++)
    weft_json_int (b, weft_reserved_words[i], (int64_t) t->reserved[i]);
  json_builder_end_object (b);
}

static void
add_side (JsonBuilder *b, const weft_compare *c, int side)
{
  const struct weft_compare_side *s = &c->side[side];
  const struct weft_report_overlap *part = &c->report[side]->overlap;
  g_autofree char *job = weft_job_print (&s->plan->job);

  weft_json_object (b, side == A ? "a" : "b");
  weft_json_text (b, "name", s->name);
  weft_json_text (b, "executor", s->timeline->executor);
  weft_json_text (b, "engine", s->timeline->engine);
  weft_json_bool (b, "folded", s->timeline->folded);
  weft_json_int (b, "rows", s->timeline->n);
  weft_json_int (b, "ranks", s->plan->mesh.n_ranks);
  weft_json_real (b, "time_s", s->timeline->seconds);
#define MEMBER(name, doc) weft_json_real (b, #name, part->name);
  WEFT_REPORT_OVERLAP_LIST (MEMBER)
#undef MEMBER
  weft_json_int (b, "peak_bytes", c->report[side]->peak_bytes);
  weft_json_int (b, "reserved_bytes", (int64_t) weft_plan_reserved_bytes (s->plan, 0));
  add_reserved (b, s->timeline);
  weft_json_text (b, "job", job);
  json_builder_end_object (b);
}

static void
add_step (JsonBuilder *b, const weft_compare *c)
{
  weft_json_object (b, "step");
  add_pair (b, (const double[]){ c->side[A].timeline->seconds, c->side[B].timeline->seconds });
  json_builder_end_object (b);
}

static void
add_joined (JsonBuilder *b, const weft_compare *c)
{
  weft_json_object (b, "joined");
  weft_json_int (b, "ops", c->n_joined);
  weft_json_int (b, "a_only", c->n_only[A]);
  weft_json_int (b, "b_only", c->n_only[B]);
  json_builder_end_object (b);
  if (c->mismatch)
    weft_json_text (b, "mismatch", c->mismatch);
  else
    weft_json_null (b, "mismatch");
}

/* Adds the JSON members that objects of op kinds and objects of labels have in common. */
static void
add_sum (JsonBuilder *b, const weft_compare *c, const struct weft_compare_sum *sum)
{
  if (c->mismatch) {
    weft_json_int (b, "a_n", sum->n[A]);
    weft_json_int (b, "b_n", sum->n[B]);
  } else
    weft_json_int (b, "n", sum->n[A]);
  add_pair (b, sum->seconds);
  weft_json_real (b, "a_wait_s", sum->wait[A]);
  weft_json_real (b, "b_wait_s", sum->wait[B]);
}

static const struct weft_compare_sum *
sum_at (const weft_compare *c, unsigned i)
{
  return &g_array_index (c->sum, struct weft_compare_sum, i);
}

/* Adds a kind of op with its labels to the table; returns the index of the next kind. */
static unsigned
add_kind (JsonBuilder *b, const weft_compare *c, unsigned i)
{
  const struct weft_compare_sum *kind = sum_at (c, i);

  json_builder_begin_object (b);
  weft_json_text (b, "kind", weft_op_info[kind->kind].word);
  if (kind->group == WEFT_GROUP_NONE)
    weft_json_null (b, "axis");
  else
    weft_json_text (b, "axis", weft_group_word (kind->group));
  add_sum (b, c, kind);
  weft_json_array (b, "labels");
  for (i++; i < c->sum->len && sum_at (c, i)->label; i++) {
    json_builder_begin_object (b);
    weft_json_text (b, "label", sum_at (c, i)->label);
    add_sum (b, c, sum_at (c, i));
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  json_builder_end_object (b);
  return i;
}

static void
add_worst (JsonBuilder *b, const weft_compare *c, const struct weft_compare_op *op)
{
  const weft_program *p = c->side[A].plan->role[op->role];
  g_autofree char *label = weft_op_label (p, op->op);

  json_builder_begin_object (b);
  weft_json_int (b, "rank", op->rank);
  weft_json_int (b, "role", op->role);
  weft_json_int (b, "op", op->op);
  weft_json_text (b, "kind", weft_op_info[p->op[op->op].kind].word);
  weft_json_text (b, "label", label);
  add_pair (b, op->seconds);
  json_builder_end_object (b);
}

static void
add_setting (JsonBuilder *b, const struct weft_compare_setting *setting)
{
  json_builder_begin_object (b);
  weft_json_text (b, "section", setting->section);
  weft_json_text (b, "setting", setting->name);
  weft_json_text (b, "unit", setting->unit ? setting->unit : "");
  weft_json_text (b, "a", setting->text[A]);
  weft_json_text (b, "b", setting->text[B]);
  json_builder_end_object (b);
}

void
weft_compare_to_json (const weft_compare *c, JsonBuilder *b)
{
  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.compare/1");
  weft_json_bool (b, "same_program", c->mismatch == NULL);
  add_joined (b, c);
  for (int side = 0; side < SIDES; side++)
    add_side (b, c, side);
  add_step (b, c);
  weft_json_array (b, "kinds");
  for (unsigned i = 0; i < c->sum->len;)
    i = add_kind (b, c, i);
  json_builder_end_array (b);
  weft_json_array (b, "worst");
  for (unsigned i = 0; i < c->worst->len; i++)
    add_worst (b, c, &g_array_index (c->worst, struct weft_compare_op, i));
  json_builder_end_array (b);
  weft_json_array (b, "differences");
  for (unsigned i = 0; i < c->setting->len; i++)
    add_setting (b, &g_array_index (c->setting, struct weft_compare_setting, i));
  json_builder_end_array (b);
  json_builder_end_object (b);
}
