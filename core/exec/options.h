/* options.h - options that an executor declares for itself, beside those of exec.h.
 *
 * An executor lists its own options as rows X (C type, member, type, "flag", default, least, most,
 * unit, words, doc).  From this list come the table in its row (struct weft_exec_ops), with which
 * commands print, parse and check flags, and the struct that it reads:
 *
 *   union weft_sim_options {
 *     struct { WEFT_SIM_OPTION_LIST (WEFT_OPTION_MEMBER) };
 *     union weft_value at[0 WEFT_SIM_OPTION_LIST (WEFT_OPTION_ONE)];
 *   };
 *
 * In this struct, 0 stands for an option that is not given and has the default none.  A row without
 * doc is no flag: only code sets it. */
#pragma once
#include "core/base/field.h"

#define WEFT_OPTION_MEMBER(c_type, member, ...) c_type member;
#define WEFT_OPTION_ONE(...) +1
#define WEFT_OPTION_FIELD(c_type, member, type_, flag, def_, lo_, hi_, unit_, words_, doc_)        \
  { .name = flag,                                                                                  \
    .type = type_,                                                                                 \
    .def = def_,                                                                                   \
    .lo = lo_,                                                                                     \
    .hi = hi_,                                                                                     \
    .unit = unit_,                                                                                 \
    .words = words_,                                                                               \
    .doc = doc_ },

/* Rows of several executors. */
#define WEFT_OPTION_UNFOLDED(X)                                                                    \
  X (int64_t, unfolded, WEFT_TYPE_BOOL, "unfolded", "false", NULL, NULL, "", NULL,                 \
     "simulate every rank, not one representative of each class")
#define WEFT_OPTION_PREDICTED_GRAPH_DOC                                                            \
  "predict a step captured as one graph (CUDA graph): no kernel waits for its launch"
#define WEFT_OPTION_PREDICTED_GRAPH(X)                                                             \
  X (int64_t, graph, WEFT_TYPE_BOOL, "graph", "false", NULL, NULL, "", NULL,                       \
     WEFT_OPTION_PREDICTED_GRAPH_DOC)
#define WEFT_OPTION_STRESS(X)                                                                      \
  X (int64_t, stress, WEFT_TYPE_INT, "stress", "none", "1", "9007199254740992", "", NULL,          \
     "run the ops of all ranks in a random order that the plan allows, from this seed")
/* Fill bytes with NaN when their buffer dies. */
#define WEFT_OPTION_POISON(X)                                                                      \
  X (int64_t, poison, WEFT_TYPE_BOOL, "poison", "false", NULL, NULL, "", NULL, NULL)

/* Most options of one executor. */
enum { WEFT_MOST_OWN_OPTIONS = 16 };

/* Values of options, by row of a table, for the executor that has this table.  If all bytes are
 * zero, every option of any executor has its default. */
struct weft_own_options {
  const struct weft_table *table;
  union weft_value at[WEFT_MOST_OWN_OPTIONS];
};

/* The values of a struct of options, by row of its table. */
struct weft_own_options
weft_own_options_of (const struct weft_table *table, const union weft_value *values);

/* Parses one option and sets it.  Refuses an option that is not in the table, and a value outside
 * its range.  *own must be zeroed or have values of this table. */
gboolean weft_own_options_set (struct weft_own_options *own, const struct weft_table *table,
                               const char *name, const char *text, GError **error);

/* "threads 2\nstress 0\n": every row with its value.  The caller frees it. */
char *weft_own_options_print (const struct weft_own_options *own, const struct weft_table *table);

/* Fills the struct of options of an executor from *own. Called by the open() function of the
 * executor that has this table. */
void weft_own_options_read (const struct weft_own_options *own, const struct weft_table *table,
                            union weft_value *values);
