/* op_facts.h - why an op has its FLOPs, bytes and seconds: formulas with their numbers, the fields
 * of topology and stack that give its rate, its buffers. The formulas are those that the prediction
 * computes (core/costs.def, core/plan/cost.h, core/program/coll.h). */
#pragma once
#include "core/report/explain.h"

struct weft_op_fact {
  const char *what; /* "FLOPs"; static */
  char *text;       /* "2 x m x n x k = 2 x 8192 x 6144 x 4096 = 412 GFLOP" */
  const char *doc;  /* source, static; NULL: none */
};

enum { WEFT_OP_FACT_FIELDS = WEFT_COST_FIELDS };

typedef struct weft_op_facts {
  GArray *fact; /* struct weft_op_fact */
  /* the numbers of topology and stack from which the rate follows */
  struct weft_cost_field field[WEFT_OP_FACT_FIELDS];
  unsigned n_field;
  const char *source; /* of the formula of its seconds; static */
} weft_op_facts;

/* The facts of an op of a role. The caller frees them. */
weft_op_facts *weft_op_facts_new (const weft_plan *plan, uint32_t role, uint32_t op);
void weft_op_facts_free (weft_op_facts *facts);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_op_facts, weft_op_facts_free)

/* The formula of an op's seconds without contention, with its numbers: "3 us + 412 GFLOP / (679
 * TFLOP/s x waves 0.97 x ...)". The caller frees the text. */
char *weft_op_seconds_text (const weft_plan *plan, uint32_t role, uint32_t op);
