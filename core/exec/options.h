/* options.h - options that an executor declares for itself, in addition to those of exec.h.
 *
 * An executor lists its own options as rows X (C type, member, type, "flag", default, least, most,
 * unit, words, doc).  This list defines two things: the table in struct weft_exec_ops, by which
 * commands print, parse and check the flags, and the struct of values that the executor reads:
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

/* Options that several executors have. */
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
/* Option `poison`: fill a buffer with NaN at the end of its lifetime, so that a later read
 * shows. */
#define WEFT_OPTION_POISON(X)                                                                      \
  X (int64_t, poison, WEFT_TYPE_BOOL, "poison", "false", NULL, NULL, "", NULL, NULL)

/* Largest number of options of one executor. */
enum { WEFT_MOST_OWN_OPTIONS = 16 };

/* Values of the options of the executor that has this table, by row of the table. If all bytes are
 * zero, every option of any executor has its default. */
struct weft_own_options {
  const struct weft_table *table;
  union weft_value at[WEFT_MOST_OWN_OPTIONS];
};

/* The values of an executor's options (WEFT_OWN_OPTIONS), by row of its table. */
struct weft_own_options
weft_own_options_of (const struct weft_table *table, const union weft_value *values);

/* Parses one option and sets it.  Refuses an option that is not in the table, and a value outside
 * its range.  *own must be zeroed or have values of this table. */
gboolean weft_own_options_set (struct weft_own_options *own, const struct weft_table *table,
                               const char *name, const char *text, GError **error);

/* The options as text, one line for each row of the table: "threads 2\nstress 0\n". The caller
 * frees the text. */
char *weft_own_options_print (const struct weft_own_options *own, const struct weft_table *table);

/* Copies the option values of *own to the struct that the executor reads. The open() function of
 * the executor that has this table calls it. */
void weft_own_options_read (const struct weft_own_options *own, const struct weft_table *table,
                            union weft_value *values);
