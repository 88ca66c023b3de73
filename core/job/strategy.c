#include "core/job/strategy.h"
#include "core/base/error.h"

static const struct weft_field knobs[] = {
#define KNOB_INT(id, def_, lo_, hi_, source_, affects_, aliases_, doc_, ...)                       \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_INT,                                                                         \
    .def = def_,                                                                                   \
    .lo = lo_,                                                                                     \
    .hi = hi_,                                                                                     \
    .unit = "",                                                                                    \
    .source = source_,                                                                             \
    .affects = affects_,                                                                           \
    .aliases = aliases_,                                                                           \
    .doc = doc_ },
#define KNOB_REAL(id, def_, lo_, hi_, source_, affects_, aliases_, doc_, ...)                      \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_REAL,                                                                        \
    .def = def_,                                                                                   \
    .lo = lo_,                                                                                     \
    .hi = hi_,                                                                                     \
    .unit = "",                                                                                    \
    .source = source_,                                                                             \
    .affects = affects_,                                                                           \
    .aliases = aliases_,                                                                           \
    .doc = doc_ },
#define KNOB_BOOL(id, def_, source_, affects_, aliases_, doc_, ...)                                \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_BOOL,                                                                        \
    .def = def_,                                                                                   \
    .unit = "",                                                                                    \
    .source = source_,                                                                             \
    .affects = affects_,                                                                           \
    .aliases = aliases_,                                                                           \
    .doc = doc_ },
#define KNOB_WORD(id, def_, words_, source_, affects_, aliases_, doc_, ...)                        \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_WORD,                                                                        \
    .def = def_,                                                                                   \
    .unit = "",                                                                                    \
    .words = words_,                                                                               \
    .source = source_,                                                                             \
    .affects = affects_,                                                                           \
    .aliases = aliases_,                                                                           \
    .doc = doc_ },
#define KNOB_TEXT(id, def_, source_, affects_, aliases_, doc_, ...)                                \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_TEXT,                                                                        \
    .def = def_,                                                                                   \
    .unit = "",                                                                                    \
    .source = source_,                                                                             \
    .affects = affects_,                                                                           \
    .aliases = aliases_,                                                                           \
    .doc = doc_ },
#define KNOB_METHOD(id, source_, affects_, aliases_, doc_, ...)                                    \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_METHOD,                                                                      \
    .def = "",                                                                                     \
    .unit = "",                                                                                    \
    .source = source_,                                                                             \
    .affects = affects_,                                                                           \
    .aliases = aliases_,                                                                           \
    .doc = doc_ },
#include "core/strategy.def"
};

const struct weft_knob_traits weft_knob_traits[WEFT_N_KNOB] = {
#define KNOB_INT(id, def, lo, hi, source, affects, aliases, doc, ...)                              \
  [WEFT_KNOB_##id] = { __VA_ARGS__ },
#define KNOB_REAL(id, def, lo, hi, source, affects, aliases, doc, ...)                             \
  [WEFT_KNOB_##id] = { __VA_ARGS__ },
#define KNOB_BOOL(id, def, source, affects, aliases, doc, ...) [WEFT_KNOB_##id] = { __VA_ARGS__ },
#define KNOB_WORD(id, def, words, source, affects, aliases, doc, ...)                              \
  [WEFT_KNOB_##id] = { __VA_ARGS__ },
#define KNOB_TEXT(id, def, source, affects, aliases, doc, ...) [WEFT_KNOB_##id] = { __VA_ARGS__ },
#define KNOB_METHOD(id, source, affects, aliases, doc, ...) [WEFT_KNOB_##id] = { __VA_ARGS__ },
#include "core/strategy.def"
};

const struct weft_table weft_strategy_table = { "knob", knobs, WEFT_N_KNOB };

const union weft_strategy *
weft_strategy_defaults (void)
{
  static union weft_strategy defaults;
  static gsize parsed;

  if (g_once_init_enter (&parsed)) {
    weft_table_defaults (&weft_strategy_table, defaults.at);
    g_once_init_leave (&parsed, 1);
  }
  return &defaults;
}

gboolean
weft_strategy_check (const union weft_strategy *strategy, GError **error)
{
  for (unsigned i = 0; i < WEFT_N_KNOB; i++)
    if (weft_field_is_pending (&knobs[i]) && !weft_knob_is_default (strategy, i))
      return weft_bad_input (error, "strategy knob \"%s\" is not built yet; leave it at %s",
                             knobs[i].name, knobs[i].def);
  return TRUE;
}
