/* cost_table.h - measured seconds (weft measure), which take precedence over formulas.
 *
 * A text file with one measurement per line; `#` begins a comment:
 *
 *   OP TYPE RESULT RANKS DIMENSIONS SECONDS
 *   matmul fp32 fp32 1 128x192x64 2.1e-05
 *   all_reduce fp32 fp32 2 65536 4.0e-05
 *
 * TYPE is the dtype of the op, RESULT the dtype of its result or accumulator. RANKS is the number
 * of ranks that computed at the same time, or the group size of a communication op. The cost of a
 * shape that was not measured is the formula times a factor: measured time / formula of the nearest
 * measured shape of the same op, types and ranks.
 *
 * A line of two words is the time that the host needs to issue a launch (host.h): the name of the
 * value in the stack, then seconds:
 *
 *   launch_seconds 2.2e-06 */
#pragma once
#include "core/program/op.h"
#include <glib.h>

/* constant             name in the stack    meaning */
#define WEFT_HOST_COST_LIST(X)                                                                     \
  X (WEFT_HOST_CALL, "launch_seconds", "one kernel, copy or collective")                           \
  X (WEFT_HOST_GRAPH, "graph_launch", "a graph of one node")                                       \
  X (WEFT_HOST_NODE, "graph_node", "each node of a graph")
enum weft_host_cost { WEFT_HOST_COST_LIST (WEFT_WORD_ID) WEFT_N_HOST_COST };

struct weft_measurement {
  enum weft_op_kind kind;
  uint32_t ranks;
  struct weft_shape shape;
  double seconds;
};

typedef struct weft_cost_table weft_cost_table;

/* Reads a table from a file or from text. Error messages begin with the path (or `name`) and the
 * line number. The caller frees the table. */
weft_cost_table *weft_cost_table_load (const char *path, GError **error);
weft_cost_table *weft_cost_table_parse (const char *text, gssize length, const char *name,
                                        GError **error);
void weft_cost_table_free (weft_cost_table *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_cost_table, weft_cost_table_free)

/* Measured host seconds of a launch. Returns `otherwise` if the launch was not measured or `table`
 * is NULL. */
double weft_cost_table_launch (const weft_cost_table *table, enum weft_host_cost what,
                               double otherwise);

/* Appends the lines of all launch times; `seconds` is indexed by enum weft_host_cost. */
void weft_cost_table_print_launches (GString *text, const double *seconds);

/* Appends a measurement as a line of the table. */
void weft_cost_table_print (GString *text, const struct weft_measurement *m);

/* Seconds of an op, scaled from the nearest measured shape by a formula for any shape; negative if
 * no shape of the op was measured. If nothing was measured with this number of ranks, the nearest
 * number of ranks is used. */
typedef double (*weft_cost_formula) (const void *user, enum weft_op_kind kind,
                                     const struct weft_shape *shape, uint32_t ranks);
double weft_cost_table_seconds (const weft_cost_table *table, enum weft_op_kind kind,
                                const struct weft_shape *shape, uint32_t ranks,
                                weft_cost_formula formula, const void *user);
