#include "core/schedule/schedule.h"
#include "core/schedule/order.h"

const struct weft_schedule_row weft_schedules[WEFT_N_SCHEDULE] = {
#define SCHEDULE(id, word_, doc_, fill_, ...)                                                      \
  [id] = { .word = word_, .doc = doc_, .fill = fill_, __VA_ARGS__ },
#include "core/schedules.def"
};

const char *const weft_schedule_words[] = {
#define SCHEDULE(id, word, ...) word,
#include "core/schedules.def"
  NULL
};

uint32_t
weft_shape_copies (enum weft_grid_shape shape)
{
  return shape == WEFT_GRID_TWO_WAYS ? 2 : 1;
}

static const struct weft_schedule_row *
row_of (const struct weft_grid_spec *spec)
{
  return &weft_schedules[spec->schedule];
}

uint32_t
weft_spec_chunks (const struct weft_grid_spec *spec)
{
  uint32_t own = row_of (spec)->chunks;

  if (spec->n_chunks)
    return spec->n_chunks;
  return own == WEFT_CHUNKS_ANY ? 1 : MAX (own, 1);
}

uint32_t
weft_spec_group (const struct weft_grid_spec *spec)
{
  return spec->group ? spec->group : spec->n_ranks;
}

static gboolean
chunks_fit (const struct weft_grid_spec *spec)
{
  uint32_t own = row_of (spec)->chunks, chunks = weft_spec_chunks (spec);

  return own == WEFT_CHUNKS_ANY ? chunks <= UINT8_MAX : chunks == MAX (own, 1);
}

static gboolean
takes_groups (const struct weft_grid_spec *spec)
{
  return row_of (spec)->interleaved && weft_spec_chunks (spec) > 1;
}

static gboolean
group_fits (const struct weft_grid_spec *spec)
{
  uint32_t group = weft_spec_group (spec);

  return !takes_groups (spec) || (group >= spec->n_ranks && group <= spec->n_micro);
}

static gboolean
rest_fits (const struct weft_grid_spec *spec)
{
  uint32_t rest = spec->n_micro % weft_spec_group (spec);

  return !takes_groups (spec) || rest == 0 || rest >= spec->n_ranks;
}

static gboolean
counts_are_even (const struct weft_grid_spec *spec)
{
  return !row_of (spec)->even || (spec->n_ranks % 2 == 0 && spec->n_micro % 2 == 0);
}

static gboolean
micros_suffice (const struct weft_grid_spec *spec)
{
  return spec->n_micro >= row_of (spec)->least_micros * spec->n_ranks;
}

enum weft_spec_rule
weft_spec_broken (const struct weft_grid_spec *spec)
{
  static gboolean (*const holds[]) (const struct weft_grid_spec *spec) = {
#define SCHEDULE_RULE(id, name, check, doc) [id] = check,
#include "core/schedules.def"
  };
  enum weft_spec_rule rule = 0;

  while (rule < WEFT_SPEC_FITS && holds[rule](spec))
    rule++;
  return rule;
}
