/* cluster.h - GPUs, nodes and the fabric between them: a topology file plus a size.
 *
 * GPU g sits in node g / node_gpus at slot g % node_gpus; slot k uses NIC k * node_nics /
 * node_gpus, and NIC k of every node of a scalable unit goes to leaf k of that unit (rail-optimised
 * fat tree). */
#pragma once
#include "core/base/field.h"
#include "core/base/words.h"

enum weft_cluster_field {
#define FIELD_TEXT(name, ...) WEFT_CLUSTER_##name,
#define FIELD_INT(name, ...) WEFT_CLUSTER_##name,
#define FIELD_REAL(name, ...) WEFT_CLUSTER_##name,
#define FIELD_WORD(name, ...) WEFT_CLUSTER_##name,
#include "core/cluster.def"
  WEFT_N_CLUSTER_FIELD
};

union weft_cluster_fields {
  struct {
#define FIELD_TEXT(name, ...) int64_t name;
#define FIELD_INT(name, ...) int64_t name;
#define FIELD_REAL(name, ...) double name;
#define FIELD_WORD(name, ...) int64_t name;
#include "core/cluster.def"
  };
  union weft_value at[WEFT_N_CLUSTER_FIELD];
};

struct weft_cluster {
  union weft_cluster_fields f;
  uint32_t n_gpus, n_nodes;
  GQuark topology; /* name it was loaded by */
};

/* Ranks run on threads of one machine: they share its memory bus and have one core each. */
static inline gboolean
weft_cluster_is_cpu (const struct weft_cluster *c)
{
  return c->f.node_intra == WEFT_SHARED_MEMORY;
}

extern const struct weft_table weft_cluster_table;

/* Loads topologies/NAME.ini or a path.  Size is left at one node; see weft_cluster_resize. */
gboolean weft_cluster_load (const char *name_or_path, struct weft_cluster *cluster, GError **error);

/* `gpus` or `nodes` (0: not given).  A part of one node is allowed, a part of a second is not.  On
 * topology cpu any number of GPUs (ranks) makes one node. */
gboolean weft_cluster_resize (struct weft_cluster *cluster, int64_t gpus, int64_t nodes,
                              GError **error);

char **weft_cluster_names (void);

enum weft_stack_field {
#define FIELD_TEXT(name, ...) WEFT_STACK_##name,
#define FIELD_INT(name, ...) WEFT_STACK_##name,
#define FIELD_REAL(name, ...) WEFT_STACK_##name,
#include "core/stack.def"
  WEFT_N_STACK_FIELD
};

union weft_stack {
  struct {
#define FIELD_TEXT(name, ...) int64_t name;
#define FIELD_INT(name, ...) int64_t name;
#define FIELD_REAL(name, ...) double name;
#include "core/stack.def"
  };
  union weft_value at[WEFT_N_STACK_FIELD];
};

/* Weights of experts in fp8: (n, k), with one scale for `block` elements of a row, 0: for all. */
struct weft_stack_codes {
  uint64_t n, k, block;
};

extern const struct weft_table weft_stack_table;
gboolean weft_stack_load (const char *name_or_path, union weft_stack *stack, GError **error);
char **weft_stack_names (void);

/* What kernels of a stack take, as its file says: heads of `width` and values of `value` (both in
 * elements of `bytes` each) that attention multiplies on matrix units; and experts' fp8 codes that
 * a GPU of that compute capability (times ten; 0: unknown, taken for one that can) multiplies as
 * they are. */
gboolean weft_stack_takes_heads (const union weft_stack *stack, uint64_t bytes, uint64_t width,
                                 uint64_t value);
gboolean weft_stack_takes_codes (const union weft_stack *stack, int64_t capability,
                                 const struct weft_stack_codes *codes);

/* Whether `attention_tiles` is written as stack.def says. */
gboolean weft_stack_reads_tiles (const union weft_stack *stack);
