/* strategy.h - every parallelism knob, under the exact name that its software uses.
 *
 * A knob whose `affects` begins with "not yet" is accepted only at its default, because no code
 * reads the knob (weft_strategy_check()). */
#pragma once
#include "core/base/field.h"
#include "core/base/words.h"
#include "core/schedule/schedule.h"

enum weft_knob {
#define KNOB_INT(name, ...) WEFT_KNOB_##name,
#define KNOB_REAL(name, ...) WEFT_KNOB_##name,
#define KNOB_BOOL(name, ...) WEFT_KNOB_##name,
#define KNOB_WORD(name, ...) WEFT_KNOB_##name,
#define KNOB_TEXT(name, ...) WEFT_KNOB_##name,
#define KNOB_METHOD(name, ...) WEFT_KNOB_##name,
#include "core/strategy.def"
  WEFT_N_KNOB
};

union weft_strategy {
  struct {
#define KNOB_INT(name, ...) int64_t name;
#define KNOB_REAL(name, ...) double name;
#define KNOB_BOOL(name, ...) int64_t name;
#define KNOB_WORD(name, ...) int64_t name;
#define KNOB_TEXT(name, ...) int64_t name;
#define KNOB_METHOD(name, ...) int64_t name;
#include "core/strategy.def"
  };
  union weft_value at[WEFT_N_KNOB];
};
_Static_assert (sizeof (union weft_strategy) == 8 * WEFT_N_KNOB, "every knob is 8 bytes");

extern const struct weft_table weft_strategy_table;

/* Properties of a knob, by which other code selects knobs without naming them. */
struct weft_knob_traits {
  /* TRUE: the knob places layers on pipeline ranks, or sets how stages exchange tensors; the
   * kernels of a layer do not depend on it */
  gboolean of_stages;
  /* TRUE: the knob shards or overlaps Megatron-Core's data-parallel replicas; the kernels of a
   * layer do not depend on it */
  gboolean of_replicas;
  /* TRUE: if the knob is not at its default, microbatches differ in their kernels, and the planner
   * has no lower bound of the step time */
  gboolean unlike;
  /* the word for a knob that overlaps communication, in the table that weft plan prints */
  const char *overlap;
};
extern const struct weft_knob_traits weft_knob_traits[WEFT_N_KNOB];

/* The defaults of all knobs, parsed once and stored, because a search compares millions of knobs
 * with their defaults. */
const union weft_strategy *weft_strategy_defaults (void);

/* Whether a knob is at its default. Like weft_field_is_default(), but it does not parse the
 * default. */
static inline gboolean
weft_knob_is_default (const union weft_strategy *strategy, unsigned knob)
{
  return weft_strategy_table.field[knob].type == WEFT_TYPE_METHOD ||
         weft_strategy_defaults ()->at[knob].i == strategy->at[knob].i;
}

/* Refuses a job that changes a knob from its default although no code reads the knob yet; the error
 * names the knob. */
gboolean weft_strategy_check (const union weft_strategy *strategy, GError **error);
