/* strategy.h - every parallelism knob, under the exact name the field uses.
 *
 * A knob whose `affects` begins with "not yet" is known but nothing reads it so far: a job that
 * sets it away from its default is refused by name (weft_strategy_check). */
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

/* Refuses pending knobs that were moved from their default, naming the knob. */
gboolean weft_strategy_check (const union weft_strategy *strategy, GError **error);
