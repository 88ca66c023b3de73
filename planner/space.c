/* Combines the values of the axes. If the user set an axis, the only value is the user's. */
#include "planner/space.h"
#include "core/base/error.h"
#include "core/base/invariant.h"
#include "core/job/stages.h"
#include "planner/axes.h"
#include <string.h>

static gboolean
is_fixed (const struct weft_job *job, const struct weft_axis_row *axis)
{
  return axis->table == WEFT_AXIS_OF_KNOB ? job->knob_set[axis->field]
                                          : job->train_set[axis->field];
}

static union weft_value *
setting (struct weft_job *job, const struct weft_axis_row *axis)
{
  return axis->table == WEFT_AXIS_OF_KNOB ? &job->strategy.at[axis->field]
                                          : &job->train.at[axis->field];
}

static const struct weft_field *
field_of (const struct weft_axis_row *axis)
{
  const struct weft_table *table =
      axis->table == WEFT_AXIS_OF_KNOB ? &weft_strategy_table : &weft_train_table;

  return &table->field[axis->field];
}

const struct weft_field *
weft_space_field (enum weft_axis axis)
{
  return field_of (&weft_axes[axis]);
}

static int32_t
pack (int64_t value)
{
  WEFT_INVARIANT (value == WEFT_NONE || (value > INT32_MIN && value <= INT32_MAX));
  return value == WEFT_NONE ? WEFT_CHOICE_NONE : (int32_t) value;
}

static int64_t
unpack (int32_t value)
{
  return value == WEFT_CHOICE_NONE ? WEFT_NONE : value;
}

/* The job whose choices are listed, with the values of the axes so far. */
struct listing {
  struct weft_job job;
  const struct weft_space_ranges *ranges; /* NULL: no limits */
  unsigned end;                           /* the axes from number `end` on get no values */
  struct weft_choice choice;
  GArray *out; /* NULL: the choices are only counted */
  uint32_t n;
};

/* The values of an open axis that belong to the space. */
static uint32_t
searched_values (const struct listing *l, const struct weft_axis_row *axis,
                 int64_t values[WEFT_SPACE_VALUES])
{
  const uint32_t all = axis->values (&l->job, values);
  uint32_t n = 0;

  if (!axis->wide || (l->ranges && l->ranges->whole))
    return all;
  for (uint32_t i = 0; i < all; i++)
    if (!axis->wide (values[i], i))
      values[n++] = values[i];
  return n;
}

static uint32_t
values_of (struct listing *l, size_t depth, int64_t values[WEFT_SPACE_VALUES])
{
  const struct weft_axis_row *axis = &weft_axes[depth];
  const struct weft_space_range *range = l->ranges ? &l->ranges->of[depth] : NULL;

  if (range && range->n > 0) {
    memcpy (values, range->value, range->n * sizeof *values);
    return range->n;
  }
  if (!is_fixed (&l->job, axis))
    return searched_values (l, axis, values);
  values[0] = setting (&l->job, axis)->i;
  return 1;
}

/* Lists all choices of the axes from number `depth` on. A value outside the range of its setting is
 * left out. */
static void
enumerate (struct listing *l, size_t depth)
{
  int64_t values[WEFT_SPACE_VALUES];

  if (depth == l->end) {
    if (l->out)
      g_array_append_val (l->out, l->choice);
    l->n++;
    return;
  }
  union weft_value *at = setting (&l->job, &weft_axes[depth]), before = *at;
  uint32_t n = values_of (l, depth, values);
  for (uint32_t i = 0; i < n; i++) {
    at->i = values[i];
    if (!weft_field_holds (field_of (&weft_axes[depth]), *at))
      continue;
    l->choice.value[depth] = pack (values[i]);
    enumerate (l, depth + 1);
  }
  *at = before;
}

/* The first axis that does not belong to a level. */
static const unsigned end_of[] = {
  [WEFT_SPACE_SCHEDULES] = WEFT_AXIS_recompute_granularity,
  [WEFT_SPACE_KERNELS] = WEFT_AXIS_use_megatron_fsdp,
  [WEFT_SPACE_STRATEGIES] = WEFT_N_AXIS,
};

static uint32_t
list_within (struct listing *l, const struct weft_choice *family, enum weft_space_level from)
{
  const unsigned n = family ? end_of[from] : 0;

  for (unsigned i = 0; i < n; i++) {
    l->choice.value[i] = family->value[i];
    setting (&l->job, &weft_axes[i])->i = unpack (family->value[i]);
  }
  enumerate (l, n);
  return l->n;
}

void
weft_space_families (const struct weft_job *job, const struct weft_space_ranges *ranges,
                     const struct weft_choice *family, enum weft_space_level from,
                     enum weft_space_level level, GArray *list)
{
  struct listing l = { .job = *job, .ranges = ranges, .end = end_of[level], .out = list };

  g_array_set_size (list, 0);
  list_within (&l, family, from);
}

uint32_t
weft_space_count (const struct weft_job *job, const struct weft_space_ranges *ranges,
                  const struct weft_choice *family, enum weft_space_level from)
{
  struct listing l = { .job = *job, .ranges = ranges, .end = WEFT_N_AXIS };

  return list_within (&l, family, from);
}

GArray *
weft_space_enumerate_within (const struct weft_job *job, const struct weft_space_ranges *ranges)
{
  GArray *all = g_array_new (FALSE, TRUE, sizeof (struct weft_choice));

  weft_space_families (job, ranges, NULL, WEFT_SPACE_SCHEDULES, WEFT_SPACE_STRATEGIES, all);
  return all;
}

GArray *
weft_space_enumerate (const struct weft_job *job)
{
  return weft_space_enumerate_within (job, NULL);
}

struct weft_job
weft_space_family_job (const struct weft_job *job, const struct weft_choice *choice,
                       enum weft_space_level level)
{
  struct weft_job one = weft_space_job (job, choice);

  for (unsigned i = end_of[WEFT_SPACE_SCHEDULES];
       level == WEFT_SPACE_SCHEDULES && i < end_of[WEFT_SPACE_KERNELS]; i++)
    if (!is_fixed (job, &weft_axes[i]))
      setting (&one, &weft_axes[i])->i = weft_strategy_defaults ()->at[weft_axes[i].field].i;
  return one;
}

/* The number of the axis with the name `key`; WEFT_N_AXIS: there is none. */
static unsigned
axis_named (const char *key)
{
  unsigned i = 0;

  while (i < WEFT_N_AXIS && strcmp (key, field_of (&weft_axes[i])->name) != 0)
    i++;
  return i;
}

gboolean
weft_space_lists (const char *key)
{
  unsigned axis = axis_named (key);

  return axis < WEFT_N_AXIS && field_of (&weft_axes[axis])->type != WEFT_TYPE_TEXT;
}

gboolean
weft_space_limit (struct weft_space_ranges *ranges, const char *key, const char *text,
                  GError **error)
{
  unsigned axis = axis_named (key);

  if (axis == WEFT_N_AXIS)
    return weft_bad_input (error,
                           "%s: found a list of values, wanted one value: weft plan does "
                           "not search this setting",
                           key);
  struct weft_space_range *range = &ranges->of[axis];
  g_auto (GStrv) word = g_strsplit (text, ",", -1);
  *range = (struct weft_space_range){ 0 };
  for (unsigned i = 0; word[i]; i++) {
    union weft_value value;
    if (range->n == WEFT_SPACE_VALUES)
      return weft_bad_input (error, "%s: found more than %d values", key, WEFT_SPACE_VALUES);
    if (!weft_field_parse (field_of (&weft_axes[axis]), g_strstrip (word[i]), &value, error))
      return FALSE;
    range->value[range->n++] = value.i;
  }
  return TRUE;
}

struct weft_job
weft_space_job (const struct weft_job *job, const struct weft_choice *choice)
{
  struct weft_job chosen = *job;

  for (unsigned i = 0; i < WEFT_N_AXIS; i++)
    setting (&chosen, &weft_axes[i])->i = unpack (choice->value[i]);
  /* weft_job_derive() chooses the precision of a job in which it is not set */
  if (chosen.train.precision != job->train.precision)
    chosen.train_set[WEFT_TRAIN_precision] = TRUE;
  weft_job_derive (&chosen);
  return chosen;
}

uint32_t
weft_space_values (const struct weft_job *job, enum weft_axis axis,
                   int64_t values[WEFT_SPACE_VALUES])
{
  struct weft_job open = *job;
  int64_t all[WEFT_SPACE_VALUES];
  uint32_t n = 0;

  if (weft_axes[axis].table == WEFT_AXIS_OF_KNOB)
    setting (&open, &weft_axes[axis])->i = weft_strategy_defaults ()->at[weft_axes[axis].field].i;
  uint32_t listed = weft_axes[axis].values (&open, all);
  for (uint32_t i = 0; i < listed; i++)
    if (weft_field_holds (field_of (&weft_axes[axis]), (union weft_value){ .i = all[i] }))
      values[n++] = all[i];
  return n;
}

union weft_value *
weft_space_setting (struct weft_job *job, enum weft_axis axis)
{
  return setting (job, &weft_axes[axis]);
}

void
weft_space_settle (struct weft_job *job, enum weft_axis first, enum weft_axis last)
{
  for (unsigned axis = first; axis <= last; axis++) {
    int64_t values[WEFT_SPACE_VALUES];
    union weft_value *at = setting (job, &weft_axes[axis]);
    uint32_t n = weft_space_values (job, axis, values), i = 0;
    while (i < n && values[i] != at->i)
      i++;
    if (n > 0 && i == n)
      at->i = values[0];
  }
}

void
weft_space_forget (struct weft_job *job)
{
  union weft_train defaults;

  weft_table_defaults (&weft_train_table, defaults.at);
  for (unsigned i = 0; i < WEFT_N_AXIS; i++)
    *setting (job, &weft_axes[i]) = weft_axes[i].table == WEFT_AXIS_OF_KNOB
                                        ? weft_strategy_defaults ()->at[weft_axes[i].field]
                                        : defaults.at[weft_axes[i].field];
}

void
weft_space_close (struct weft_job *job)
{
  for (unsigned i = 0; i < WEFT_N_AXIS; i++)
    if (weft_axes[i].table == WEFT_AXIS_OF_KNOB)
      job->knob_set[weft_axes[i].field] = TRUE;
    else
      job->train_set[weft_axes[i].field] = TRUE;
}

gboolean
weft_space_varies (const char *key)
{
  unsigned axis = axis_named (key);

  return strcmp (key, WEFT_LAYERS_PER_CHUNK) == 0 ||
         (axis < WEFT_N_AXIS && weft_axes[axis].values != weft_axis_as_given_precision);
}
